# SPDX-License-Identifier: Apache-2.0
"""What does tencache cost a program that fits and whose sizes change?

The benchmark runs four programs (benchmarks/changing.py) whose tensors have new sizes again and
again: concatenation that grows, beam search with a growing cache, four threads that serve random
shapes, training with random lengths. The budget holds them with room to spare. The goals are at
most 5 % more processor time than stock, at most 15 % more resident memory, and hooks that stay
unarmed.

Every measurement is a process; the variants alternate. Ratios are taken round by round.

    python benchmarks/changing_fits.py
"""

from __future__ import annotations

from typing import Any

from reporting import Report, Table

import support
from support import GIB, STOCK, Spread, Variant, paired_ratio

OURS = Variant("tencache", {"device_memory": 8 * GIB})
VARIANTS = [STOCK, OURS]
# The rounds of each program. A program lasts some seconds, and training lasts so long that the
# first touch of its memory, which comes once, does not decide.
PROGRAMS = {"growing_cat": 200, "growing_cache": 150, "serving_threads": 60, "random_lengths": 24}
PROCESSOR_GOAL, MEMORY_GOAL = 1.05, 1.15


def processor_s(run: dict[str, Any]) -> float:
    return float(run["user_s"] + run["system_s"])


def verdict(name: str, what: str, ratio: Spread, goal: float) -> str:
    outcome = "met" if ratio.median <= goal else "missed"
    return (
        f"{name}, {what}: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) of stock's "
        f"(goal: at most {goal}): {outcome}"
    )


def measure(name: str, options: Any, report: Report) -> None:
    job = {"program": name, "rounds": PROGRAMS[name]}
    runs = support.interleave(
        VARIANTS,
        options.rounds,
        lambda variant: support.run_worker("changing.py", job, variant),
        quiet_wait_s=options.quiet_wait,
    )
    if len({run["digest"] for results in runs.values() for run in results}) != 1:
        raise support.BenchmarkFailed(f"{name}: the results differ")
    if any(run["stats"]["armed"] for run in runs[OURS.name]):
        raise support.BenchmarkFailed(f"{name}: the hooks were armed although it fits")
    for variant, results in runs.items():
        stats = results[0]["stats"]
        held = stats["peak"]["device"] / stats["peak"]["live"] if stats else None
        report.tables[0].rows.append(
            [
                name if variant == STOCK.name else "",
                variant,
                f"{support.median(run['wall_s'] for run in results):.2f} s",
                f"{support.median(run['user_s'] for run in results):.2f} s",
                f"{support.median(run['system_s'] for run in results):.2f} s",
                support.format_bytes(support.median(run["peak_rss_bytes"] for run in results)),
                f"{held:.2f}" if held else "-",
            ]
        )
    stock, ours = runs[STOCK.name], runs[OURS.name]
    processor = paired_ratio([*map(processor_s, ours)], [*map(processor_s, stock)])
    memory = paired_ratio(
        [run["peak_rss_bytes"] for run in ours], [run["peak_rss_bytes"] for run in stock]
    )
    report.verdicts.append(verdict(name, "processor time", processor, PROCESSOR_GOAL))
    report.verdicts.append(verdict(name, "resident memory", memory, MEMORY_GOAL))
    report.notes.append(f"{name}: {support.foreign_note(runs)}")
    report.data[name] = {
        variant: [
            {key: run[key] for key in ("wall_s", "user_s", "system_s", "peak_rss_bytes")}
            for run in results
        ]
        for variant, results in runs.items()
    }


def main() -> None:
    parser = support.arguments("Programs that fit and whose sizes change, against stock.", rounds=7)
    parser.add_argument("--program", choices=[*PROGRAMS], help="measure only this one")
    options = parser.parse_args()
    report = Report(
        name="changing_fits",
        question="What does tencache cost a program that fits and whose sizes change?",
        command="python benchmarks/changing_fits.py",
        facts=support.machine_facts(("torch",)),
        tables=[
            Table(
                "Programs",
                (
                    "program",
                    "variant",
                    "time",
                    "user",
                    "system",
                    "peak of resident memory",
                    "peak of memory held / of live memory",
                ),
            )
        ],
    )
    for name in [options.program] if options.program else [*PROGRAMS]:
        measure(name, options, report)
    report.notes += [
        f"{options.rounds} rounds; in each both variants run once in a process of their own. "
        "Figures: medians; ratios: medians of those taken round by round, and their range.",
        "Resident memory is the process's, with PyTorch's own 300 MiB or so. Memory held is what "
        "tencache has from the machine, cached memory included.",
        "The results of both variants are identical to the last bit.",
    ]
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
