# SPDX-License-Identifier: Apache-2.0
"""Does the cuda backend do what its plans say when host memory is short, too?

This is the replay of benchmarks/cuda_replay.py at 50 % of the needed bytes, with so little host
memory that a part of what leaves the device goes on to a disk. The disk is a real file; its pieces
pass one after the other each way at the rates of a fast NVMe (12 GB/s read, 8 GB/s written), in the
same slow motion as link and device.

    python benchmarks/cuda_replay_disk.py
"""

from __future__ import annotations

from collections.abc import Mapping

from cuda_replay import (
    GOAL_ERROR,
    MODELS,
    Results,
    Run,
    error_of,
    measure,
    memory_table,
    stall_table,
    time_table,
)
from reporting import Report, Table

import support

BUDGET = 50  # percent


def disk_table(runs: Mapping[str, Run]) -> Table:
    """Bytes of one period."""
    table = Table(
        "Below host memory",
        ["model", "host memory", "read from disk", "simulated", "written to disk", "simulated"],
    )
    for model, run in runs.items():
        counts = [
            run["host_bytes"],
            run["disk_read_bytes"] / run["measured_periods"],
            run["simulated_disk_read_bytes"],
            run["disk_written_bytes"] / run["measured_periods"],
            run["simulated_disk_written_bytes"],
        ]
        table.rows.append([model, *(support.format_bytes(int(count)) for count in counts)])
    return table


def verdict(runs: Mapping[str, Run]) -> str:
    error = max(abs(error_of(run)) for run in runs.values())
    is_met = "met" if error <= GOAL_ERROR else "missed"
    return (
        f"A period takes what the simulator says within {error:.1%}; goal of {GOAL_ERROR:.0%} "
        f"{is_met}. No kernel met a tensor that was not resident, or other bytes than it should."
    )


def main() -> None:
    parser = support.arguments("Three tiers against the simulator of plans.", rounds=1)
    options = parser.parse_args()
    program = support.build_program("cuda_replay")
    runs = {model: measure(program, model, BUDGET, options, "disk") for model in MODELS}
    results: Results = {model: {BUDGET: run} for model, run in runs.items()}
    report = Report(
        name="cuda_replay_disk",
        question="Does the cuda backend do what its plans say where host memory is short, too?",
        command="python benchmarks/cuda_replay_disk.py",
        facts=support.machine_facts(),
        verdicts=[verdict(runs)],
        tables=[
            time_table(results),
            stall_table(results),
            memory_table(results),
            disk_table(runs),
        ],
        notes=[
            "As in cuda_replay; host memory holds 30 % of the most bytes that exist at once. The "
            "disk has the rates of a fast NVMe, 12 GB/s read and 8 GB/s written, 500 times slower.",
            "Bound: of computing and of the link alone.",
        ],
        data={model: {str(BUDGET): run} for model, run in runs.items()},
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
