# SPDX-License-Identifier: Apache-2.0
"""changing_sizes.py and changing_ops.py: what is compared alternates, and all of it counts."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import changing_ops
import changing_sizes
import pytest
from reporting import Report, Table

import support

MEASURED = {
    "plan": {"ticks_followed": 9, "ticks_seen": 10, "replans": 2},
    "bytes": {"fetched_early": 1, "fetched": 2},
}
STATS = {"peak": {"live": 4 * support.MIB}, "plan": {"kinds": 1}}


class Workers:
    """Stands in for support.run_worker.

    Run number n of a variant takes n seconds a step; other programs disturb those of stock.
    """

    def __init__(self) -> None:
        self.order: list[tuple[str, str]] = []

    def run(self, _script: str, job: Mapping[str, Any], variant: support.Variant) -> dict[str, Any]:
        if "profile_peak" in job:
            return {"peak_bytes": 4 * support.MIB}
        program = job.get("program", "")
        self.order.append((program, variant.name))
        took_s = float(self.order.count(self.order[-1]))
        return {
            "step_s": [took_s] * changing_sizes.STEPS,
            "wall_s": took_s * changing_ops.ROUNDS.get(program, 1),
            "loss_bits": "aa",
            "digest": "bb",
            "measured": None if variant.is_stock else MEASURED,
            "stats": None if variant.is_stock else STATS,
            "foreign_share": 0.5 if variant.is_stock else 0.0,
        }


def measured(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> tuple[Report, list[list[str]]]:
    monkeypatch.setattr(support, "run_worker", workers.run)
    report = Report("name", "question", "command", {}, tables=[Table("table", ())])
    benchmark.measure(Namespace(share=[50], rounds=3, quiet_wait=0.0), report)
    return report, [list(row) for row in report.tables[0].rows]


def test_lengths_alternate_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers()
    report, rows = measured(changing_sizes, monkeypatch, workers)
    a_round = [
        f"{length}, {budget}"
        for budget in ("stock", "50 %")
        for length in (changing_sizes.ONE_LENGTH, changing_sizes.RANDOM)
    ]
    names = [name for _, name in workers.order]
    assert names == [*a_round, *reversed(a_round), *a_round]
    assert {row[2] for row in rows} == {"2 s"}
    assert {row[3] for row in rows} == {"1.00 (1.00-1.00)"}
    (note,) = report.notes
    assert "6 of 12 measurements" in note


def test_budgets_alternate_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers()
    report, rows = measured(changing_ops, monkeypatch, workers)
    names = [name for program, name in workers.order if program == "decoding"]
    assert names == ["ample", "stock", "50 %", "50 %", "stock", "stock", "50 %"]
    assert [row[2:] for row in rows if row[0] == "decoding"] == [
        ["2 s", "1.00 (1.00-1.00)", "-", "-", "-", "-"],
        ["2 s", "1.00 (1.00-1.00)", "90.0%", "50.0%", "1", "2"],
    ]
    assert all("3 of 6 measurements" in note for note in report.notes)
