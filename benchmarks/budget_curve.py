# SPDX-License-Identifier: Apache-2.0
"""How much slower does a step get as the budget shrinks, and how far is that from the limit?

The benchmark trains a GPT-2 of 100 M parameters, with few tokens a step and with more, and a CNN:
as stock and under device budgets of 50 and 25 % of the peak of stock's live tensors (taken by
torch's profiler in a run of its own). All but the GPT-2 with more tokens also run with a budget
that holds everything, and at 50 % without plans (the least recently used leaves, and comes back
when an op needs it). For each it shows: the time of a step against stock; the bound, which no
schedule can beat on this disk, and what the simulator predicted; how long the program waited; and
what was moved, and how much of it ahead of use. Losses and the final state must be the same to the
last bit everywhere.

The goals are 97 % of stock's speed at a budget of 50 % and 92 % at 25 %, or, where the bound itself
is slower than stock, 97 % of the bound; and a step within 3 % of the predicted one. At most 1 % of
the fetched bytes may come late without the plan having foreseen it (where an optimizer's step names
more than the budget holds, no schedule has all of it there in time), and at most 1 % in vain.

    python benchmarks/budget_curve.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import training
from reporting import Report, Table
from training import CnnShape, GptShape

import support
from support import MIB, STOCK, Variant, format_bytes

GOALS = {50: 0.97, 25: 0.92}  # of stock's speed
GOAL_OF_BOUND = 0.97
GOAL_OF_PREDICTION = 0.03  # the most by which a step differs from it
GOAL_IN_VAIN = 0.01  # of the bytes that were fetched
GOAL_LATE = 0.01  # likewise, besides those that the plan foresaw


@dataclass(frozen=True)
class Subject:
    """A program and its measurement.

    Plans learn from three steps and are made anew after one, two, four and eight more. The warm-up
    covers these, so that the steps that count follow one plan as a rule.
    """

    shape: training.Shape
    warmup: int
    steps: int
    shares: tuple[int, ...] = (50, 25)
    without_plans: tuple[int, ...] = (50,)
    with_everything: bool = True
    rounds: int = 3  # unless the command line says so


SUBJECTS = {
    "gpt-1k": Subject(GptShape(12, 768, 12, 16384, 256, batch=4), warmup=14, steps=4),
    "gpt-4k": Subject(
        GptShape(12, 768, 12, 16384, 256, batch=16),
        warmup=14,
        steps=3,
        without_plans=(),
        with_everything=False,
        rounds=1,  # a round takes a quarter of an hour, and is far within the goals
    ),
    "cnn": Subject(
        CnnShape(channels=64, blocks=2, pixels=96, batch=32),
        warmup=14,
        steps=4,
        rounds=1,  # likewise
    ),
}
FITS = "all fits"
COLUMNS = (
    "budget",
    "",
    "step",
    "of stock's speed",
    "bound",
    "of the bound's speed",
    "predicted",
    "stall",
    "read",
    "ahead of use",
    "foreseen",
    "wasted",
    "written",
    "dropped clean",
    "peak / budget",
)


def variants(subject: Subject, peak_bytes: int) -> list[Variant]:
    def budget(share: int) -> dict[str, str]:
        return {"device_memory": f"{max(1, peak_bytes * share // 100 // MIB)}MiB"}

    found = [STOCK]
    # Freed blocks of all sizes are kept, so holding everything takes more than the peak.
    if subject.with_everything:
        found.append(Variant(FITS, budget(300)))
    for share in subject.shares:
        found.append(Variant(f"{share} %", budget(share)))
        if share in subject.without_plans:
            found.append(Variant(f"{share} %, reactive", {**budget(share), "plan": "off"}))
    return found


def check_bits(name: str, runs: dict[str, list[dict[str, Any]]]) -> None:
    stock = runs[STOCK.name][0]
    for variant, results in runs.items():
        for run in results:
            if run["loss_bits"] != stock["loss_bits"] or run["digest"] != stock["digest"]:
                raise support.BenchmarkFailed(
                    f"{name} at {variant}: losses or final state differ from stock"
                )


def step_counts(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {SUBJECTS[name].warmup} and {SUBJECTS[name].steps}" for name in names)


def round_counts(options: Any) -> str:
    return ", ".join(
        f"{name} {options.rounds or SUBJECTS[name].rounds}" for name in options.model or SUBJECTS
    )


def a_step(results: list[dict[str, Any]], *path: str) -> float:
    """By how much a counter of the stats grows in a step, as the mean of all measured steps."""
    total = 0.0
    for run in results:
        value = run["measured"]
        for key in path:
            value = value[key]
        total += value / len(run["step_s"])
    return total / len(results)


def speed_of(variant: Variant, runs: dict[str, list[dict[str, Any]]]) -> support.Spread:
    """Stock's step time over this variant's, round by round."""
    ours = [support.median(run["step_s"]) for run in runs[variant.name]]
    stock = [support.median(run["step_s"]) for run in runs[STOCK.name]]
    return support.paired_ratio(stock, ours)


def row(variant: Variant, runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Times are medians over the rounds; bytes and stalls are means over all their steps."""
    results = runs[variant.name]
    step_s = step_s_of(results)
    name, _, mode = variant.name.partition(", ")
    cells = [name, mode, support.format_ns(step_s * 1e9)]
    if variant is STOCK:
        return [*cells, "1", *["-"] * (len(COLUMNS) - 4)]
    speed = speed_of(variant, runs)
    stats = [run["stats"] for run in results]
    budget_bytes = stats[0]["budget"]["device"]
    cells[0] = f"{name} = {format_bytes(budget_bytes)}"
    cells.append(f"{speed.median:.0%} ({speed.low:.0%}-{speed.high:.0%})")
    foreseen = "-"
    if followed_plans(results):
        foreseen = f"{1 - late_as_foreseen(results):.1%}"
        bound_s = bound_of(results, runs)
        predicted_s = predicted_s_of(results)
        cells += [
            support.format_ns(bound_s * 1e9),
            f"{bound_s / step_s:.0%}",
            f"{support.format_ns(predicted_s * 1e9)} ({predicted_s / step_s - 1:+.0%})",
        ]
    else:
        cells += ["-", "-", "-"]
    return [
        *cells,
        support.format_ns(a_step(results, "stall_s") * 1e9),
        format_bytes(a_step(results, "bytes", "disk_read")),
        f"{share_of_fetched(results, 'fetched_early'):.1%}",
        foreseen,
        f"{share_of_fetched(results, 'fetched_wasted'):.1%}",
        format_bytes(a_step(results, "bytes", "disk_written")),
        format_bytes(a_step(results, "bytes", "clean_dropped")),
        f"{max(stat['peak']['device'] for stat in stats) / budget_bytes:.3f}",
    ]


