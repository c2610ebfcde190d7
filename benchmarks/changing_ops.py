# SPDX-License-Identifier: Apache-2.0
"""How much is foreseen of programs whose ops differ from round to round?

The benchmark trains a mixture of experts and decodes with growing caches (irregular.py), with stock
PyTorch and under budgets that are shares of the most bytes that were live at once.

    python benchmarks/changing_ops.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import irregular
from reporting import Report, Table

import support
from support import MIB, STOCK, Variant

WARMUP = {"mixture_of_experts": 8, "decoding": 24}
ROUNDS = {"mixture_of_experts": 24, "decoding": 160}
Runs = Sequence[Mapping[str, Any]]
AMPLE = Variant("ample", {"device_memory": "4GiB"})


def job(program: str) -> dict[str, Any]:
    return {"program": program, "warmup": WARMUP[program], "rounds": ROUNDS[program]}


def median_share(results: Runs, group: str, part: str, whole: str) -> str:
    """The share that one counter of the measured rounds is of another."""
    counts = [run["measured"][group] for run in results]
    return f"{support.median(count[part] / max(1.0, count[whole]) for count in counts):.1%}"


def cells(program: str, variant: Variant, results: Runs, stock: Runs) -> list[str]:
    seconds = [run["wall_s"] for run in results]
    of_stock = support.paired_ratio(seconds, [run["wall_s"] for run in stock])
    per_round = support.format_ns(support.median(seconds) * 1e9 / ROUNDS[program])
    row = [program.replace("_", " "), variant.name, per_round]
    row.append(f"{of_stock.median:.2f} ({of_stock.low:.2f}-{of_stock.high:.2f})")
    if variant.is_stock:
        return [*row, "-", "-", "-", "-"]
    return [
        *row,
        median_share(results, "plan", "ticks_followed", "ticks_seen"),
        median_share(results, "bytes", "fetched_early", "fetched"),
        str(results[0]["stats"]["plan"]["kinds"]),
        f"{support.median(run['measured']['plan']['replans'] for run in results):g}",
    ]


def measure(options: Any, report: Report) -> None:
    for program in irregular.PROGRAMS:
        ample = support.run_worker("irregular.py", job(program), AMPLE)
        live = ample["stats"]["peak"]["live"]
        variants = [STOCK] + [
            Variant(f"{part} %", {"device_memory": f"{live * part // 100 // MIB}MiB"})
            for part in options.share
        ]
        runs = support.interleave(
            variants,
            options.rounds,
            lambda variant, program=program: support.run_worker(
                "irregular.py", job(program), variant
            ),
            quiet_wait_s=options.quiet_wait,
        )
        for variant in variants:
            results = runs[variant.name]
            if any(run["digest"] != ample["digest"] for run in results):
                raise support.BenchmarkFailed(f"{program} at {variant.name}: other bits")
            report.tables[0].rows.append(cells(program, variant, results, runs[STOCK.name]))
            report.data[f"{program} {variant.name}"] = [
                {key: run[key] for key in ("wall_s", "measured")} for run in results
            ]
        report.notes.append(f"{program.replace('_', ' ')}: {support.foreign_note(runs)}")


def main() -> None:
    parser = support.arguments("Rounds whose ops differ.", rounds=3)
    parser.add_argument(
        "--share", type=int, nargs="+", default=[50, 25], help="budgets, in percent"
    )
    options = parser.parse_args()
    report = Report(
        name="changing_ops",
        question="How much is foreseen of programs whose ops differ from round to round?",
        command="python benchmarks/changing_ops.py",
        facts=support.machine_facts(("torch",)),
        tables=[
            Table(
                "A mixture of experts in training, and decoding with growing caches",
                (
                    "program",
                    "budget",
                    "round",
                    "of stock's",
                    "foreseen",
                    "early",
                    "kinds",
                    "plans",
                ),
            )
        ],
    )
    measure(options, report)
    rounds = ", ".join(
        f"{name.replace('_', ' ')} {WARMUP[name]} and {ROUNDS[name]}" for name in ROUNDS
    )
    report.notes.append(
        f"Rounds of warm-up and rounds that count: {rounds}. Budgets are shares of "
        "the peak of live memory. foreseen: share of the ops, early: share of the fetched bytes, "
        "plans: how many were made anew in the rounds that count. Each budget was measured "
        f"{options.rounds} times; figures are medians."
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
