# SPDX-License-Identifier: Apache-2.0
"""What does it cost when each step has different sizes?

It trains a GPT-2 on batches of random lengths, as the default collator of Hugging Face pads them,
and on as many tokens in batches of one length, each with stock PyTorch and under budgets that are
shares of the most bytes that live tensors take. It compares how much of a fixed-length plan's
benefit remains when lengths differ: ops foreseen, bytes fetched ahead of use, and time.

    python benchmarks/changing_sizes.py
"""

from __future__ import annotations

import random
from collections.abc import Mapping
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
    """Two programs with as many tokens in the steps that count."""
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


def measure(options: Any, report: Report) -> None:
    programs = shapes()
    jobs = {
        name: training.job(shape, warmup=WARMUP, steps=STEPS) for name, shape in programs.items()
    }
    peak = support.run_worker("training.py", training.peak_job(programs[ONE_LENGTH]), STOCK)
    variants = [STOCK]
    for share in options.share:
        budget = f"{peak['peak_bytes'] * share // 100 // MIB}MiB"
        variants.append(Variant(f"{share} %", {"device_memory": budget}))
    runs = {
        name: support.interleave(
            variants,
            options.rounds,
            lambda variant, job=job: support.run_worker("training.py", job, variant),
            quiet_wait_s=options.quiet_wait,
        )
        for name, job in jobs.items()
    }
    for name, of_program in runs.items():
        for variant in variants:
            results = of_program[variant.name]
            if any(run["loss_bits"] != of_program[STOCK.name][0]["loss_bits"] for run in results):
                raise support.BenchmarkFailed(f"{name} at {variant.name}: losses differ from stock")
            spread = support.paired_ratio(
                [total_s(run) for run in results],
                [total_s(run) for run in runs[ONE_LENGTH][variant.name]],
            )
            cells = [variant.name, name, support.format_ns(total_s(results[0]) * 1e9 / STEPS)]
            cells.append(f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})")
            if variant is not STOCK:
                cells.append(f"{support.median(coverage(run) for run in results):.1%}")
                cells.append(f"{support.median(early_share(run) for run in results):.1%}")
                cells.append(str(results[0]["stats"]["plan"]["kinds"]))
            report.tables[0].rows.append([*cells, *["-"] * (7 - len(cells))])
    report.notes.append(support.foreign_note(runs[RANDOM]))
    report.data["runs"] = {
        name: {
            variant: [
                {
                    "step_s": run["step_s"],
                    "loss_bits": run["loss_bits"],
                    "measured": run["measured"],
                }
                for run in results
            ]
            for variant, results in of_program.items()
        }
        for name, of_program in runs.items()
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
        f"count, {options.rounds} rounds. Budgets are shares of the peak of live tensors with one "
        "length. foreseen: share of the ops, early: share of the fetched bytes."
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
