# SPDX-License-Identifier: Apache-2.0
"""How much is foreseen of programs whose ops differ from round to round?

Trains a mixture of experts and decodes with growing caches (irregular.py), with stock PyTorch and
under budgets that are shares of the most bytes that were live at once.

    python benchmarks/changing_ops.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import irregular
from reporting import Report, Table

import support
from support import MIB, STOCK, Variant

WARMUP = {"mixture_of_experts": 8, "decoding": 24}
ROUNDS = {"mixture_of_experts": 24, "decoding": 160}
AMPLE = Variant("ample", {"device_memory": "4GiB"})


def job(program: str) -> dict[str, Any]:
    return {"program": program, "warmup": WARMUP[program], "rounds": ROUNDS[program]}


def share(part: float, whole: float) -> str:
    return f"{part / max(1.0, whole):.1%}"


def cells(program: str, variant: Variant, run: Mapping[str, Any], stock_s: float) -> list[str]:
    per_round = support.format_ns(run["wall_s"] * 1e9 / ROUNDS[program])
    row = [program.replace("_", " "), variant.name, per_round, f"{run['wall_s'] / stock_s:.2f}"]
    if variant.is_stock:
        return [*row, "-", "-", "-", "-"]
    plan, moved = run["measured"]["plan"], run["measured"]["bytes"]
    return [
        *row,
        share(plan["ticks_followed"], plan["ticks_seen"]),
        share(moved["fetched_early"], moved["fetched"]),
        str(run["stats"]["plan"]["kinds"]),
        str(plan["replans"]),
    ]


def measure(options: Any, report: Report) -> None:
    for program in irregular.PROGRAMS:
        ample = support.run_worker("irregular.py", job(program), AMPLE)
        live = ample["stats"]["peak"]["live"]
        variants = [STOCK] + [
            Variant(f"{part} %", {"device_memory": f"{live * part // 100 // MIB}MiB"})
            for part in options.share
        ]
        stock_s = 0.0
        for variant in variants:
            run = support.run_worker("irregular.py", job(program), variant)
            if run["digest"] != ample["digest"]:
                raise support.BenchmarkFailed(f"{program} at {variant.name}: other bits")
            stock_s = run["wall_s"] if variant.is_stock else stock_s
            report.tables[0].rows.append(cells(program, variant, run, stock_s))
            report.data[f"{program} {variant.name}"] = {
                key: run[key] for key in ("wall_s", "measured")
            }


def main() -> None:
    parser = support.arguments("Rounds whose ops differ.", rounds=None)
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
        "plans: how many were made anew in the rounds that count."
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
