# SPDX-License-Identifier: Apache-2.0
"""List ops in place while the disk takes nothing: all of it happens, or nothing with an error.

The disk fails by the preloaded library of the soaks (tests/soak/faults.cpp), from the moment that a
program chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

# Functions of the programs: make() makes tensors of 4 MiB, of which twenty exceed the budget of
# 32 MiB. fail_disk() lets the disk fail, and used() tells the memory in use and the budget.
PRELUDE = """
    import ctypes, os, torch, tencache

    def make(count):
        return [torch.full((1 << 20,), float(i)) for i in range(count)]

    def fail_disk(after_writes):
        library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        most = ctypes.c_uint64(1 << 60)
        marks = os.open(os.devnull, os.O_WRONLY)
        numbers = [ctypes.c_uint64(n) for n in (0, 10_000, after_writes)]
        assert library.soak_fail_disk(b"write-erofs", *numbers, most, ctypes.c_long(0), marks) == 0

    def used():
        now = tencache.stats()
        return now["now"]["device"], now["budget"]["device"]
"""


@pytest.fixture
def run_on(run_python: Run, faults: Path, tmp_path: Path) -> Run:
    """Runs code on a disk that fails when the code says so; tencache does not wait for the disk."""
    environment = {
        "TENCACHE": "1",
        "TENCACHE_DEVICE_MEMORY": "32MiB",
        "TENCACHE_SPILL_DIR": str(tmp_path),
        "TENCACHE_DISK_WAIT": "0",
        "TENCACHE_IO_URING": "off",
        "LD_PRELOAD": str(faults),
    }
    return lambda *code: run_python(PRELUDE, *code, env=environment)


def test_list_op_is_refused_before_it_changes_anything(run_on: Run) -> None:
    run_on(
        """
        tensors = make(20)
        torch._foreach_add_(tensors, 1)
        fail_disk(0)
        for refused in (
            lambda: torch.empty(16 << 20),  # until something is refused, nobody knows
            lambda: torch._foreach_add_(tensors, 1),
            lambda: torch._foreach_mul_(tensors, tensors),
        ):
            try:
                refused()
            except torch.OutOfMemoryError as error:
                assert "Read-only file system" in str(error), error
            else:
                raise AssertionError("an op has begun whose tensors cannot be held")
            device, budget = used()
            assert device <= budget, (device, budget)
        assert tencache.stats()["over_budget"]["events"] == 0
        # What is resident, or fits, is used as ever.
        torch._foreach_add_(tensors[-2:], 1)
        right = [(t.numpy() == i + 1 + (i >= 18)).all() for i, t in enumerate(tensors)]
        assert all(right), right
        """
    )


def test_list_op_that_has_begun_ends_and_the_next_one_is_refused(run_on: Run) -> None:
    done = run_on(
        """
        tensors = make(20)
        torch._foreach_add_(tensors, 1)
        fail_disk(8)  # 8 writes of a MiB go well: two tensors leave
        torch._foreach_add_(tensors, 1)
        assert tencache.stats()["over_budget"]["events"] > 0
        for refused in (
            lambda: torch._foreach_add_(tensors, 1),
            lambda: torch.empty(1),
        ):
            try:
                refused()
            except torch.OutOfMemoryError as error:
                assert "Read-only file system" in str(error), error
            else:
                raise AssertionError("it should have been refused")
        right = [(t.numpy() == i + 2).all() for i, t in enumerate(tensors)]
        assert all(right), right
        """
    )
    assert "is exceeded by" in done.stderr, done.stderr
