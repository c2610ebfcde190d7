# SPDX-License-Identifier: Apache-2.0
"""benchmarks/cgroup.py: no group is left behind. A folder stands in for the file system."""

import os
from pathlib import Path

import cgroup
import pytest


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cgroup.MemoryCgroup:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cgroup, "_V1_MOUNT", tmp_path / "memory")
    monkeypatch.setattr(cgroup, "_V2_MOUNT", tmp_path)
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    return cgroup.MemoryCgroup()


def test_a_group_that_cannot_be_limited_is_removed(group: cgroup.MemoryCgroup) -> None:
    with pytest.raises(cgroup.Unavailable, match="does not account swap"), group:
        pass
    assert not group.folder.exists()


def test_a_group_whose_limit_is_refused_is_removed(
    group: cgroup.MemoryCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(Path, "write_text", refuse)
    group._limit_bytes = 1
    with pytest.raises(cgroup.Unavailable, match="takes no limit: Invalid argument"), group:
        pass
    assert not group.folder.exists()


def test_a_process_that_ends_by_itself_is_no_error(
    group: cgroup.MemoryCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.folder.mkdir()
    processes = group.folder / "cgroup.procs"
    processes.write_text("17\n")

    def has_ended(_pid: int, _signal: int) -> None:
        processes.unlink()
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", has_ended)
    group.__exit__()
    assert not group.folder.exists()
