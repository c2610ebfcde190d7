# SPDX-License-Identifier: Apache-2.0
"""The gate for functions that work on several GPUs at once (nn.DataParallel, torch.cuda.nccl).

These functions hand addresses to NCCL without the dispatcher, so the shim's hooks see neither the
tensors nor the buffers that such a function allocates for itself. On a GPU an access to a tensor in
host memory is an error. We wrap the functions of `torch._C`, so that each call is one op: what it
is given and what it allocates stays on the GPUs until everything is queued.

Until the runtime arms, a call costs the reading of one flag. Threads: any; the gate is per thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tencache._library import Core, Shim
from tencache._triton import gated

FUNCTIONS = (
    "_broadcast",
    "_broadcast_coalesced",
    "_broadcast_out",
    "_nccl_all_gather",
    "_nccl_all_reduce",
    "_nccl_broadcast",
    "_nccl_reduce",
    "_nccl_reduce_scatter",
)


def install(core: Core, gate: Shim, torch_c: Any) -> None:
    """Gates every call from now on. A torch that lacks a function does without."""
    for name in FUNCTIONS:
        function = getattr(torch_c, name, None)
        if function is not None:
            setattr(torch_c, name, _as_op(name, function, core, gate))


def _as_op(name: str, function: Callable[..., Any], core: Core, gate: Shim) -> Callable[..., Any]:
    op = f"torch._C.{name}".encode()
    return gated(function, lambda _: op, core, gate)
