# SPDX-License-Identifier: Apache-2.0
"""Refuses green contexts (torch.cuda.green_contexts) where tencache serves CUDA tensors.

A green context has streams of its own. Its default stream has the same handle (null) as the default
stream of any other context. The core orders its copies after and before the streams of a GPU's
primary context, so under a green context a kernel could read a tensor that is still on its way.
Threads: any.
"""

from __future__ import annotations

from typing import Any, NoReturn

_MESSAGE = (
    "tencache does not support green contexts (torch.cuda.green_contexts): a tensor could be used "
    "before it is back on the GPU. Run this program without tencache, or without green contexts."
)


def install(torch_c: Any) -> None:
    """Makes every attempt to create a green context raise RuntimeError, if this torch has any."""
    green_context = getattr(torch_c, "_CUDAGreenContext", None)
    if green_context is not None:
        green_context.create = staticmethod(_refuse)


def _refuse(*_arguments: object, **_keywords: object) -> NoReturn:
    raise RuntimeError(_MESSAGE)