def followed_plans(results: list[dict[str, Any]]) -> bool:
    """Whether every run has learned a plan, and so a bound and a prediction."""
    return all("bound_step_s" in (run["stats"]["plan"] or {}) for run in results)


def share_of_fetched(results: list[dict[str, Any]], what: str) -> float:
    return a_step(results, "bytes", what) / max(1.0, a_step(results, "bytes", "fetched"))


def late_as_foreseen(results: list[dict[str, Any]]) -> float:
    """The share of their reads that the plans followed last foresaw to come late."""
    foreseen = [run["stats"]["plan"]["simulated"] for run in results]
    read = sum(simulated["bytes_read"] for simulated in foreseen)
    return float(sum(simulated["bytes_late"] for simulated in foreseen) / max(1, read))


def bound_of(results: list[dict[str, Any]], runs: dict[str, list[dict[str, Any]]]) -> float:
    """The larger of stock's step and the plan's own bound."""
    return max(
        step_s_of(runs[STOCK.name]),
        support.median(run["stats"]["plan"]["bound_step_s"] for run in results),
    )


def predicted_s_of(results: list[dict[str, Any]]) -> float:
    return support.median(run["stats"]["plan"]["predicted_step_s"] for run in results)


def step_s_of(results: list[dict[str, Any]]) -> float:
    return support.median(support.median(run["step_s"]) for run in results)


def speed_verdict(name: str, share: int, runs: dict[str, list[dict[str, Any]]]) -> str:
    variant = Variant(f"{share} %", {})
    speed = speed_of(variant, runs).median
    results = runs[variant.name]
    bound_s = bound_of(results, runs)
    of_bound = bound_s / step_s_of(results)
    # The bound is an excuse only if it is slower than stock; else it equals stock's own step.
    stock_s = step_s_of(runs[STOCK.name])
    met = speed >= GOALS[share] or (bound_s > stock_s and of_bound >= GOAL_OF_BOUND)
    return (
        f"{name} at {share} %: {speed:.0%} of stock's speed (goal {GOALS[share]:.0%}), "
        f"{of_bound:.0%} of the bound's (goal {GOAL_OF_BOUND:.0%}): {'met' if met else 'missed'}"
    )


