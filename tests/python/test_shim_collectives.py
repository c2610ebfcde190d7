# SPDX-License-Identifier: Apache-2.0
"""Collectives over gloo in two processes; each op's end evicts everything that is not pinned.

The process group's threads work on tensors while this thread runs other operators. Results must
equal stock's to the last bit, and no cold memory may have been touched. A missing hold shows in the
counters of unannounced accesses, because the cold mapping gives everybody the right bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT_S, clean_environment
from ranks import run_processes

RANKS = Path(__file__).with_name("collective_ranks.py")
CHAOS = {
    "TENCACHE_DEVICE_MEMORY": "64MiB",
    "TENCACHE_EXTENT_MIN": "64KiB",
    "TENCACHE_ARM_AT": "0.0001",
    "TENCACHE_CHUNK_SHARE": "0.02",
    "TENCACHE_CHAOS": "1",
    "TENCACHE_QUIET": "1",
}
PARTS = ["collectives", "many_at_once", "functional", "ddp", "fsdp2"]

Report = dict[str, Any]


def run_ranks(part: str, folder: Path, variables: Mapping[str, str] | None) -> list[Report]:
    """Runs both ranks to their end; returns their reports."""
    folder.mkdir()
    paths = [folder / f"{rank}.json" for rank in range(2)]
    more = [] if variables is None else ["--tencache"]
    # Each rank has one thread: sums are split over threads, so the number of threads changes bits.
    codes, outputs = run_processes(
        [[RANKS, part, str(rank), folder / "store", paths[rank], *more] for rank in range(2)],
        cwd=folder,
        environment={**clean_environment(variables), "OMP_NUM_THREADS": "1"},
        timeout_s=TIMEOUT_S,
    )
    assert codes == [0, 0], "\n".join(outputs)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


@pytest.mark.parametrize("part", PARTS)
def test_same_bits_and_nothing_unannounced(part: str, tmp_path: Path) -> None:
    stock = run_ranks(part, tmp_path / "stock", None)
    for rank, report in enumerate(run_ranks(part, tmp_path / "tencache", CHAOS)):
        assert report["digests"] == stock[rank]["digests"], f"rank {rank}"
        stats = report["stats"]
        assert stats["unannounced"] == {"reads": 0, "writes": 0}, f"rank {rank}: {stats}"
        assert stats["chaos_evictions"] > 0 and stats["fetches"]["late"] > 0
        assert report["shim"]["collectives"] >= 19
        assert report["shim"]["pending_collectives"] == 0
