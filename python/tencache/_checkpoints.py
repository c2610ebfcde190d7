# SPDX-License-Identifier: Apache-2.0
"""Checkpoints are announced: their writers read tensors' memory without the dispatcher.

`torch.save` (both formats), pickle, `torch.package` and DCP come down to two methods that read one
storage each, and safetensors to one function that collects addresses. We wrap these. Each call
tells the core which storages it is about to read (tencache_begin_reading): they are fetched and
compared with their hash, and stay until the call ends. So a disk that lies ends the program with a
message, and not with a wrong checkpoint. In a forked child, which fetches nothing, what is read is
compared where it lies.

Nothing here imports safetensors. Writers in C++ (`torch.jit.save`, `torch::save`) are not seen, nor
is whoever reads through an address or a NumPy view; docs/limits.md says what holds for them.
Threads: any.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tencache._import_hooks import when_imported
from tencache._library import Core
from tencache._triton import addresses

# The module of safetensors that writes, and its functions that collect what is written. The newest
# function makes a list that lives as long as the writing takes; the one before it reads the bytes
# of a tensor.
_SAFETENSORS = "safetensors.torch"
_COLLECTOR = "_flatten_as_ptr"
_READER = "_tobytes"


class Reading:
    """What is announced stays announced until `end`, or while the object lives.

    The core itself fills and empties the handle, so an exception that comes at any point, like
    KeyboardInterrupt, cannot lose it. Call `begin` within the `try` whose end calls `end`: a
    traceback may keep the object alive.
    """

    __slots__ = ("_core", "_reading")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reading = ctypes.c_void_p()

    def begin(self, addresses: Sequence[int]) -> None:
        if addresses:
            self._core.begin_reading(addresses, self._reading)

    def end(self) -> None:
        if self._reading:
            self._core.end_reading(self._reading)

    __del__ = end


def install(core: Core, torch: Any) -> None:
    """Announces every checkpoint from now on; waits for safetensors if it is not imported yet."""
    writer = torch._C.PyTorchFileWriter
    writer.write_record = announced(writer.write_record, core)
    storage = torch.UntypedStorage
    storage._write_file = announced(storage._write_file, core)
    when_imported(_SAFETENSORS, "save_file", lambda module: patch_safetensors(module, core))


def patch_safetensors(module: Any, core: Core) -> None:
    """Wraps what `save` and `save_file` call; callers may have imported these before."""
    collect = getattr(module, _COLLECTOR, None)
    if collect is None:
        setattr(module, _READER, announced(getattr(module, _READER), core))
        return

    @functools.wraps(collect)
    def collect_announced(tensors: Any, keep_alive: list[Any], *more: Any, **named: Any) -> Any:
        # The list of the buffers drops the reading when all is written.
        reading = Reading(core)
        keep_alive.append(reading)
        # Leave it to safetensors to refuse anything but a dict.
        reading.begin(list(addresses(tensors.values() if isinstance(tensors, dict) else ())))
        return collect(tensors, keep_alive, *more, **named)

    setattr(module, _COLLECTOR, collect_announced)


def announced(function: Callable[..., Any], core: Core) -> Callable[..., Any]:
    """The function, with the storages and tensors among its arguments announced."""

    @functools.wraps(function)
    def run_announced(*arguments: Any, **named: Any) -> Any:
        reading = Reading(core)
        try:
            reading.begin(list(addresses((*arguments, *named.values()))))
            return function(*arguments, **named)
        finally:
            reading.end()

    return run_announced
