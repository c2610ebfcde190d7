# SPDX-License-Identifier: Apache-2.0
"""What does it cost to allocate a block that was freed before, and to free it again?

The benchmark gives two answers, both against stock, at seven sizes, without touching the memory and
with one byte written to each page. The first is what a program sees: `torch.empty(n)` in Python,
dropped at once, in separate processes that alternate. The second is the time of the allocator
itself, which Python's own microsecond a call hides: the program allocate_core.cpp compares the C
ABI with posix_memalign.

The program is built on the first run, in build/benchmarks.

    python benchmarks/allocate.py
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reporting import Report, Table

import support
from support import GIB, KIB, MIB, STOCK, Spread, Variant

SIZES = (64, 4 * KIB, 256 * KIB, MIB, 4 * MIB, 64 * MIB, GIB)
WAYS = ("untouched", "touched")
# A batch lasts BATCH_S, so long that the clock and a stray interrupt do not matter.
BATCH_S = 0.2
PAIRS_MIN = 3
PAGE_FLOATS = 4096 // 4
BUDGET = "64GiB"


# ---- The worker --------------------------------------------------------------------------------


def untouched(count: int, floats: int) -> None:
    from torch import empty

    for _ in itertools.repeat(None, count):
        empty(floats)


def touched(count: int, floats: int) -> None:
    from torch import empty

    for _ in itertools.repeat(None, count):
        empty(floats)[::PAGE_FLOATS].zero_()


def ns_per_pair(way: Callable[[int, int], None], floats: int) -> float:
    """Finds how many pairs fill BATCH_S, then times that many."""
    count = PAIRS_MIN
    way(count, floats)
    while True:
        begin_ns = time.perf_counter_ns()
        way(count, floats)
        taken_ns = time.perf_counter_ns() - begin_ns
        if taken_ns >= BATCH_S * 1e9:
            return taken_ns / count
        # Try a little more than seems needed, so that the next batch is nearly always the last.
        count = int(count * min(1000, max(2, 1.2 * BATCH_S * 1e9 / max(taken_ns, 1))))


def work(request: Mapping[str, Any]) -> None:
    import torch

    torch.set_num_threads(1)
    ways = {"untouched": untouched, "touched": touched}
    support.answer(
        {way: [ns_per_pair(ways[way], size // 4) for size in request["sizes"]] for way in WAYS}
    )


# ---- The core's program ------------------------------------------------------------------------


def run_core_program(program: Path, rounds: int) -> dict[str, dict[str, list[list[float]]]]:
    """Nanoseconds by variant, way, size and repetition."""
    command = [
        program,
        f"--benchmark_repetitions={rounds}",
        "--benchmark_enable_random_interleaving=true",
        "--benchmark_min_time=0.1",
        "--benchmark_format=json",
    ]
    results: dict[str, dict[str, list[list[float]]]] = {
        variant: {way: [[] for _ in SIZES] for way in WAYS} for variant in ("stock", "tencache")
    }
    for run in json.loads(support.run_program(command))["benchmarks"]:
        if run["run_type"] != "iteration":
            continue
        variant, way, size = run["run_name"].split("/")
        # Processor time is all the time: the loop has one thread and never waits.
        results[variant][way][SIZES.index(int(size))].append(run["cpu_time"])
    return results


# ---- The benchmark -----------------------------------------------------------------------------


def table(title: str, times: Mapping[str, Mapping[str, list[list[float]]]]) -> Table:
    result = Table(
        title,
        ["size", *(f"{way}: {what}" for way in WAYS for what in ("stock", "tencache", "ratio"))],
    )
    for index, size in enumerate(SIZES):
        cells = [support.format_bytes(size)]
        for way in WAYS:
            stock = Spread.of(times["stock"][way][index]).median
            ours = Spread.of(times["tencache"][way][index]).median
            cells += [support.format_ns(stock), support.format_ns(ours), f"{ours / stock:.3g}"]
        result.rows.append(cells)
    return result


def main() -> None:
    options = support.arguments("Time of allocate + free against stock.", rounds=7).parse_args()
    program = support.build_program("allocate_core")
    variants = [STOCK, Variant("tencache", {"device_memory": BUDGET})]
    runs = support.interleave(
        variants,
        options.rounds,
        lambda variant: support.run_worker("allocate.py", {"sizes": SIZES}, variant),
        quiet_wait_s=options.quiet_wait,
    )
    from_python = {
        name: {way: [[run[way][i] for run in results] for i in range(len(SIZES))] for way in WAYS}
        for name, results in runs.items()
    }
    support.wait_for_quiet(options.quiet_wait)
    through_abi = run_core_program(program, options.rounds)
    report = Report(
        name="allocate",
        question="What does it cost to allocate a block that was freed before, and to free it "
        "again, against stock?",
        command="python benchmarks/allocate.py",
        facts=support.machine_facts(),
        tables=[
            table("Through the C ABI, against posix_memalign and free", through_abi),
            table("From Python: torch.empty, dropped at once", from_python),
        ],
        notes=[
            f"Time of one allocation and its free, median of {options.rounds} interleaved runs; "
            "ratio = tencache / stock, below 1 is faster than stock.",
            '"touched" writes one byte to each page between allocation and free. From Python that '
            "is a strided `zero_()`, whose own cost (about two more calls) is in both columns.",
            "tencache: extents (1 MiB and up) keep their pages when freed. Stock gives large ones "
            "back to the kernel and pays a page fault for each page of the next one.",
            support.foreign_note(runs),
        ],
        data={
            "sizes_bytes": SIZES,
            "ns_per_pair": {"c_abi": through_abi, "python": from_python},
        },
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        work(json.loads(sys.argv[1]))
    else:
        support.run_main(main)
