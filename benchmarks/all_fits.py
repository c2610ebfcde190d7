# SPDX-License-Identifier: Apache-2.0
"""What does tencache cost a program that fits?

Trains a GPT-2 and a CNN for some steps, as stock and under a budget that nothing is ever spilled
from. The hooks are not armed; the goal is at most 0.5 % more time for a step than stock. Then, in
the same process, a moment's large allocation arms them, and as many steps follow in which every op
is watched and the program is learned: at most 3 % more than stock.

Every measurement is a process; the variants alternate; the time of a process is the median of its
steps. Processes differ by up to 15 % on a virtual machine (where their pages happen to lie), so
many short ones say more than a few long ones; what arming adds is seen within one process. Ratios
are means over the rounds, with twice their standard error.

    python benchmarks/all_fits.py
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import training
from reporting import Report, Table
from training import CnnShape, GptShape

import support
from support import GIB, STOCK, Variant

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


def check(runs: dict[str, list[dict[str, Any]]], name: str) -> None:
    """Raises BenchmarkFailed when losses differ or a run was not what it should be."""
    both = WARMUP + STEPS
    bits = {tuple(run["loss_bits"][:both]) for results in runs.values() for run in results}
    if len(bits) != 1:
        raise support.BenchmarkFailed(f"{name}: the losses of the variants differ")
    for run in runs[OURS.name]:
        for armed, stats in ((False, run["stats"]), (True, run["armed_stats"])):
            if stats["armed"] != armed or stats["bytes"]["evicted"] != 0:
                raise support.BenchmarkFailed(
                    f"{name}: armed {stats['armed']} instead of {armed}, "
                    f"evicted {stats['bytes']['evicted']} bytes"
                )


def measure(name: str, options: Any, report: Report) -> None:
    shape = SHAPES[name]
    job = training.job(shape, warmup=WARMUP, steps=STEPS)
    variables = {"OMP_NUM_THREADS": str(options.threads)} if options.threads else {}

    def run(variant: Variant) -> dict[str, Any]:
        arm = {} if variant.is_stock else {"arm_bytes": ARM_BYTES}
        return support.run_worker("training.py", {**job, **arm}, variant, variables=variables)

    runs = support.interleave(VARIANTS, options.rounds, run, quiet_wait_s=options.quiet_wait)
    check(runs, name)
    stock, ours = runs[STOCK.name], runs[OURS.name]
    watched = ours[0]["armed_stats"]["ops"]
    phases = {
        STOCK.name: (stock, "step", "-"),
        OURS.name: (ours, "step", "-"),
        f"{OURS.name}, armed": (ours, "armed_step", f"{watched / (WARMUP + STEPS):.0f}"),
    }
    times = {
        (phase, kind): [support.median(run[f"{prefix}_{kind}"]) for run in results]
        for phase, (results, prefix, _ops) in phases.items()
        for kind in ("s", "processor_s")
    }
    for phase, (_results, _prefix, ops) in phases.items():
        row = [name if phase == STOCK.name else "", phase]
        for kind in ("s", "processor_s"):
            found = times[phase, kind]
            ratio = MeanRatio.of(found, times[STOCK.name, kind])
            row += [support.format_ns(support.median(found) * 1e9), f"{ratio}"]
        report.tables[0].rows.append([*row, ops])
        if phase in GOALS:
            ratio = MeanRatio.of(times[phase, "s"], times[STOCK.name, "s"])
            report.verdicts.append(f"{name}, {ratio.verdict(phase, GOALS[phase])}")
    added = MeanRatio.of(times[f"{OURS.name}, armed", "s"], times[OURS.name, "s"])
    report.notes.append(
        f"{name}: {training.describe(shape, stock[0]['parameters'])}, fused AdamW. Within one "
        f"process, being armed makes a step {added} times as long. {support.foreign_note(runs)}"
    )
    report.data[name] = {
        **{f"{phase}, {kind}": found for (phase, kind), found in times.items()},
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
        f"{WARMUP} steps of warm-up, then {STEPS} that count; tencache then arms and runs as many "
        "again. Times: median of a process' steps, then of the rounds. Ratios to stock: mean over "
        "the rounds +- twice its standard error. ops: that passed the gate in a step.",
        "processor time: of all threads of the process. It tells more than the time of a step on "
        "a machine that others use too; threads that wait by spinning count.",
        "The losses of the steps that both variants run are identical to the last bit.",
    ]
    report.write(options.output)
    print(report.markdown())


@dataclass(frozen=True)
class MeanRatio:
    """The geometric mean of ratios that were taken round by round, and twice its standard error,
    relative."""

    mean: float
    error: float

    @staticmethod
    def of(ours: Sequence[float], reference: Sequence[float]) -> MeanRatio:
        logs = [math.log(a / b) for a, b in zip(ours, reference, strict=True)]
        error = 2 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        return MeanRatio(math.exp(statistics.fmean(logs)), error)

    def __str__(self) -> str:
        return f"{self.mean:.3f} +- {self.mean * self.error:.3f}"

    def verdict(self, phase: str, goal: float) -> str:
        if self.mean * (1 + self.error) <= goal:
            outcome = "met"
        elif self.mean * (1 - self.error) > goal:
            outcome = "missed"
        else:
            outcome = "within what this machine resolves"
        return f"{phase}: {self} of the step time of stock (goal: at most {goal}): {outcome}"


if __name__ == "__main__":
    support.run_main(main)
