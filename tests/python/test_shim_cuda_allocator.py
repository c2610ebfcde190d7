# SPDX-License-Identifier: Apache-2.0
"""The CUDA allocator's suite, and torch's own tools on the snapshot that it writes.

The suite is C++ over a simulated driver, in the package's build folder; `scripts/dev.py` builds it
beside the package (`make test-python`).
"""

from __future__ import annotations

import base64
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_command
from torch.cuda import _memory_viz

ROOT = Path(__file__).resolve().parents[2]
MINOR = ".".join(torch.__version__.split(".")[:2])
SUITE = ROOT / "build" / f"torch-{MINOR}" / "tests" / "shim" / "shim_cuda_allocator_test"

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None, reason="this torch is built without CUDA"
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Runs the whole suite once; returns the snapshot it wrote, with the allocator's sums."""
    assert SUITE.exists(), f"{SUITE} is not built; run `make test-python`, which builds it"
    folder = tmp_path_factory.mktemp("suite")
    file = folder / "snapshot.json"
    done = run_command([str(SUITE)], cwd=folder, env={"TENCACHE_SNAPSHOT_FILE": str(file)})
    assert done.returncode == 0, done.stdout + done.stderr
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    # pybind11 would return an id as a pair.
    for segment in loaded["snapshot"]["segments"]:
        segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
    return loaded


def test_the_suite_passes(written: dict[str, Any]) -> None:
    kinds = {segment["segment_type"] for segment in written["snapshot"]["segments"]}
    assert kinds == {"small", "large"}


def test_the_sums_of_a_snapshot_agree(written: dict[str, Any]) -> None:
    segments = written["snapshot"]["segments"]
    blocks = [block for segment in segments for block in segment["blocks"]]

    def bytes_in(*states: str) -> int:
        return sum(block["size"] for block in blocks if block["state"] in states)

    assert bytes_in("active_allocated") == written["allocated_bytes"]
    assert bytes_in("active_allocated", "active_pending_free") == written["active_bytes"]
    assert bytes_in("active_pending_free") > 0
    assert sum(segment["total_size"] for segment in segments) == written["total_bytes"]
    assert sum(block["size"] for block in blocks) == written["total_bytes"]
    assert {segment["segment_pool_id"] for segment in segments} == {(0, 0), (1, 0)}


def stack_bytes(lines: str) -> dict[str, int]:
    """Bytes by state, from torch's input for flame graphs."""
    bytes_of: dict[str, int] = {}
    for line in lines.splitlines():
        stack, _, size = line.rpartition(" ")
        (state,) = (part for part in stack.split(";") if part.startswith(("active", "inactive")))
        bytes_of[state] = bytes_of.get(state, 0) + int(size)
    return bytes_of


def test_torchs_tools_read_it(written: dict[str, Any]) -> None:
    snapshot = written["snapshot"]
    # segsum() raises if the blocks of a segment do not add up.
    summary = _memory_viz.segsum(snapshot)
    assert f"segments: {len(snapshot['segments'])}\n" in summary
    assert f"total_reserved: {_memory_viz.Bytes(written['total_bytes'])}\n" in summary
    for tool in (_memory_viz.segments, _memory_viz.memory):
        bytes_of = stack_bytes(tool(snapshot, format_flamegraph=str))
        assert bytes_of["active_allocated"] == written["allocated_bytes"]
        assert sum(bytes_of.values()) == written["total_bytes"]
    # The page contains the snapshot itself.
    page = _memory_viz.segment_plot(snapshot)
    encoded = re.search(r'"base64": "([^"]+)"', page)
    assert encoded is not None
    assert pickle.loads(base64.b64decode(encoded[1])) == snapshot
