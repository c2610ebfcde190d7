# SPDX-License-Identifier: Apache-2.0
"""What is told of the start and the end of a group of collectives."""

from __future__ import annotations

import pytest

from tencache import _collectives


class Work:
    def boxed(self):
        return "boxed work"


class Operators:
    """Stands for torch.ops.tencache, and notes what it is told."""

    def __init__(self):
        self.told = []

    def begin_group(self):
        self.told.append("begin")

    def end_group(self, work):
        self.told.append(("end", work))

    def abandon_group(self):
        self.told.append("abandon")


def group_class(end):
    class ProcessGroup:
        def _start_coalescing(self, device):
            pass

        def _end_coalescing(self, device):
            return end(device)

    return ProcessGroup


@pytest.mark.parametrize(
    ("work", "told"), [(Work(), "boxed work"), (None, None)], ids=["some", "nothing started"]
)
def test_the_end_is_told_with_its_work(work, told):
    operators = Operators()
    group = group_class(lambda _device: work)
    _collectives.patch(group, operators)
    group()._start_coalescing("cuda")
    assert group()._end_coalescing("cuda") is work
    assert operators.told == ["begin", ("end", told)]


def test_an_end_that_fails_gives_no_tensor_free():
    def fail(device):
        raise RuntimeError(f"NCCL error on {device}")

    operators = Operators()
    group = group_class(fail)
    _collectives.patch(group, operators)
    group()._start_coalescing("cuda")
    with pytest.raises(RuntimeError, match="NCCL error on cuda"):
        group()._end_coalescing("cuda")
    assert operators.told == ["begin", "abandon"]
