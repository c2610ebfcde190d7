# SPDX-License-Identifier: Apache-2.0
"""Composite operators do not pass the gate; their parts do, so nothing goes unannounced.

composite_operators.py calls them with everything cold: after every operator that passes the gate,
chaos evicts all that is not pinned, so also between the parts of a composite one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from conftest import Finished, run_command

CALLS = Path(__file__).with_name("composite_operators.py")
CHAOS = {
    "TENCACHE_DEVICE_MEMORY": "512MiB",
    "TENCACHE_EXTENT_MIN": "4KiB",
    "TENCACHE_ARM_AT": "0.00001",
    "TENCACHE_CHAOS": "1",
    "TENCACHE_QUIET": "1",
}

# Calls that PyTorch refuses in this form, with the reason.
ERRORS = {
    "float_power": "the result is of float64, which the target in place is not",
    "true_divide": "the result of a sample is larger than the target in place",
    "to_sparse": "its in-place and strided forms do not exist",
}


def test_every_access_of_their_parts_is_announced(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"
    done = run_command([sys.executable, str(CALLS), str(path)], cwd=tmp_path, env=CHAOS)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(path.read_text(encoding="utf-8"))
    calls = report["calls"]
    assert {label: call for label, call in calls.items() if call["unannounced"]} == {}
    assert {label for label, call in calls.items() if call["error"]} == ERRORS.keys()
    # torch decides how many operators there are, but they must be many.
    assert report["composite"] > 400 and len(calls) > 150
    assert report["stats"]["chaos_evictions"] > 1000


EXTENTS = {
    "TENCACHE_DEVICE_MEMORY": "24MiB",
    "TENCACHE_ARM_AT": "0.0001",
    "TENCACHE_QUIET": "1",
}


def test_one_that_names_more_than_the_budget_stays_within_it(
    run_python: Callable[..., Finished],
) -> None:
    # The program has 16 blocks of 4 MiB, and products of the same size. The operator's parts need
    # two or three of them at a time.
    done = run_python(
        """
        import json, torch, tencache
        tencache.enable()
        matrices = [torch.full((1024, 1024), 2.0 ** -10) for _ in range(16)]
        product = torch.chain_matmul(*matrices)
        assert product[::64, ::64].eq(2.0 ** -10).all()
        print(json.dumps(tencache.stats()))
        """,
        env=EXTENTS,
    )
    stats = json.loads(done.stdout)
    assert stats["over_budget"]["events"] == 0, stats
    assert stats["peak"]["device"] <= 24 << 20, stats
    assert stats["unannounced"] == {"reads": 0, "writes": 0}, stats
