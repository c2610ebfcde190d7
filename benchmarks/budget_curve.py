# SPDX-License-Identifier: Apache-2.0
"""How much slower does a step get as the budget shrinks, and where does the time go?

Trains a GPT-2 and a CNN as stock and under device budgets of 100, 75, 50, 40 and 25 % of the peak
of stock's live tensors (taken by torch's profiler in a run of its own). For each budget: time of a
step against stock, the time in which the program waited for tencache, what was moved, and the peak
that the budget was to hold. Losses and the final state must be the same to the last bit everywhere.

This is the table that prefetching and a better choice of victims are measured against.

    python benchmarks/budget_curve.py
"""

from __future__ import annotations

from typing import Any

import training
from reporting import Report, Table
from training import CnnShape, GptShape

import support
from support import MIB, STOCK, Variant, format_bytes

SHAPES: dict[str, training.Shape] = {
    "gpt": GptShape(layers=8, width=512, heads=8, vocabulary=8192, sequence=256, batch=4),
    "cnn": CnnShape(channels=32, blocks=2, pixels=96, batch=32),
}
SHARES = (100, 75, 50, 40, 25)
WARMUP, STEPS = 2, 4
COLUMNS = (
    "budget",
    "step",
    "against stock",
    "stall",
    "evicted",
    "of these clean",
    "fetched",
    "written",
    "read",
    "peak / budget",
    "over budget",
)


def variants(peak_bytes: int) -> list[Variant]:
    budgets = {share: max(1, peak_bytes * share // 100 // MIB) for share in SHARES}
    return [
        STOCK,
        *(Variant(f"{share} %", {"device_memory": f"{mib}MiB"}) for share, mib in budgets.items()),
    ]


def check_bits(name: str, runs: dict[str, list[dict[str, Any]]]) -> None:
    stock = runs[STOCK.name][0]
    for variant, results in runs.items():
        for run in results:
            if run["loss_bits"] != stock["loss_bits"] or run["digest"] != stock["digest"]:
                raise support.BenchmarkFailed(
                    f"{name} at {variant}: losses or final state differ from stock"
                )


def row(variant: Variant, runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Times are medians over the rounds; bytes and stalls are means over all their steps."""
    results = runs[variant.name]
    step_s = [support.median(run["step_s"]) for run in results]
    stock_s = [support.median(run["step_s"]) for run in runs[STOCK.name]]
    cells = [variant.name, support.format_ns(support.median(step_s) * 1e9)]
    if variant is STOCK:
        return [*cells, "1", *["-"] * (len(COLUMNS) - 3)]
    ratio = support.paired_ratio(step_s, stock_s)
    step_count = STEPS * len(results)

    def a_step(*path: str) -> float:
        total = 0.0
        for run in results:
            value = run["measured"]
            for key in path:
                value = value[key]
            total += value
        return total / step_count

    stats = results[-1]["stats"]
    budget_bytes = stats["budget"]["device"]
    over = stats["over_budget"]
    return [
        f"{cells[0]} = {format_bytes(budget_bytes)}",
        cells[1],
        f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})",
        support.format_ns(a_step("stall_s") * 1e9),
        *(
            format_bytes(a_step("bytes", name))
            for name in ("evicted", "clean_dropped", "fetched", "disk_written", "disk_read")
        ),
        f"{max(run['stats']['peak']['device'] for run in results) / budget_bytes:.3f}",
        f"{over['events']} ({format_bytes(over['peak_bytes'])})" if over["events"] else "-",
    ]


def measure(name: str, options: Any, report: Report) -> None:
    shape = SHAPES[name]
    peak = support.run_worker("training.py", training.peak_job(shape), STOCK)["peak_bytes"]
    support.progress(f"{name}: live tensors of stock peak at {format_bytes(peak)}")
    job = training.job(shape, warmup=WARMUP, steps=STEPS, digest=True)
    chosen = variants(peak)
    runs = support.interleave(
        chosen,
        options.rounds,
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
    report.data[name] = {
        "peak_bytes": peak,
        "step_s": {variant: [run["step_s"] for run in runs[variant]] for variant in runs},
        "stats": {
            variant.name: [run["measured"] for run in runs[variant.name]] for variant in chosen[1:]
        },
    }


def main() -> None:
    parser = support.arguments("Step time, stalls and traffic against the budget.", rounds=3)
    parser.add_argument("--model", choices=[*SHAPES], help="measure only this one")
    options = parser.parse_args()
    report = Report(
        name="budget_curve",
        question="How much slower does a step get as the budget shrinks, and where does the time "
        "go?",
        command="python benchmarks/budget_curve.py",
        facts=support.machine_facts(("torch", "transformers")),
    )
    for name in [options.model] if options.model else [*SHAPES]:
        measure(name, options, report)
    report.notes = [
        f"{options.rounds} rounds; in each every budget runs once in a process of its own, "
        f"{WARMUP} steps of warm-up, then {STEPS} that count. Times: median of a process' steps, "
        "then of the rounds; ratios are taken round by round (median, lowest-highest). Bytes and "
        "stall: mean of a step.",
        "stall: the time in which the program waited for a fetch or for room.",
        "100 % is the most bytes of live tensors in stock (torch's profiler). tencache counts "
        "whole pages and freed blocks that it keeps, so something may move even there.",
        "Losses, parameters and optimizer states are identical to stock's to the last bit.",
        *report.notes,
    ]
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
