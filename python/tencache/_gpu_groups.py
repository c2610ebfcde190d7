# SPDX-License-Identifier: Apache-2.0
"""The gate for functions that work on several GPUs at once (nn.DataParallel, torch.cuda.nccl).

They hand addresses to NCCL without the dispatcher, so the shim's hooks see neither the tensors nor
the buffers that such a function allocates for itself. On a GPU an access to a tensor in host memory
is an error. We wrap the functions of `torch._C`, so that each call is one op: what it is given and
what it allocates stays on the GPUs until everything is queued.

Until the runtime arms, a call costs the reading of one flag. Threads: any; the gate is per thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tencache._inductor import Armed, Gate
from tencache._triton import addresses

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


def install(core: Armed, gate: Gate, torch_c: Any) -> None:
    """Gates every call from now on. A torch that lacks a function does without."""
    for name in FUNCTIONS:
        function = getattr(torch_c, name, None)
        if function is not None:
            setattr(torch_c, name, _gated(name, function, core, gate))


def _gated(name: str, function: Callable[..., Any], core: Armed, gate: Gate) -> Callable[..., Any]:
    is_armed = core.is_armed
    op = f"torch._C.{name}".encode()

    @functools.wraps(function)
    def gated(*arguments: Any, **keywords: Any) -> Any:
        if not is_armed():
            return function(*arguments, **keywords)
        gate.open(op, list(addresses((*arguments, *keywords.values()))))
        try:
            return function(*arguments, **keywords)
        finally:
            gate.close()

    return gated
