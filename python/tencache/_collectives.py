# SPDX-License-Identifier: Apache-2.0
"""Groups of collectives are announced: NCCL starts them together at the group's end.

`torch.distributed.batch_isend_irecv` and the coalescing manager begin and end a group by two
methods of the process group, which no dispatcher sees. We wrap them. The tensors of the calls in
between stay resident until the Work that the end returns has completed (shim/collectives.cpp, Note
[Groups]).

Nothing here imports torch.distributed. Groups that a program begins in C++ are not seen.
Threads: any; a group begins and ends on one.
"""

from __future__ import annotations

import functools
from typing import Any

from tencache._import_hooks import when_imported

_TARGET = "torch.distributed.distributed_c10d"


def install(torch: Any) -> None:
    """Announces every group from now on; waits for torch.distributed if it is not imported yet."""
    when_imported(
        _TARGET, "ProcessGroup", lambda module: patch(module.ProcessGroup, torch.ops.tencache)
    )


def patch(process_group: Any, operators: Any) -> None:
    """Wraps the methods of the class that begin and end a group."""
    start, end = process_group._start_coalescing, process_group._end_coalescing

    @functools.wraps(start)
    def start_announced(self: Any, *arguments: Any, **named: Any) -> None:
        start(self, *arguments, **named)
        operators.begin_group()

    @functools.wraps(end)
    def end_announced(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            work = end(self, *arguments, **named)
        except BaseException:
            operators.abandon_group()
            raise
        operators.end_group(None if work is None else work.boxed())
        return work

    process_group._start_coalescing = start_announced
    process_group._end_coalescing = end_announced
