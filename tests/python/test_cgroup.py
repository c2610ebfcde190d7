# SPDX-License-Identifier: Apache-2.0
"""A real memory cgroup without swap: it kills stock; tencache finishes with the same bits.

The limit is what the process needs without tensors, plus half of what the tensors need. The kernel
kills stock PyTorch there. Under tencache the same script ends with the losses, parameters and
optimizer state of a stock run outside the cgroup. The test needs root and the memory controller (v1
or v2).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from differential import assert_budget_kept, environment_for

# These tests do not depend on the installed torch.
pytestmark = pytest.mark.any_torch

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_gpt2.py"
SIZE = ("--layers", "5", "--width", "768", "--heads", "12", "--sequence", "64")
STEPS = ("--batch", "4", "--steps", "4", "--eval-blocks", "4")
TIMEOUT_S = 900
ROOT = Path("/sys/fs/cgroup")
# Room for page tables, thread stacks, io_uring's rings, and pages of files being written.
SLACK_BYTES = 96 << 20
EXACT = ("losses", "gradient_norms", "eval_losses", "parameters", "optimizer")


class Cgroup:
    """One cgroup with a hard limit and no swap."""

    def __init__(self, path: Path, version: int) -> None:
        self.path = path
        self._version = version

    def limit(self, limit_bytes: int) -> None:
        if self._version == 2:
            (self.path / "memory.max").write_text(str(limit_bytes))
            with contextlib.suppress(FileNotFoundError):
                (self.path / "memory.swap.max").write_text("0")
            return
        (self.path / "memory.limit_in_bytes").write_text(str(limit_bytes))
        with contextlib.suppress(OSError):
            (self.path / "memory.swappiness").write_text("0")
        with contextlib.suppress(OSError):
            (self.path / "memory.memsw.limit_in_bytes").write_text(str(limit_bytes))

    def enter(self) -> None:
        """Moves the calling process into the cgroup."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))


def own_v1_folder() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return ROOT / "memory" / path.lstrip("/")
    return ROOT / "memory"


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    if os.geteuid() != 0:
        pytest.skip("only root can make a memory cgroup")
    name = f"tencache-test-{os.getpid()}"
    if (ROOT / "cgroup.controllers").exists():
        if "memory" not in (ROOT / "cgroup.subtree_control").read_text().split():
            pytest.skip("the memory controller is not given to the children of the root cgroup")
        group = Cgroup(ROOT / name, 2)
    elif (ROOT / "memory").is_dir():
        parent = own_v1_folder()
        group = Cgroup((parent if parent.is_dir() else ROOT / "memory") / name, 1)
    else:
        pytest.skip("no memory cgroup controller is mounted")
    try:
        group.path.mkdir()
    except OSError as error:
        pytest.skip(f"{group.path} cannot be made: {error.strerror}")
    yield group
    group.path.rmdir()


def train(
    folder: Path, variables: Mapping[str, str], group: Cgroup | None = None
) -> tuple[int, str, dict[str, Any] | None]:
    """Runs the script; returns its status, its output, and its report if it wrote one."""
    folder.mkdir()
    report = folder / "report.json"
    command = [sys.executable, str(SCRIPT), *SIZE, *STEPS]
    command += ["--output", str(folder / "checkpoints"), "--report", str(report)]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment_for(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        preexec_fn=group.enter if group is not None else None,
    )
    found = json.loads(report.read_text()) if report.exists() else None
    return done.returncode, done.stdout, found


def bytes_without_tensors() -> int:
    """Anonymous memory of a process with the script's imports."""
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import train_gpt2; "
        "print(train_gpt2.memory_bytes('RssAnon'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment_for({}), stdout=subprocess.PIPE, check=True
    )
    return int(done.stdout.split()[-1])


# If malloc gives blocks back, the peak that the script reports is the tensors'.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "0"}


def test_finishes_where_stock_is_killed(cgroup: Cgroup, tmp_path: Path) -> None:
    status, output, stock = train(tmp_path / "free", GIVE_BACK)
    assert status == 0 and stock is not None, output
    tensors_bytes = stock["peak_bytes"]
    limit_bytes = bytes_without_tensors() + tensors_bytes // 2 + SLACK_BYTES
    cgroup.limit(limit_bytes)

    status, output, report = train(tmp_path / "stock", GIVE_BACK, cgroup)
    assert status == -signal.SIGKILL and report is None, f"{status}\n{output}"

    budgets = {"asked": {"TENCACHE_DEVICE_MEMORY": str(2 * tensors_bytes // 5)}, "found": {}}
    for name, budget in budgets.items():
        stats_path = tmp_path / f"{name}.json"
        variables = {"TENCACHE": "1", "TENCACHE_STATS": str(stats_path)}
        status, output, report = train(tmp_path / name, variables | budget, cgroup)
        assert status == 0 and report is not None, f"{name}: {status}\n{output}"
        for key in EXACT:
            assert report[key] == stock[key], (name, key)
        stats = json.loads(stats_path.read_text())
        assert stats["bytes"]["evicted"] > 0, (name, stats)
        assert stats["budget"]["device"] < limit_bytes, (name, stats)
        assert_budget_kept(stats)
