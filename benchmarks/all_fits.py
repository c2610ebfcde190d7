# SPDX-License-Identifier: Apache-2.0
"""What does tencache cost a program that fits?

Trains a GPT-2 and a CNN for some steps, as stock and under a budget so large that nothing is ever
spilled and the hooks never arm. The goal is at most 1 % more time for a step. For information the
same with hooks armed from the start (`arm_at` next to 0): what watching each op costs.

Every measurement is a process; the variants alternate; the time of a process is the median of its
steps; the ratio is taken round by round. Processes differ by up to 15 % on a virtual machine (where
their pages happen to lie), so many short ones say more than a few long ones, and the verdict tells
twice the standard error of the mean.

    python benchmarks/all_fits.py
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import training
from reporting import Report, Table
from training import CnnShape, GptShape

import support
from support import STOCK, Variant

SHAPES: dict[str, training.Shape] = {
    "gpt": GptShape(layers=8, width=512, heads=8, vocabulary=4096, sequence=128, batch=2),
    "cnn": CnnShape(channels=16, blocks=1, pixels=64, batch=16),
}
BUDGET = "1024GiB"
NOT_ARMED = Variant("tencache", {"device_memory": BUDGET})
ARMED = Variant("tencache, armed", {"device_memory": BUDGET, "arm_at": "0.000001"})
VARIANTS = [STOCK, NOT_ARMED, ARMED]
GOAL_RATIO = 1.01
WARMUP, STEPS = 4, 12


def check(runs: dict[str, list[dict[str, Any]]], name: str) -> None:
    """Raises BenchmarkFailed when losses differ or a variant was not what it should be."""
    bits = {tuple(run["loss_bits"]) for results in runs.values() for run in results}
    if len(bits) != 1:
        raise support.BenchmarkFailed(f"{name}: the losses of the variants differ")
    for variant, armed in ((NOT_ARMED, False), (ARMED, True)):
        for run in runs[variant.name]:
            stats = run["stats"]
            if stats["armed"] != armed or stats["bytes"]["evicted"] != 0:
                raise support.BenchmarkFailed(
                    f"{name}, {variant.name}: armed {stats['armed']}, "
                    f"evicted {stats['bytes']['evicted']} bytes"
                )


def measure(name: str, options: Any, report: Report) -> None:
    shape = SHAPES[name]
    job = training.job(shape, warmup=WARMUP, steps=STEPS)
    variables = {"OMP_NUM_THREADS": str(options.threads)} if options.threads else {}
    runs = support.interleave(
        VARIANTS,
        options.rounds,
        lambda variant: support.run_worker("training.py", job, variant, variables=variables),
        quiet_wait_s=options.quiet_wait,
    )
    check(runs, name)
    step_s, processor_s = (
        {
            variant: [support.median(run[key]) for run in results]
            for variant, results in runs.items()
        }
        for key in ("step_s", "step_processor_s")
    )
    for variant in VARIANTS:
        ratio = support.paired_ratio(step_s[variant.name], step_s[STOCK.name])
        processor = support.paired_ratio(processor_s[variant.name], processor_s[STOCK.name])
        measured = runs[variant.name][0]["measured"]
        report.tables[0].rows.append(
            [
                name if variant is STOCK else "",
                variant.name,
                support.format_ns(support.median(step_s[variant.name]) * 1e9),
                f"{ratio.median:.3f} ({ratio.low:.3f}-{ratio.high:.3f})",
                support.format_ns(support.median(processor_s[variant.name]) * 1e9),
                f"{processor.median:.3f} ({processor.low:.3f}-{processor.high:.3f})",
                f"{measured['ops'] / STEPS:.0f}" if measured and measured["ops"] else "-",
            ]
        )
    report.verdicts.append(verdict(name, step_s[NOT_ARMED.name], step_s[STOCK.name]))
    parameters = runs[STOCK.name][0]["parameters"]
    report.notes.append(
        f"{name}: {training.describe(shape, parameters)}, fused AdamW. "
        + support.foreign_note(runs)
    )
    report.data[name] = {
        "step_s": step_s,
        "processor_s": processor_s,
        "loss_bits": runs[STOCK.name][0]["loss_bits"],
    }


def main() -> None:
    parser = support.arguments("Step time when everything fits, against stock.", rounds=12)
    parser.add_argument("--model", choices=[*SHAPES], help="measure only this one")
    parser.add_argument("--threads", type=int, help="threads of torch's kernels")
    options = parser.parse_args()
    report = Report(
        name="all_fits",
        question="What does tencache cost a program that fits?",
        command="python benchmarks/all_fits.py"
        + (f" --threads {options.threads}" if options.threads else ""),
        facts=support.machine_facts(("torch", "transformers")),
        tables=[
            Table(
                "Median time of a step",
                ("program", "variant", "step", "ratio", "processor time", "ratio", "ops"),
            )
        ],
    )
    for name in [options.model] if options.model else [*SHAPES]:
        measure(name, options, report)
    report.notes += [
        f"{options.rounds} rounds; in each every variant runs once in a process of its own, "
        f"{WARMUP} steps of warm-up, then {STEPS} that count. Ratios to stock are taken round by "
        "round: their median (lowest-highest).",
        "processor time: of all threads of the process. It tells more than the time of a step on "
        "a machine that others use too; threads that wait by spinning count.",
        "The losses of all variants are identical to the last bit.",
    ]
    report.write(options.output)
    print(report.markdown())


def verdict(name: str, ours: list[float], stock: list[float]) -> str:
    """The mean ratio with twice its standard error, and what that says about the goal."""
    logs = [math.log(a / b) for a, b in zip(ours, stock, strict=True)]
    mean = math.exp(statistics.fmean(logs))
    error = 2 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    if mean * (1 + error) <= GOAL_RATIO:
        outcome = "met"
    elif mean * (1 - error) > GOAL_RATIO:
        outcome = "missed"
    else:
        outcome = "within what this machine resolves"
    return (
        f"{name}: {mean:.3f} +- {error:.3f} of the step time of stock "
        f"(goal: at most {GOAL_RATIO}): {outcome}"
    )


if __name__ == "__main__":
    support.run_main(main)
