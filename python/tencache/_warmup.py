# SPDX-License-Identifier: Apache-2.0
"""Leaves out what transformers does to warm up PyTorch's caching allocator, on the cuda backend.

`from_pretrained(device_map=…)` allocates as many bytes as the whole model has and frees them, so
that PyTorch asks the driver once. tencache's memory does not grow so. A model larger than the
budget would drive everything else out of it, exceed it for a moment, and get advice that is of no
use, since the model is then loaded tensor by tensor. Threads: any.
"""

from __future__ import annotations

from types import ModuleType

from tencache._import_hooks import when_imported

MODULE, FUNCTION = "transformers.modeling_utils", "caching_allocator_warmup"


def install() -> None:
    """From now on the function does nothing, also if transformers is imported later."""
    when_imported(MODULE, FUNCTION, patch)


def patch(module: ModuleType) -> None:
    """transformers calls the function as a global of its module."""
    setattr(module, FUNCTION, _do_nothing)


def _do_nothing(*_arguments: object, **_keywords: object) -> None:
    return None
