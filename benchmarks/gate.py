# SPDX-License-Identifier: Apache-2.0
"""What does the gate cost per op, before the hooks arm and after?

The benchmark times operators that do next to nothing, so that the code around them shows:
`x.add_(x)` on one element, on memory that is never an extent and on one element of an extent; a
view (two events of PyTorch); and `_foreach_add_` on 200 pairs of one element (201 events), which
also passes the kernel that cuts lists. Each runs as stock, under a budget that is never reached
(the hooks stay off), and with the hooks armed from the start (`arm_at` next to 0).

Every measurement is a process; the variants alternate; a process repeats each loop and keeps the
fastest and the median repetition.

    python benchmarks/gate.py
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from reporting import Report, Table

import support
from support import STOCK, Variant

BUDGET = "1024GiB"
NOT_ARMED = Variant("not armed", {"device_memory": BUDGET})
ARMED = Variant("armed", {"device_memory": BUDGET, "arm_at": "0.00000000001"})
VARIANTS = [STOCK, NOT_ARMED, ARMED]
LOOPS = {
    "add_ on one element": 100_000,
    "add_ on one element of an extent": 100_000,
    "view": 100_000,
    "_foreach_add_ on 200 pairs": 1_000,
}
REPETITIONS = 15


# ---- The worker --------------------------------------------------------------------------------


def make_loops() -> dict[str, Callable[[int], None]]:
    import torch

    torch.set_num_threads(1)
    # If hooks are to arm, the first extent arms them.
    extent = torch.zeros(1 << 20)
    inside, outside = extent[:1], torch.zeros(1)
    left = [torch.zeros(1) for _ in range(200)]
    right = [torch.ones(1) for _ in range(200)]

    def add(tensor: torch.Tensor) -> Callable[[int], None]:
        call = tensor.add_

        def loop(count: int) -> None:
            for _ in itertools.repeat(None, count):
                call(tensor)

        return loop

    def view(count: int) -> None:
        call = outside.detach
        for _ in itertools.repeat(None, count):
            call()

    def foreach(count: int) -> None:
        call = torch._foreach_add_
        for _ in itertools.repeat(None, count):
            call(left, right)

    return dict(zip(LOOPS, (add(outside), add(inside), view, foreach), strict=True))


def work() -> None:
    times: dict[str, list[float]] = {name: [] for name in LOOPS}
    loops = make_loops()
    for _ in range(REPETITIONS + 1):
        for name, loop in loops.items():
            begin = time.perf_counter_ns()
            loop(LOOPS[name])
            times[name].append((time.perf_counter_ns() - begin) / LOOPS[name])
    # The first repetition warms up.
    support.answer(
        {
            "ns_min": {name: min(values[1:]) for name, values in times.items()},
            "ns_median": {name: statistics.median(values[1:]) for name, values in times.items()},
            "stats": support.tencache_stats(),
        }
    )


# ---- The benchmark -----------------------------------------------------------------------------


def check(runs: Mapping[str, list[dict[str, Any]]]) -> None:
    for variant, armed in ((NOT_ARMED, False), (ARMED, True)):
        for run in runs[variant.name]:
            if run["stats"]["armed"] != armed:
                raise support.BenchmarkFailed(
                    f"{variant.name}: the hooks are {'off' if armed else 'armed'}"
                )


def table(runs: Mapping[str, list[dict[str, Any]]]) -> Table:
    result = Table(
        "Time of one call, from Python",
        [
            "operator",
            *(f"{variant.name}: {what}" for variant in VARIANTS for what in ("min", "median")),
            "not armed adds",
            "armed adds",
        ],
    )
    for name in LOOPS:
        fastest = {v.name: min(run["ns_min"][name] for run in runs[v.name]) for v in VARIANTS}
        cells = [name]
        for variant in VARIANTS:
            middle = support.median(run["ns_median"][name] for run in runs[variant.name])
            cells += [support.format_ns(fastest[variant.name]), support.format_ns(middle)]
        for variant in VARIANTS[1:]:
            cells.append(f"{fastest[variant.name] - fastest[STOCK.name]:+.0f} ns")
        result.rows.append(cells)
    return result


def main() -> None:
    options = support.arguments("Time per op against stock.", rounds=5).parse_args()
    runs = support.interleave(
        VARIANTS,
        options.rounds,
        lambda variant: support.run_worker("gate.py", {}, variant),
        quiet_wait_s=options.quiet_wait,
    )
    check(runs)
    report = Report(
        name="gate",
        question="What does the gate cost per op, before the hooks arm and after?",
        command="python benchmarks/gate.py",
        facts=support.machine_facts(),
        tables=[table(runs)],
        notes=[
            f"{options.rounds} processes of each variant, interleaved, {REPETITIONS} repetitions "
            "each; min is the fastest repetition of all, median the median of the processes' "
            'medians; "adds" compares the fastest.',
            "An event of PyTorch's own RecordFunction with inputs is part of the armed cost.",
            support.foreign_note(runs),
        ],
        data={"runs": dict(runs)},
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        json.loads(sys.argv[1])
        work()
    else:
        support.run_main(main)
