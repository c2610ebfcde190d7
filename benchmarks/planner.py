# SPDX-License-Identifier: Apache-2.0
"""How long does planning take, and how good is the plan?

The benchmark plans synthetic training steps of Llama-like models (AdamW with fp32 states,
micro-batches, a multi-tensor optimizer) for budgets of 75, 50 and 25 % of the most bytes that exist
at once, over links of 10 GB/s each way. Beside the time it shows how long the planned step would
take by the simulator: against computing alone, against a bound that no schedule can beat, and
against the same machine without a plan, which evicts the tensor needed last or used longest ago. A
plan slower than one of those two ends the benchmark with an error. So does a plan that is faster
than the bound.

Then it plans published traces for a published machine, and shows the published schedules' steps
beside ours (benchmarks/traces).

Every measurement is a process of its own that plans once, on one core. The program is built on the
first run, in build/benchmarks.

    python benchmarks/planner.py
"""

from __future__ import annotations

import json
import lzma
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reporting import Report, Table

import support
from support import Spread

BUDGETS = (75, 50, 25)  # percent


@dataclass(frozen=True)
class Model:
    """A shape of trace; `goal_s` is how long planning may take."""

    name: str
    flags: Sequence[str]
    goal_s: float | None = None


SMALL_FLAGS = ("--layers=32", "--hidden=4096", "--feed-forward=14336")
MODELS = (
    Model("8B, 32 layers", (*SMALL_FLAGS, "--micro-batches=2"), 1.0),
    Model(
        "70B, 80 layers",
        ("--layers=80", "--hidden=8192", "--feed-forward=28672", "--micro-batches=2"),
        5.0,
    ),
    # This one shows how time and memory grow with the trace.
    Model("8B, 8 micro-batches", (*SMALL_FLAGS, "--micro-batches=8")),
)

TRACES = Path(__file__).parent / "traces"
# The machine of G10 (MICRO 2023): 40 GiB on the device, PCIe 3.0 x16, a disk of 3.2 GB/s.
G10_FLAGS = (
    f"--budget-bytes={40 << 30}",
    "--link-bytes-per-s=15754000000",
    "--disk-bytes-per-s=3151000000",
)


@dataclass(frozen=True)
class Workload:
    """A trace, the host memory below its device, and published steps over computing alone."""

    trace: str
    host_gib: int
    published: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.trace}, host {self.host_gib} GiB"


SCHEDULES = ("LRU", "FlashNeuron", "DeepUM", "G10-host", "G10")
WORKLOADS = tuple(
    Workload(trace, host_gib, dict(zip(schedules, steps.split(), strict=True)))
    for trace, host_gib, schedules, steps in (
        ("BERT_Base-256", 128, SCHEDULES, "2.697 1.402 1.257 1.097 1.004"),
        ("Inceptionv3-1536", 128, SCHEDULES, "4.707 fails 1.485 1.095 1.023"),
        ("Inceptionv3-1536", 64, ("G10",), "1.023"),
        ("Inceptionv3-1536", 32, ("G10",), "1.178"),
        ("ResNet152-1280", 128, SCHEDULES, "4.165 1.557 1.173 1.028 1.016"),
        ("ResNet152-1280", 64, ("G10",), "1.278"),
    )
)

Runs = list[dict[str, Any]]


# ---- Measurements ------------------------------------------------------------------------------


def measure(program: Path, name: str, flags: Sequence[str], options: Any) -> Runs:
    runs: Runs = []
    for number in range(options.rounds):
        support.wait_for_quiet(options.quiet_wait)
        load = os.getloadavg()[0]
        with support.ForeignShare() as foreign:
            run = json.loads(support.run_program([program, *flags]))
        check(name, run)
        runs.append({**run, "foreign_share": foreign.share, "load_before": load})
        support.progress(
            f"{name}  round {number + 1}/{options.rounds}: "
            f"{run['planning_s']:.3f} s, load before {load:.1f}"
        )
    return runs


def measure_traces(program: Path, options: Any) -> dict[str, Runs]:
    results: dict[str, Runs] = {}
    with tempfile.TemporaryDirectory() as directory:
        for workload in WORKLOADS:
            period = Path(directory) / f"{workload.trace}.jsonl"
            period.write_bytes(lzma.decompress((TRACES / f"{period.name}.xz").read_bytes()))
            flags = (f"--period={period}", f"--host-bytes={workload.host_gib << 30}", *G10_FLAGS)
            results[workload.name] = measure(program, workload.name, flags, options)
    return results


def check(name: str, run: Mapping[str, int]) -> None:
    """A plan must fit the budget and be no slower than having none; no plan beats the bound."""
    if run["over_budget_bytes"] > 0:
        raise support.BenchmarkFailed(f"{name}: the plan exceeds the budget")
    for rule in ("belady", "lru"):
        if run["step_ns"] > run[f"{rule}_step_ns"]:
            raise support.BenchmarkFailed(f"{name}: the plan loses to {rule}")
    if run["step_ns"] < run["bound_ns"]:
        raise support.BenchmarkFailed(f"{name}: the plan beats the bound, which is wrong then")


