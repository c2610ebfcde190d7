# SPDX-License-Identifier: Apache-2.0
"""benchmarks/budget_curve.py: what it says of runs with and without a plan."""

from typing import Any

import budget_curve
import pytest


def run(plan: dict[str, Any] | None) -> dict[str, Any]:
    moved = {"disk_read": 8, "disk_written": 8, "clean_dropped": 0}
    moved |= {"fetched": 10, "fetched_early": 10, "fetched_wasted": 0}
    return {
        "step_s": [1.0, 1.0],
        "stats": {"plan": plan, "budget": {"device": 100}, "peak": {"device": 100}},
        "measured": {"bytes": moved, "stall_s": 0.0},
    }


PLANNED = run(
    {
        "bound_step_s": 0.9,
        "predicted_step_s": 1.0,
        "simulated": {"bytes_read": 8, "bytes_late": 0},
    }
)


@pytest.mark.parametrize("plan", [None, {"ticks_seen": 0}])
def test_a_run_without_a_plan_misses_the_goals(plan: dict[str, Any] | None) -> None:
    runs = {"stock": [run(None)] * 2, "50 %": [PLANNED, run(plan)], "25 %": [PLANNED] * 2}
    found = budget_curve.verdicts("gpt", runs)
    assert [line for line in found if "50 %" in line] == ["gpt at 50 %: a run had no plan: missed"]
    of_planned = [line for line in found if line.startswith("gpt at 25 %")]
    assert len(of_planned) == 3
    assert all(line.endswith(": met") for line in of_planned)
    cells = budget_curve.row(budget_curve.Variant("50 %", {}), runs)
    assert len(cells) == len(budget_curve.COLUMNS)
    assert cells[4] == "-"
