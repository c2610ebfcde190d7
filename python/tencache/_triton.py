# SPDX-License-Identifier: Apache-2.0
"""The gate for Triton kernels: those that Inductor (torch.compile on a GPU) generates, and those
that a program or a library writes itself.

A kernel is launched with raw addresses and passes no dispatcher, so the shim's hooks do not see
it; and on a GPU an access to a tensor that is in host memory is not slow but an error. Every launch
goes through the method `run` of one of two classes, which takes the tensors as arguments. It is
wrapped here, so that each launch opens the gate for its arguments first.

Nothing here imports Triton or Inductor: what a program never imports costs it nothing. Until the
runtime is armed a launch costs the reading of one flag.

Limit: launches from C++ (`cpp_wrapper=True`, AOTInductor) are not seen, nor those of kernels that
were compiled to a handle and are launched by it, nor tensors that a kernel finds by an address in
memory. Threads: any; the gate is per thread.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from tencache._inductor import Armed, Gate, when_imported

# Where the classes are: Inductor launches its kernels itself, and does not pass by Triton's class.
LAUNCHERS = (
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner"),
    ("triton.runtime.jit", "JITFunction"),
)


def install(core: Armed, gate: Gate) -> None:
    """Gates every launch from now on; waits for what is not imported yet."""
    for module_name, class_name in LAUNCHERS:
        when_imported(module_name, class_name, functools.partial(_patch_in, class_name, core, gate))


def _patch_in(class_name: str, core: Armed, gate: Gate, module: ModuleType) -> None:
    patch(getattr(module, class_name), core, gate)


def patch(launcher: Any, core: Armed, gate: Gate) -> None:
    """Wraps `run` of the class."""
    run = launcher.run
    is_armed = core.is_armed

    @functools.wraps(run)
    def gated_run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not is_armed():
            return run(self, *arguments, **keywords)
        gate.open(_name(self), list(addresses((*arguments, *keywords.values()))))
        try:
            return run(self, *arguments, **keywords)
        finally:
            gate.close()

    launcher.run = gated_run


def addresses(values: Iterable[Any]) -> Iterator[int]:
    """Where the tensors among the arguments of a launch are."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from addresses(value)
            continue
        # A tensor descriptor stands for the tensor that it was made of.
        tensor: Any = value if hasattr(value, "data_ptr") else getattr(value, "base", None)
        if not hasattr(tensor, "data_ptr"):
            continue
        try:
            yield int(tensor.data_ptr())
        except RuntimeError:
            continue  # A fake tensor has no memory.


def _name(launcher: Any) -> bytes:
    function = getattr(launcher, "fn", None)
    return f"triton::{getattr(function, '__name__', 'kernel')}".encode()
