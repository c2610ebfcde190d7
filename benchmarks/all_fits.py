# SPDX-License-Identifier: Apache-2.0
"""What does tencache cost a program that fits?

The benchmark trains a GPT-2 and a CNN for some steps, as stock and under a budget that never
spills. The hooks are not armed; the goal is at most 0.5 % more time for a step than stock. Then, in
the same processes, a brief large allocation arms them. As many steps follow, in which tencache
watches every op and learns the program; the goal is at most 3 % more than stock's same steps.

Every measurement is a process; the variants alternate; the time of a process is the median of its
steps. Processes differ by up to 15 % on a virtual machine (where their pages happen to lie), so
many short ones tell more than a few long ones. Ratios are means over the rounds, with twice their
standard error.

    python benchmarks/all_fits.py
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import training
from reporting import Report, Table
from training import CnnShape, GptShape

import support
from support import GIB, STOCK, MeanRatio, Variant

SHAPES: dict[str, training.Shape] = {
    "gpt": GptShape(layers=8, width=512, heads=8, vocabulary=4096, sequence=128, batch=2),
    "cnn": CnnShape(channels=16, blocks=1, pixels=64, batch=16),
}
# The programs stay far below the mark at which hooks arm, 4 GiB, until they pass it on purpose.
OURS = Variant("tencache", {"device_memory": 8 * GIB, "arm_at": "0.5"})
ARM_BYTES = 5 * GIB
VARIANTS = [STOCK, OURS]
GOALS = {"tencache": 1.005, "tencache, armed": 1.03}
WARMUP, STEPS = 4, 12


def first_difference(bits: Sequence[str], of_others: Sequence[str]) -> int:
    """The first step at which the losses of two runs differ."""
    pairs = zip(bits, of_others, strict=True)
    return next(step for step, (one, other) in enumerate(pairs) if one != other)


def check_losses(runs: dict[str, list[dict[str, Any]]], name: str) -> None:
    """Raises BenchmarkFailed if losses differ; names the runs that differ from the majority."""
    losses = {
        f"{variant} in round {number}": tuple(run["loss_bits"])
        for variant, results in runs.items()
        for number, run in enumerate(results, 1)
    }
    [(common, _)] = collections.Counter(losses.values()).most_common(1)
    differing = [
        f"{run} from step {first_difference(bits, common)} on"
        for run, bits in losses.items()
        if bits != common
    ]
    if differing:
        raise support.BenchmarkFailed(f"{name}: the losses differ: {', '.join(differing)}")


def check(runs: dict[str, list[dict[str, Any]]], name: str) -> None:
    """Raises BenchmarkFailed if losses differ or a run was armed or evicted unexpectedly."""
    check_losses(runs, name)
    for run in runs[OURS.name]:
        for armed, stats in ((False, run["stats"]), (True, run["armed_stats"])):
            if stats["armed"] != armed or stats["bytes"]["evicted"] != 0:
                raise support.BenchmarkFailed(
                    f"{name}: armed {stats['armed']} instead of {armed}, "
                    f"evicted {stats['bytes']['evicted']} bytes"
                )


def measure(name: str, options: Any, report: Report) -> None:
    shape = SHAPES[name]
    # Stock, too, allocates ARM_BYTES for a moment, and runs as many steps afterwards.
    job = {**training.job(shape, warmup=WARMUP, steps=STEPS), "arm_bytes": ARM_BYTES}
    variables = {"OMP_NUM_THREADS": str(options.threads)} if options.threads else {}

    runs = support.interleave(
        VARIANTS,
        options.rounds,
        lambda variant: support.run_worker("training.py", job, variant, variables=variables),
        quiet_wait_s=options.quiet_wait,
    )
    check(runs, name)
    stock, ours = runs[STOCK.name], runs[OURS.name]
    watched = ours[0]["armed_stats"]["ops"]
    # Each phase is compared with stock's steps of the same numbers.
    phases = (
        ("stock", stock, "", "-"),
        ("tencache", ours, "", "-"),
        ("tencache, armed", ours, "armed_", f"{watched / (WARMUP + STEPS):.0f}"),
    )
    times: dict[str, list[float]] = {}
    for phase, results, prefix, ops in phases:
        row = ["" if times else name, phase]
        for kind in ("step_s", "step_processor_s"):
            found, reference = (
                [support.median(run[prefix + kind]) for run in of] for of in (results, stock)
            )
            ratio = MeanRatio.of(found, reference)
            row += [support.format_ns(support.median(found) * 1e9), f"{ratio}"]
            times[f"{phase}, {kind}"] = found
            if phase in GOALS and kind == "step_s":
                report.verdicts.append(f"{name}, {ratio.verdict(phase, GOALS[phase])}")
        report.tables[0].rows.append([*row, ops])
    report.notes.append(
        f"{name}: {training.describe(shape, stock[0]['parameters'])}, fused AdamW. "
        + support.foreign_note(runs)
    )
    report.data[name] = {
        **times,
        "loss_bits": stock[0]["loss_bits"],
    }


def main() -> None:
    parser = support.arguments("Step time when everything fits, against stock.", rounds=20)
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
                "Time of a step",
                ("program", "variant", "step", "ratio", "processor time", "ratio", "ops"),
            )
        ],
    )
    for name in [options.model] if options.model else [*SHAPES]:
        measure(name, options, report)
    report.notes += [
        f"{options.rounds} rounds; in each both variants run once in a process of their own, "
        f"{WARMUP} steps of warm-up, then {STEPS} that count; tencache then arms, and both run as "
        "many again. Times: median of a process' steps, then of the rounds. Ratios to stock: mean "
        "over the rounds +- twice its standard error. ops: that passed the gate in a step.",
        "processor time: of all threads of the process. It tells more than the time of a step on "
        "a machine that others use too; threads that wait by spinning count.",
        "The losses of both variants are identical to the last bit.",
    ]
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
