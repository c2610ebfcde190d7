# SPDX-License-Identifier: Apache-2.0
"""What does the cuda backend cost the thread that calls it, without the driver?

The thread allocates a block that the same stream freed before, and frees it again; passes the gate
with an op that names 0 to 64 resident extents; and passes the launch guard with a kernel that uses
what its op has announced. None of this calls the driver, so a simulated one suffices, and no GPU is
needed. The first run builds the program in build/benchmarks.

    python benchmarks/cuda_host.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from reporting import Report, Table

import support
from support import Spread

GATE_GOAL_NS = 300  # at one extent

Times = dict[str, dict[int, Spread]]


def run_program(program: Path, rounds: int) -> Times:
    """Nanoseconds of processor time, by benchmark and number."""
    command = [
        program,
        f"--benchmark_repetitions={rounds}",
        "--benchmark_enable_random_interleaving=true",
        "--benchmark_min_time=0.1",
        "--benchmark_format=json",
    ]
    times: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in json.loads(support.run_program(command))["benchmarks"]:
        if run["run_type"] == "iteration":
            what, number = run["run_name"].split("/")
            times[what][int(number)].append(run["cpu_time"])
    return {
        what: {number: Spread.of(values) for number, values in sorted(by_number.items())}
        for what, by_number in times.items()
    }


def allocation_table(times: Times) -> Table:
    table = Table(
        "Allocate and free, of a block that was freed before",
        ["size", "cuda backend", "range", "posix_memalign and free"],
    )
    for size, ours in times["allocate"].items():
        table.rows.append(
            [
                support.format_bytes(size),
                support.format_ns(ours.median),
                f"{support.format_ns(ours.low)} to {support.format_ns(ours.high)}",
                support.format_ns(times["stock"][size].median),
            ]
        )
    return table


def passing_table(title: str, unit: str, passing: dict[int, Spread]) -> Table:
    """The time to pass, by how many addresses are named; compared with that of the fewest."""
    table = Table(title, [unit, "time", "range", "each beyond the fewest"])
    fewest = min(passing)
    for count, ours in passing.items():
        more, extra_ns = count - fewest, ours.median - passing[fewest].median
        each = support.format_ns(extra_ns / more) if more else "-"
        table.rows.append(
            [
                str(count),
                support.format_ns(ours.median),
                f"{support.format_ns(ours.low)} to {support.format_ns(ours.high)}",
                each,
            ]
        )
    return table


def main() -> None:
    parser = support.arguments("Host time of the cuda backend's hot paths.", rounds=7)
    options = parser.parse_args()
    program = support.build_program("cuda_host")
    support.wait_for_quiet(options.quiet_wait)
    times = run_program(program, options.rounds)
    at_one = times["gate"][1].median
    verdict = "met" if at_one <= GATE_GOAL_NS else "missed"
    report = Report(
        name="cuda_host",
        question="What does the cuda backend cost the thread that calls it, without the driver?",
        command="python benchmarks/cuda_host.py",
        facts=support.machine_facts(),
        verdicts=[
            f"The gate with one extent takes {at_one:.0f} ns; goal of {GATE_GOAL_NS} ns {verdict}."
        ],
        tables=[
            allocation_table(times),
            passing_table("An op passes the gate", "extents", times["gate"]),
            passing_table(
                "A kernel of an op that is open passes the launch guard",
                "addresses among its arguments",
                times["launch"],
            ),
        ],
        notes=[
            f"Processor time of one pair of calls on one thread, median of {options.rounds} "
            "repetitions, in random order.",
            "The gate is armed and records every access. PyTorch's own RecordFunction, which "
            "calls it, is not part of it.",
            "Of the launch guard, the look at the arguments and the core's side are measured; it "
            "calls the driver's own function besides.",
            "posix_memalign gives blocks from 32 MiB on back to the kernel and maps them anew, "
            "untouched here.",
        ],
        data={
            what: {
                str(number): {
                    "median_ns": spread.median,
                    "low_ns": spread.low,
                    "high_ns": spread.high,
                }
                for number, spread in by_number.items()
            }
            for what, by_number in times.items()
        },
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
