# SPDX-License-Identifier: Apache-2.0
"""Does the cuda backend do what its plans say?

The benchmark replays recorded training steps through the whole cuda backend, over the simulated
driver, at 75, 50 and 25 % of the bytes that they need. Tensors are allocated; ops pass the gate and
queue kernels that use every tensor the op names. A kernel that meets a tensor which is not
resident, or has wrong bytes, ends the benchmark with an error. Link and device have the rates of an
H200 (55 GB/s each way, 4.3 TB/s) in slow motion, so that times follow from these rates and not from
this machine. After the plan has been learned, the time of a period is compared with the simulator's
time for that plan, and with the same without a plan, where the least recently used leaves. The
program is built on the first run, in build/benchmarks.

    python benchmarks/cuda_replay.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reporting import Report, Table

import support

TRACES = Path(__file__).parent.parent / "tests" / "support" / "traces"
MODELS = {"GPT-2": "gpt2_step.jsonl", "CNN": "cnn_step.jsonl"}
BUDGETS = (75, 50, 25)  # percent
GOAL_ERROR = 0.05
EARLY_BUDGET, GOAL_EARLY = 50, 0.95

Run = dict[str, Any]
Results = dict[str, dict[int, Run]]


def measure(program: Path, model: str, budget: int, options: Any, *words: str) -> Run:
    support.wait_for_quiet(options.quiet_wait)
    with support.ForeignShare() as foreign:
        command = [program, TRACES / MODELS[model], str(budget), *words]
        run: Run = json.loads(support.run_program(command))
        run["reactive"] = json.loads(support.run_program([*command, "reactive"]))
    run["foreign_share"] = foreign.share
    support.progress(f"{model}, {budget} %: off by {error_of(run):+.1%}")
    return run


def error_of(run: Mapping[str, int]) -> float:
    """How much longer the measured period is than the simulated one."""
    return run["measured_ns"] / run["simulated_ns"] - 1


def milliseconds(ns: float) -> str:
    return f"{ns / 1e6:.0f} ms"


def time_table(results: Results) -> Table:
    table = Table(
        "One period",
        [
            *("model", "budget", "computing alone", "bound", "simulated", "measured", "error"),
            "without plans",
        ],
    )
    for model, by_budget in results.items():
        for budget, run in by_budget.items():
            times = [
                run[f"{key}_ns"] for key in ("trace_compute", "bound", "simulated", "measured")
            ]
            table.rows.append(
                [
                    *(model, f"{budget} %", *map(milliseconds, times), f"{error_of(run):+.1%}"),
                    milliseconds(run["reactive"]["measured_ns"]),
                ]
            )
    return table


def stall_ns(run: Run) -> float:
    return float(run["stall_ns"] / run["measured_periods"])


def stall_error_of(run: Run) -> float:
    """How much longer the device stood still than simulated, as a share of the period."""
    return (stall_ns(run) - run["simulated_stall_ns"]) / float(run["measured_ns"])


def early_shares(run: Run) -> tuple[float, float]:
    """Of all fetched bytes, those that the device did not wait for: measured and simulated."""
    return (
        run["early_fetched_bytes"] / run["fetched_bytes"],
        1 - run["simulated_late_bytes"] / run["simulated_fetched_bytes"],
    )


def stall_table(results: Results) -> Table:
    """How long the device waited in one period, and which bytes it did not wait for."""
    table = Table(
        "Stalls of the device",
        [
            *("model", "budget", "stall", "simulated", "difference of the period"),
            *("bytes early", "simulated"),
        ],
    )
    for model, by_budget in results.items():
        for budget, run in by_budget.items():
            times = (stall_ns(run), run["simulated_stall_ns"])
            table.rows.append(
                [
                    *(model, f"{budget} %", *map(milliseconds, times)),
                    f"{stall_error_of(run):+.1%}",
                    *(f"{share:.1%}" for share in early_shares(run)),
                ]
            )
    return table


def memory_table(results: Results) -> Table:
    table = Table(
        "Memory and moves of the measured periods",
        [
            *("model", "budget", "bytes", "largest op", "peak", "over budget"),
            *("early", "late", "wasted"),
            *("fetched", "simulated", "evicted", "of these without a copy"),
        ],
    )
    for model, by_budget in results.items():
        for budget, run in by_budget.items():
            periods = run["measured_periods"]
            moved = [
                run["fetched_bytes"] / periods,
                run["simulated_fetched_bytes"],
                run["evicted_bytes"] / periods,
                run["dropped_bytes"] / periods,
            ]
            table.rows.append(
                [
                    model,
                    f"{budget} %",
                    support.format_bytes(run["budget_bytes"]),
                    support.format_bytes(run["largest_op_bytes"]),
                    support.format_bytes(run["peak_bytes"]),
                    *(str(run[key]) for key in ("over_budget_events", "early", "late", "wasted")),
                    *(support.format_bytes(int(count)) for count in moved),
                ]
            )
    return table


def verdict(results: Results) -> str:
    errors = [abs(error_of(run)) for by_budget in results.values() for run in by_budget.values()]
    is_met = "met" if max(errors) <= GOAL_ERROR else "missed"
    excess = max(
        run["peak_bytes"] - run["budget_bytes"]
        for by_budget in results.values()
        for run in by_budget.values()
    )
    peak = (
        "No peak is above its budget"
        if excess <= 0
        else f"A peak is {support.format_bytes(excess)} above its budget"
    )
    stalls = max(
        abs(stall_error_of(run)) for by_budget in results.values() for run in by_budget.values()
    )
    is_stall_met = "met" if stalls <= GOAL_ERROR else "missed"
    return (
        f"A period takes what the simulator says within {max(errors):.1%}; goal of "
        f"{GOAL_ERROR:.0%} {is_met}. The device stands still for what it says within "
        f"{stalls:.1%} of the period; goal of {GOAL_ERROR:.0%} {is_stall_met}. {peak}. No kernel "
        "met a tensor that was not resident."
    )


def early_verdict(results: Results) -> str:
    """The share that comes early, of what the link can bring early, as the simulation shows it."""
    ratios = []
    for by_budget in results.values():
        measured, simulated = early_shares(by_budget[EARLY_BUDGET])
        ratios.append(measured / simulated)
    is_met = "met" if min(ratios) >= GOAL_EARLY else "missed"
    listed = " and ".join(
        f"{ratio:.1%} ({model})" for model, ratio in zip(results, ratios, strict=True)
    )
    return (
        f"At {EARLY_BUDGET} %, {listed} of the bytes that the link can bring early are early; goal "
        f"of {GOAL_EARLY:.0%} {is_met}."
    )


def main() -> None:
    parser = support.arguments("The cuda backend against the simulator of plans.", rounds=1)
    options = parser.parse_args()
    program = support.build_program("cuda_replay")
    results: Results = {
        model: {budget: measure(program, model, budget, options) for budget in BUDGETS}
        for model in MODELS
    }
    report = Report(
        name="cuda_replay",
        question="Does the cuda backend do what its plans say?",
        command="python benchmarks/cuda_replay.py",
        facts=support.machine_facts(),
        verdicts=[verdict(results), early_verdict(results)],
        tables=[time_table(results), stall_table(results), memory_table(results)],
        notes=[
            "Budgets are shares of the most bytes that exist at once, and no less than the largest "
            "op uses and the headroom besides. Rates are those of an H200, 55 GB/s each way and "
            "4.3 TB/s on the device, all of them 500 times slower. The traces are of small models, "
            "recorded on the cpu backend; their op times are scaled so that computing alone takes "
            "as long as the link takes for twice those bytes.",
            "Measured: the median of eight periods, from the first op that is queued to the "
            "moment at which the stream is done, after the plan was renewed for the last time.",
            "Stall: what lies between two events around each wait, in the stream of the op. Late "
            "is what the device waited for, early the rest: also what was on its way when the "
            "host, which is ahead, queued the op that needs it. Here as there, a wait of less than "
            "10 us counts as none, since two events with nothing between them lie so far apart on "
            "a GPU; in slow motion that is 5 ms.",
            "Without plans: the median of three periods after two; the least recently used leaves, "
            "and comes back when an op needs it.",
            "Simulated: what the simulator says of the plan that is followed, with the op times "
            "and the link's speed as the engine has measured them. Bytes are of one period.",
        ],
        data={
            model: {str(budget): run for budget, run in by_budget.items()}
            for model, by_budget in results.items()
        },
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