# ---- The report --------------------------------------------------------------------------------


def planning_s(runs: Runs) -> Spread:
    return Spread.of([run["planning_s"] for run in runs])


def time_table(results: Mapping[str, Mapping[int, Runs]]) -> Table:
    table = Table(
        "Planning",
        ["model", "budget", "ops", "tensors", "gaps", "seconds", "range", "memory"],
    )
    for name, by_budget in results.items():
        for budget, runs in by_budget.items():
            spread = planning_s(runs)
            table.rows.append(
                [
                    name,
                    f"{budget} %",
                    *(str(runs[0][key]) for key in ("ops", "tensors", "gaps")),
                    f"{spread.median:.2f}",
                    f"{spread.low:.2f} to {spread.high:.2f}",
                    support.format_bytes(max(run["rss_growth_bytes"] for run in runs)),
                ]
            )
    return table


def quality_table(results: Mapping[str, Mapping[int, Runs]]) -> Table:
    table = Table(
        "Steps, by the simulator",
        [
            "model",
            "budget",
            *("step s", "reading s", "writing s"),
            *("/ compute", "/ bound", "Belady / bound", "LRU / bound"),
        ],
    )
    for name, by_budget in results.items():
        for budget, runs in by_budget.items():
            run = runs[0]
            table.rows.append(
                [
                    name,
                    f"{budget} %",
                    *(f"{run[key] / 1e9:.2f}" for key in ("step_ns", "read_ns", "write_ns")),
                    f"{run['step_ns'] / run['compute_ns']:.2f}",
                    *(
                        f"{run[key] / run['bound_ns']:.2f}"
                        for key in ("step_ns", "belady_step_ns", "lru_step_ns")
                    ),
                ]
            )
    return table


def trace_table(results: Mapping[str, Runs]) -> Table:
    table = Table(
        "Published traces on G10's machine: steps over computing alone",
        ["trace", "host GiB", *SCHEDULES, "tencache", "/ bound", "disk read", "written", "seconds"],
    )
    for workload in WORKLOADS:
        run = results[workload.name][0]
        table.rows.append(
            [
                workload.trace,
                str(workload.host_gib),
                *(workload.published.get(schedule, "-") for schedule in SCHEDULES),
                f"{run['step_ns'] / run['compute_ns']:.3f}",
                f"{run['step_ns'] / run['bound_ns']:.3f}",
                *(support.format_bytes(run[f"disk_bytes_{way}"]) for way in ("read", "written")),
                f"{planning_s(results[workload.name]).median:.2f}",
            ]
        )
    return table


def verdicts(results: Mapping[str, Mapping[int, Runs]]) -> list[str]:
    lines = []
    for model in MODELS:
        if model.goal_s is None:
            continue
        slowest = max(planning_s(runs).median for runs in results[model.name].values())
        outcome = "reached" if slowest <= model.goal_s else "missed"
        lines.append(
            f"Goal of {model.goal_s:g} s for {model.name} {outcome}: {slowest:.2f} s at most."
        )
    return [*lines, "No plan is slower than evicting by next use (Belady) or by last use (LRU)."]


def main() -> None:
    options = support.arguments("Planning time and quality.", rounds=3).parse_args()
    program = support.build_program("planner")
    facts = support.machine_facts(())
    # Use one core for every measurement; child processes inherit it.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    results = {
        model.name: {
            budget: measure(
                program,
                f"{model.name}, {budget} %",
                (*model.flags, f"--budget-percent={budget}"),
                options,
            )
            for budget in BUDGETS
        }
        for model in MODELS
    }
    by_trace = measure_traces(program, options)
    by_case = {
        f"{name}, {budget} %": runs
        for name, by_budget in results.items()
        for budget, runs in by_budget.items()
    } | by_trace
    loads = [run["load_before"] for runs in by_case.values() for run in runs]
    report = Report(
        "planner",
        "How long does planning take, and how good is the plan? Synthetic training steps of "
        "Llama-like models, budgets in percent of the most bytes that exist at once, links of "
        "10 GB/s each way. And published traces, on the machine that they were published for.",
        "python benchmarks/planner.py",
        facts,
        verdicts=verdicts(results),
        tables=[time_table(results), quality_table(results), trace_table(by_trace)],
        notes=[
            f"Seconds of processor time on one core, median of {options.rounds}: planning has one "
            "thread and never waits. Memory is the growth of the "
            "resident set while planning, the plan included.",
            "Published planning times of TERAIO, on its authors' machine and traces: 31.2 s for "
            "Llama3-8B, 396.6 s for a 70B model.",
            "Reading and writing: how long each link is busy. The bound counts what has to be "
            "read and written in each part of the step (allocator/learn/bound.h). It lets reading "
            "begin before there is room.",
            "Published steps: those of the schedules that the paper of G10 compares, on the same "
            "traces.",
            f"Load of the machine before a measurement: median {Spread.of(loads).median:.1f}, at "
            f"most {max(loads):.1f}.",
            support.foreign_note(by_case),
        ],
        data={"runs": by_case},
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