def prediction_verdict(name: str, share: int, runs: dict[str, list[dict[str, Any]]]) -> str:
    results = runs[f"{share} %"]
    error = predicted_s_of(results) / step_s_of(results) - 1
    return (
        f"{name} at {share} %: a step was predicted {error:+.1%} (goal {GOAL_OF_PREDICTION:.0%}): "
        f"{'met' if abs(error) <= GOAL_OF_PREDICTION else 'missed'}"
    )


def fetch_verdict(name: str, share: int, runs: dict[str, list[dict[str, Any]]]) -> str:
    results = runs[f"{share} %"]
    early = share_of_fetched(results, "fetched_early")
    late = max(0.0, 1 - early - late_as_foreseen(results))
    wasted = share_of_fetched(results, "fetched_wasted")
    met = late <= GOAL_LATE and wasted <= GOAL_IN_VAIN
    return (
        f"{name} at {share} %: {early:.1%} of the bytes fetched early, {late:.1%} late that was "
        f"not foreseen (goal {GOAL_LATE:.0%}), {wasted:.1%} in vain (goal {GOAL_IN_VAIN:.0%}): "
        f"{'met' if met else 'missed'}"
    )


def verdicts(name: str, runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    found, planned = [], []
    for share in GOALS:
        if followed_plans(runs[f"{share} %"]):
            planned.append(share)
        else:
            found.append(f"{name} at {share} %: a run had no plan: missed")
    for verdict in (speed_verdict, prediction_verdict, fetch_verdict):
        found += [verdict(name, share, runs) for share in planned]
    return found


def measure(name: str, options: Any, report: Report) -> None:
    subject = SUBJECTS[name]
    shape = subject.shape
    peak = support.run_worker("training.py", training.peak_job(shape), STOCK)["peak_bytes"]
    support.progress(f"{name}: live tensors of stock peak at {format_bytes(peak)}")
    job = training.job(shape, warmup=subject.warmup, steps=subject.steps, digest=True)
    chosen = variants(subject, peak)
    runs = support.interleave(
        chosen,
        options.rounds or subject.rounds,
        lambda variant: support.run_worker("training.py", job, variant),
        quiet_wait_s=options.quiet_wait,
    )
    check_bits(name, runs)
    parameters = runs[STOCK.name][0]["parameters"]
    report.tables.append(
        Table(
            f"{training.describe(shape, parameters)}; peak {format_bytes(peak)}",
            COLUMNS,
            [row(variant, runs) for variant in chosen],
        )
    )
    report.notes.append(f"{name}: {support.foreign_note(runs)}")
    report.verdicts += verdicts(name, runs)
    report.data[name] = {
        "peak_bytes": peak,
        "step_s": {variant: [run["step_s"] for run in runs[variant]] for variant in runs},
        "stats": {
            variant.name: [run["measured"] for run in runs[variant.name]] for variant in chosen[1:]
        },
    }


def main() -> None:
    parser = support.arguments("Step time, stalls and traffic against the budget.", rounds=None)
    parser.add_argument(
        "--model", action="append", choices=[*SUBJECTS], help="measure only this one (repeatable)"
    )
    options = parser.parse_args()
    report = Report(
        name="budget_curve",
        question="How much slower does a step get as the budget shrinks, and how far is that from "
        "the limit?",
        command="python benchmarks/budget_curve.py",
        facts=support.machine_facts(("torch", "transformers")),
    )
    for name in options.model or SUBJECTS:
        measure(name, options, report)
    report.notes = [
        f"Rounds: {round_counts(options)}; in each every budget runs once in a process of its own. "
        f"Steps of warm-up and steps that count: {step_counts(options.model or SUBJECTS)}. Times: "
        "median of a process' steps, then of the rounds; ratios are taken round by round (median, "
        "lowest-highest). Bytes and stall: mean of a step.",
        "bound: stock's step, or what no schedule can beat at the speed that fetches had "
        "(learn/bound.h); predicted: the simulator's step for "
        "the plan that was followed, and its error.",
        "ahead of use: what was there before an op asked for it; foreseen: the same in "
        "the simulation of the plan that was followed.",
        "stall: the time in which the program waited for a fetch or for room.",
        "100 % is the most bytes of live tensors in stock (torch's profiler). tencache counts "
        "whole pages and freed blocks that it keeps.",
        "Losses, parameters and optimizer states are identical to stock's to the last bit.",
        *report.notes,
    ]
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
