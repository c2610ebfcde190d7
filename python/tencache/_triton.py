# SPDX-License-Identifier: Apache-2.0
"""The gate for Triton kernels, Inductor's (torch.compile on a GPU) and others.

A kernel is launched with raw addresses without the dispatcher, so the shim's hooks do not see it.
On a GPU an access to a tensor in host memory is not slow but an error. Every launch goes through
the method `run` of one of two classes, which takes the tensors as arguments. We wrap it, so that
each launch first opens the gate for its arguments.

Nothing here imports Triton or Inductor, so a program that never imports them pays nothing. Until
the runtime arms, a launch costs the reading of one flag.

Limit: the gate does not see launches from C++ (`cpp_wrapper=True`, AOTInductor), launches through a
handle that a kernel was compiled to, or tensors that a kernel finds through an address in memory.
Threads: any; the gate is per thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from tencache._import_hooks import when_imported
from tencache._inductor import READ, WRITE
from tencache._library import Core, Shim

# The two classes whose `run` launches kernels. Inductor launches its kernels itself, without
# Triton's class.
LAUNCHERS = (
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner"),
    ("triton.runtime.jit", "JITFunction"),
)


def install(core: Core, gate: Shim) -> None:
    """Gates every launch from now on; waits for modules that are not imported yet."""
    for module_name, class_name in LAUNCHERS:
        when_imported(module_name, class_name, functools.partial(_patch_in, class_name, core, gate))


def _patch_in(class_name: str, core: Core, gate: Shim, module: ModuleType) -> None:
    patch(getattr(module, class_name), core, gate)


def patch(launcher: Any, core: Core, gate: Shim) -> None:
    """Wraps `run` of the class."""
    launcher.run = gated(
        launcher.run, lambda arguments: _name(arguments[0]), core, gate, inputs_of_inductor
    )


def gated(
    function: Callable[..., Any],
    name_of: Callable[[Sequence[Any]], bytes],
    core: Core,
    gate: Shim,
    inputs_of: Callable[[Sequence[Any]], Container[int]] = lambda _: (),
) -> Callable[..., Any]:
    """The function, as one op that names the tensors among its arguments.

    `name_of` and `inputs_of` get the positional ones; the latter tells which of them are only read.
    """
    is_armed, depth_now, close_to = core.is_armed, gate.depth, gate.close_to

    @functools.wraps(function)
    def run_as_op(*arguments: Any, **keywords: Any) -> Any:
        if not is_armed():
            return function(*arguments, **keywords)
        inputs = inputs_of(arguments)
        named: list[int] = []
        modes = bytearray()
        for position, value in enumerate((*arguments, *keywords.values())):
            mode = READ if position in inputs else READ | WRITE
            for address in addresses((value,)):
                named.append(address)
                modes.append(mode)
        depth = depth_now()
        try:
            gate.open(name_of(arguments), named, bytes(modes))
            return function(*arguments, **keywords)
        finally:
            close_to(depth)

    return run_as_op


def inputs_of_inductor(arguments: Sequence[Any]) -> Container[int]:
    """Which arguments of a launch by Inductor are only read, by the names that it gives them.

    The launcher itself is the first argument. Only kernels that Inductor has generated say what
    they write to, in a list; those of templates and of the program do not.
    """
    launcher = arguments[0]
    mutated = getattr(launcher, "mutated_arg_names", None)
    if not isinstance(mutated, list) or getattr(launcher, "custom_kernel", False):
        return ()
    names = getattr(launcher.fn, "arg_names", ())
    return {
        position
        for position, name in enumerate(names, start=1)
        if name.startswith("in_ptr") and name not in mutated
    }


def addresses(values: Iterable[Any]) -> Iterator[int]:
    """The addresses of the tensors and storages among the values, which are arguments of a call."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from addresses(value)
            continue
        # A tensor descriptor stands for the tensor it was made from.
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
