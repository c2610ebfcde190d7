# SPDX-License-Identifier: Apache-2.0
"""The gate for C++ kernels that Inductor (torch.compile on the CPU) generates.

Such a kernel reads and writes raw pointers without the dispatcher, so the shim's hooks do not see
it. In Python each kernel is one callable that takes the tensors as arguments.
`AsyncCompile.cpp_pybinding` makes it, directly or through a `LambdaFuture` whose `result_fn`
returns it once it is compiled. We wrap both, so that each call first opens the gate for its
arguments.

`torch._inductor` is large and most programs never import it, so nothing here imports it:
`torch._inductor.async_compile` is patched right after its import (_import_hooks.py).
Until the runtime arms, a wrapped kernel costs the reading of one flag (0.2 us a call). Afterwards
it costs one open and one close (3 us with four tensors). Arguments that a kernel takes as const
count as read, so eviction need not write them anew.

Limit: with `cpp_wrapper=True` and in AOTInductor packages, kernels are called from C++ and cannot
be wrapped. They stay right, because a cold extent is readable and writable at its address, but they
read it page by page; the stats count these accesses as unannounced. Threads: any thread may call a
kernel; the gate is per thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tencache._import_hooks import when_imported
from tencache._library import Core, Shim

# Modes of accesses, as in tencache.h.
READ = 1
WRITE = 2

_TARGET = "torch._inductor.async_compile"
_UNNAMED = "inductor::cpp_kernel"


class KernelGate:
    """The gate around one kernel: `run` calls the kernel while its arguments are held resident.

    The bound method replaces the kernel; calling it costs less than calling an object.
    """

    __slots__ = (
        "_close_to",
        "_depth",
        "_is_armed",
        "_kernel",
        "_modes",
        "_open",
        "_tensor_positions",
        "_types",
        "name",
    )

    def __init__(
        self, kernel: Callable[..., Any], types: Sequence[str], gate: Shim, core: Core
    ) -> None:
        """`types` are those of the kernel's arguments in C++."""
        self._kernel = kernel
        self._types = types
        self._open, self._depth, self._close_to = gate.open, gate.depth, gate.close_to
        self._is_armed = core.is_armed
        # The generated kernel fixes which arguments are tensors; we look at the first armed call.
        self._tensor_positions: list[int] | None = None
        self._modes = b""
        self.name = _UNNAMED.encode()

    def run(self, *arguments: Any) -> Any:
        positions = self._tensor_positions
        if positions is None:
            if not self._is_armed():
                return self._kernel(*arguments)
            # The runtime never disarms, so we ask only once.
            positions = [i for i, value in enumerate(arguments) if hasattr(value, "data_ptr")]
            self._modes = bytes(self._mode_of(i) for i in positions)
            self._tensor_positions = positions
        depth = self._depth()
        try:
            # Any address inside an extent names it, and the kernel itself will use data_ptr().
            self._open(self.name, [arguments[i].data_ptr() for i in positions], self._modes)
            return self._kernel(*arguments)
        finally:
            self._close_to(depth)

    def _mode_of(self, position: int) -> int:
        type_name = self._types[position] if position < len(self._types) else ""
        return READ if type_name.startswith("const ") else READ | WRITE


def install(core: Core, gate: Shim) -> None:
    """Gates every kernel made from now on; waits for Inductor if it is not imported yet."""
    when_imported(_TARGET, "AsyncCompile", lambda module: patch(module, core, gate))


def patch(module: ModuleType, core: Core, gate: Shim) -> None:
    """Wraps AsyncCompile.cpp_pybinding and .wait of the given module."""
    async_compile = module.AsyncCompile
    make_kernel = async_compile.cpp_pybinding
    wait = async_compile.wait

    def cpp_pybinding(self: Any, argtypes: Sequence[str], *more: Any, **keywords: Any) -> Any:
        made = make_kernel(self, argtypes, *more, **keywords)
        result_fn = getattr(made, "result_fn", None)
        if result_fn is None:
            return KernelGate(made, argtypes, gate, core).run
        made.result_fn = lambda: KernelGate(result_fn(), argtypes, gate, core).run
        return made

    def wait_and_name(self: Any, scope: dict[str, Any]) -> Any:
        result = wait(self, scope)
        # Only the module that holds the kernels knows their names; traces show them.
        for name, value in scope.items():
            kernel_gate = getattr(value, "__self__", None)
            if isinstance(kernel_gate, KernelGate):
                kernel_gate.name = f"inductor::{name}".encode()
        return result

    async_compile.cpp_pybinding = cpp_pybinding
    async_compile.wait = wait_and_name
