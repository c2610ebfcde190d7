# SPDX-License-Identifier: Apache-2.0
"""Is tencache faster than Linux swap, with the same memory and the same disk?

A GPT-2 is trained in a memory cgroup whose limit is half of what stock needs. Stock may swap to a
file. tencache may not swap, and gets a device budget that keeps the whole process below the same
limit: the limit, less what Python, torch and the program need beside tensors (both measured before,
in a group without a limit), less 96 MiB for moving (copy ring, page tables, rings). Its spill file
and the swap file are in the same directory. The warm-up is long enough for tencache to learn the
step and follow a plan. The losses of all runs must be the same to the last bit. The goal is a step
in at most a quarter of swap's time.

The benchmark needs root, a memory cgroup and swapon; if one is missing it says why and ends with
status 77.

    python benchmarks/swap.py
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import training
from cgroup import MemoryCgroup, SwapFile, Unavailable
from reporting import Report, Table
from training import GptShape

import support
from support import MIB, STOCK, Variant, format_bytes

SHAPE = GptShape(layers=12, width=768, heads=12, vocabulary=16384, sequence=256, batch=2)
WARMUP = 10
GOAL_RATIO = 4.0
SKIPPED_STATUS = 77
ROOMY = "1024GiB"
MOVING_BYTES = 96 * MIB


def run_in_group(
    group: MemoryCgroup, variant: Variant, job: dict[str, Any], variables: dict[str, str]
) -> dict[str, Any]:
    result = support.run_worker(
        "training.py",
        {**job, "usage_file": str(group.usage_file)},
        variant,
        prefix=group.prefix(),
        variables=variables,
    )
    result["group_peak_bytes"] = group.peak_bytes()
    return result


def measure_needs(
    job: dict[str, Any], variables: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Runs stock and tencache without limits, and measures what tencache needs beside tensors."""
    # Discard the first run: it may read the libraries into its group's page cache.
    with MemoryCgroup() as group:
        run_in_group(group, STOCK, {**job, "steps": 1}, variables)
    with MemoryCgroup() as group:
        stock = run_in_group(group, STOCK, job, variables)
    with MemoryCgroup() as group:
        ours = run_in_group(group, Variant("roomy", {"device_memory": ROOMY}), job, variables)
    outside_bytes = ours["group_peak_bytes"] - ours["stats"]["peak"]["device"]
    return stock, ours, outside_bytes


@dataclass
class Comparison:
    """The measurements by the name of the run, and the settings of the runs."""

    runs: dict[str, list[dict[str, Any]]]
    limit_bytes: int
    budget_bytes: int
    outside_bytes: int  # what the process needs beside tensors

    @property
    def need_bytes(self) -> int:
        need: int = self.runs["stock, no limit"][0]["group_peak_bytes"]
        return need

    def steps_s(self, name: str) -> list[float]:
        return [step for run in self.runs[name] for step in run["step_s"]]

    def step_s(self, name: str) -> float:
        return support.median(self.steps_s(name))


