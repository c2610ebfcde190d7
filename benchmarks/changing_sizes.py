# SPDX-License-Identifier: Apache-2.0
"""What does it cost when each step has different sizes?

The benchmark trains a GPT-2 on batches of random lengths, as the default collator of Hugging Face
pads them, and on as many tokens in batches of one length, each with stock PyTorch and under budgets
that are shares of the most bytes that live tensors take. It shows how much of a fixed-length plan's
benefit remains when lengths differ: ops foreseen, bytes fetched ahead of use, and time.

    python benchmarks/changing_sizes.py
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import training
from reporting import Report, Table
from training import GptShape

import support
from support import MIB, STOCK, Variant

SHORTEST, LONGEST = 96, 256
WARMUP, STEPS = 16, 14
SEED = 25
SHAPE = GptShape(layers=3, width=512, heads=8, vocabulary=1024, sequence=LONGEST, batch=6)
ONE_LENGTH, RANDOM = "one length", "random lengths"


def shapes() -> dict[str, GptShape]:
    """Two programs with equally many tokens in the steps that count, but for rounding."""
    draw = random.Random(SEED)
    lengths = [draw.randint(SHORTEST, LONGEST) for _ in range(WARMUP + STEPS)]
    mean = round(sum(lengths[WARMUP:]) / STEPS)
    return {
        ONE_LENGTH: replace(SHAPE, lengths=(mean,)),
        RANDOM: replace(SHAPE, lengths=tuple(lengths)),
    }


def early_share(run: Mapping[str, Any]) -> float:
    moved = run["measured"]["bytes"]
    return float(moved["fetched_early"]) / max(1, moved["fetched"])


def coverage(run: Mapping[str, Any]) -> float:
    plan = run["measured"]["plan"]
    return float(plan["ticks_followed"]) / max(1, plan["ticks_seen"])


def total_s(run: Mapping[str, Any]) -> float:
    return float(sum(run["step_s"]))


def cases_of(options: Any, peak_bytes: int) -> dict[str, tuple[str, Variant]]:
    """Each program under each budget, by name; what is compared stands side by side."""
    budgets = [STOCK]
    for share in options.share:
        budget = f"{peak_bytes * share // 100 // MIB}MiB"
        budgets.append(Variant(f"{share} %", {"device_memory": budget}))
    return {
        f"{program}, {budget.name}": (program, budget)
        for budget in budgets
        for program in (ONE_LENGTH, RANDOM)
    }


def row(
    program: str, budget: Variant, runs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[str]:
    results = runs[f"{program}, {budget.name}"]
    seconds = [total_s(run) for run in results]
    of_one_length = [total_s(run) for run in runs[f"{ONE_LENGTH}, {budget.name}"]]
    spread = support.paired_ratio(seconds, of_one_length)
    cells = [budget.name, program, support.format_ns(support.median(seconds) * 1e9 / STEPS)]
    cells.append(f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})")
    if budget.is_stock:
        return [*cells, "-", "-", "-"]
    cells.append(f"{support.median(coverage(run) for run in results):.1%}")
    cells.append(f"{support.median(early_share(run) for run in results):.1%}")
    return [*cells, str(results[0]["stats"]["plan"]["kinds"])]


def measure(options: Any, report: Report) -> None:
    jobs = {
        name: training.job(shape, warmup=WARMUP, steps=STEPS) for name, shape in shapes().items()
    }
    peak = support.run_worker("training.py", training.peak_job(shapes()[ONE_LENGTH]), STOCK)
    cases = cases_of(options, peak["peak_bytes"])
    runs = support.interleave(
        [replace(budget, name=name) for name, (_, budget) in cases.items()],
        options.rounds,
        lambda variant: support.run_worker("training.py", jobs[cases[variant.name][0]], variant),
        quiet_wait_s=options.quiet_wait,
    )
    for name, (program, budget) in cases.items():
        stock = runs[f"{program}, {STOCK.name}"][0]
        if any(run["loss_bits"] != stock["loss_bits"] for run in runs[name]):
            raise support.BenchmarkFailed(f"{name}: losses differ from stock")
        report.tables[0].rows.append(row(program, budget, runs))
    report.notes.append(support.foreign_note(runs))
    report.data["runs"] = {
        name: [{key: run[key] for key in ("step_s", "loss_bits", "measured")} for run in results]
        for name, results in runs.items()
    }


def main() -> None:
    parser = support.arguments("Steps of random lengths against steps of one length.", rounds=3)
    parser.add_argument(
        "--share", type=int, nargs="+", default=[50, 25], help="budgets, in percent"
    )
    options = parser.parse_args()
    report = Report(
        name="changing_sizes",
        question="What does it cost when each step has different sizes?",
        command="python benchmarks/changing_sizes.py",
        facts=support.machine_facts(("torch", "transformers")),
        tables=[
            Table(
                "Steps of one length and of random lengths",
                ("budget", "program", "step", "of one length's", "foreseen", "early", "kinds"),
            )
        ],
    )
    measure(options, report)
    report.notes.append(
        f"Lengths of {SHORTEST} to {LONGEST} tokens, {WARMUP} steps of warm-up and {STEPS} that "
        f"count, {options.rounds} rounds; figures are medians. Budgets are shares of the peak of "
        "live tensors with one length. foreseen: share of the ops, early: share of the fetched "
        "bytes."
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