def compare(options: Any) -> Comparison:
    directory: Path = options.directory
    job = training.job(SHAPE, warmup=WARMUP, steps=options.steps, digest=True)
    # Everything else that a run may write goes to the same disk.
    variables = {"TMPDIR": str(directory)}
    support.wait_for_quiet(options.quiet_wait)
    stock, roomy, outside_bytes = measure_needs(job, variables)
    need_bytes = stock["group_peak_bytes"]
    limit_bytes = int(need_bytes * options.share) // MIB * MIB
    budget_bytes = (limit_bytes - outside_bytes - MOVING_BYTES) // MIB * MIB
    support.progress(
        f"stock needs {format_bytes(need_bytes)}; limit {format_bytes(limit_bytes)}, of it "
        f"{format_bytes(outside_bytes)} beside tensors; budget {format_bytes(budget_bytes)}"
    )
    if budget_bytes <= 0:
        raise support.BenchmarkFailed("the limit leaves no budget; raise --share")
    ours = Variant("tencache", {"device_memory": budget_bytes, "spill_dir": directory})

    def measure(variant: Variant) -> dict[str, Any]:
        with MemoryCgroup(limit_bytes, may_swap=variant.is_stock) as group:
            return run_in_group(group, variant, job, variables)

    with SwapFile(directory, 2 * need_bytes // MIB * MIB):
        runs = support.interleave(
            [STOCK, ours], options.rounds, measure, quiet_wait_s=options.quiet_wait
        )
    everything = {"stock, no limit": [stock], "tencache, no limit": [roomy]}
    everything |= {"stock, swap": runs["stock"], "tencache": runs["tencache"]}
    all_runs = [run for results in everything.values() for run in results]
    bits = {(tuple(run["loss_bits"]), run["digest"]) for run in all_runs}
    if len(bits) != 1:
        raise support.BenchmarkFailed("losses or final states differ between the runs")
    return Comparison(everything, limit_bytes, budget_bytes, outside_bytes)


def times_table(found: Comparison) -> Table:
    in_memory_s, swap_s = found.step_s("stock, no limit"), found.step_s("stock, swap")
    table = Table(
        "Time of a step",
        ["run", "median", "lowest", "highest", "against stock", "against swap", "peak of group"],
    )
    for name, runs in found.runs.items():
        steps_s, middle = found.steps_s(name), found.step_s(name)
        table.rows.append(
            [
                name,
                *(f"{value:.2f} s" for value in (middle, min(steps_s), max(steps_s))),
                f"{middle / in_memory_s:.2f}",
                f"{middle / swap_s:.3f}",
                format_bytes(max(run["group_peak_bytes"] for run in runs)),
            ]
        )
    return table


def moved_table(found: Comparison, steps: int) -> Table:
    table = Table(
        "What tencache moved in a step",
        ["run", "stall", "evicted", "of these clean", "fetched", "written", "read", "over budget"],
    )
    for number, run in enumerate(found.runs["tencache"], start=1):
        moved = run["measured"]["bytes"]
        names = ("evicted", "clean_dropped", "fetched", "disk_written", "disk_read")
        over = run["stats"]["over_budget"]["events"]
        table.rows.append(
            [
                f"{number}",
                f"{run['measured']['stall_s'] / steps:.2f} s",
                *(format_bytes(moved[name] / steps) for name in names),
                f"{over} times" if over else "never",
            ]
        )
    return table


def make_report(found: Comparison, options: Any) -> Report:
    gain = found.step_s("stock, swap") / found.step_s("tencache")
    return Report(
        name="swap",
        question="Is tencache faster than Linux swap, with the same memory and the same disk?",
        command="python benchmarks/swap.py",
        facts=support.machine_facts(("torch", "transformers")),
        verdicts=[
            f"{gain:.2f} times as fast as swap (goal: at least {GOAL_RATIO:.0f}): "
            + ("met" if gain >= GOAL_RATIO else "missed")
        ],
        tables=[times_table(found), moved_table(found, options.steps)],
        notes=[
            training.describe(SHAPE, found.runs["tencache"][0]["parameters"]) + ", fused AdamW.",
            f"Stock needs {format_bytes(found.need_bytes)}, the limit of the cgroup is "
            f"{format_bytes(found.limit_bytes)}. tencache may not swap; of the limit "
            f"{format_bytes(found.outside_bytes)} are what the process needs beside tensors, and "
            f"{format_bytes(found.budget_bytes)} are its device budget.",
            f"{options.rounds} alternating runs of {options.steps} steps after {WARMUP} of "
            "warm-up; the runs without a limit once, before them.",
            "Losses, parameters and optimizer states of all runs are identical to the last bit.",
            support.foreign_note({n: r for n, r in found.runs.items() if "no limit" not in n}),
        ],
        data={
            "step_s": {name: [run["step_s"] for run in runs] for name, runs in found.runs.items()},
            "limit_bytes": found.limit_bytes,
            "budget_bytes": found.budget_bytes,
            "need_bytes": found.need_bytes,
            "loss_bits": found.runs["tencache"][0]["loss_bits"],
            "tencache_stats": [run["measured"] for run in found.runs["tencache"]],
        },
    )


def main() -> None:
    parser = support.arguments("tencache against Linux swap under one memory limit.", rounds=2)
    parser.add_argument("--steps", type=int, default=3, help="steps of a run that count")
    parser.add_argument(
        "--share", type=float, default=0.5, help="the limit, as a share of what stock needs"
    )
    parser.add_argument(
        "--directory", type=Path, default=Path("/var/tmp"), help="where both files go"
    )
    options = parser.parse_args()
    # SIGTERM unwinds the stack, too, so that swap is switched off, and files and groups go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report = make_report(compare(options), options)
    except Unavailable as error:
        support.progress(f"skipped: {error}")
        sys.exit(SKIPPED_STATUS)
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
