# SPDX-License-Identifier: Apache-2.0
"""Compares calls of operators on "cuda" with the same calls on the CPU, byte by byte.

A program runs on the CPU while a Recorder keeps each operator that PyTorch's dispatcher calls, with
its arguments, forward and backward. Each of these is then called on both devices. The results must
have the same bytes, and so must the arguments afterwards, since an operator may write them. Each
recorded call is repeated with out= and in place, if such operators exist. Random operators cannot
equal the CPU's: with the same seed they must give the same bytes twice. The emulated GPU itself
counts calls (`installed_operators`). One thread runs all.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

# CUDA's kernels keep half-precision statistics as float. We compare them in the CPU's type.
WIDER_ON_CUDA = {
    "aten::_batch_norm_with_update",
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit.no_stats",
    "aten::batch_norm_update_stats",
    "aten::native_batch_norm",
    "aten::native_layer_norm",
}
# These operators return memory without values.
WITHOUT_VALUES = ("empty", "new_empty", "empty_like", "empty_strided", "empty_permuted")
WITHOUT_VALUES += ("new_empty_strided",)

Signature = tuple[str, frozenset[torch.dtype]]  # a call's operator and its types of tensors


@dataclass(frozen=True)
class Installed:
    fate: str  # emulated, own, refused or kept
    calls: int


def installed_operators() -> dict[str, Installed]:
    """The fate of each operator with a CUDA kernel, and how often its emulated kernel ran."""
    library = ctypes.CDLL(os.environ["EMULATED_GPU_OPERATORS"])
    found: dict[str, Installed] = {}

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64)
    def show(name: bytes, fate: bytes, calls: int) -> None:
        found[name.decode()] = Installed(fate.decode(), calls)

    library.emulated_gpu_operators(show)
    return found


def name_of(operator: torch._ops.OpOverload) -> str:
    """The dispatcher's name for the operator, without ".default"."""
    return operator.name()


def moved(value: Any, device: str) -> Any:
    """A copy with all tensors on the device. A tensor that occurs twice becomes one copy."""
    copies: dict[int, torch.Tensor] = {}

    def move(item: Any) -> Any:
        if isinstance(item, torch.device):
            return torch.device(device)
        if not isinstance(item, torch.Tensor):
            return item
        if id(item) not in copies:
            copy = item.detach().to(device)
            copy = copy.clone() if item.device.type == device else copy
            copies[id(item)] = copy.requires_grad_(item.requires_grad)
        return copies[id(item)]

    return tree_map(move, value)


def parts(t: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a tensor of any layout consists of."""
    if t.layout == torch.strided:
        return [t]
    if t.layout == torch.sparse_coo:
        return [t._indices(), t._values()]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices(), t.col_indices(), t.values()]
    return [t.ccol_indices(), t.row_indices(), t.values()]


def bytes_of(t: torch.Tensor) -> list[bytes]:
    def dense(part: torch.Tensor) -> bytes:
        host = part.detach().cpu().resolve_conj().resolve_neg()
        flat = torch.empty(host.numel(), dtype=host.dtype).copy_(host.reshape(-1))
        return flat.view(torch.uint8).numpy().tobytes() if host.numel() else b""

    return [dense(part) for part in parts(t)]


def is_near(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    largest = a.abs().max().item() if a.numel() else 0.0
    return torch.allclose(a, b, rtol=0, atol=tolerance * largest, equal_nan=True)


def difference(
    want: Any, got: Any, *, is_wider: bool = False, tolerance: float | None = None
) -> str | None:
    """How two results differ, or None. A tolerance is a share of the largest value."""
    wanted, found = tree_flatten(want)[0], tree_flatten(got)[0]
    if len(wanted) != len(found):
        return f"{len(found)} results in place of {len(wanted)}"
    for a, b in zip(wanted, found, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if is_wider and a.dtype != b.dtype:
                b = b.to(a.dtype)
            if (a.dtype, a.shape, a.layout) != (b.dtype, b.shape, b.layout):
                return f"{b.dtype} {tuple(b.shape)} in place of {a.dtype} {tuple(a.shape)}"
            is_close = tolerance is not None and is_near(a, b.cpu(), tolerance)
            if not is_close and bytes_of(a) != bytes_of(b):
                return f"{b.flatten()[:4].tolist()} in place of {a.flatten()[:4].tolist()}"
        elif not isinstance(a, (torch.device, torch.Generator)) and a != b and (a == a or b == b):
            return f"{b} in place of {a}"
    return None


@dataclass(frozen=True)
class Call:
    operator: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def on(self, device: str) -> tuple[Any, Any]:
        """(results, arguments afterwards)"""
        args, kwargs = moved((self.args, self.kwargs), device)
        torch.manual_seed(1)
        results = self.operator(*args, **kwargs)
        return results, (args, kwargs)

    def signature(self) -> Signature:
        """Tells two calls of one operator apart."""
        leaves = tree_flatten((self.args, self.kwargs))[0]
        types = frozenset(leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor))
        return name_of(self.operator), types


class Recorder(TorchDispatchMode):
    """Keeps the calls of PyTorch's operators that were not seen yet, with their arguments."""

    def __init__(self, seen: set[Signature]) -> None:
        super().__init__()
        self.seen = seen
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "aten" and Call(func, args, kwargs).signature() not in self.seen:
            self.calls.append(Call(func, *moved((args, kwargs), "cpu")))
        return func(*args, **kwargs)


def variants(call: Call) -> Iterator[Call]:
    """The call with out= and in place, where such operators exist."""
    arguments = call.operator._schema.arguments
    if any(argument.alias_info is not None for argument in arguments):
        return
    names = [argument.name for argument in arguments]
    packet = call.operator.overloadpacket
    results = call.on("cpu")[0]
    results = results if isinstance(results, (tuple, list)) else (results,)
    if not all(isinstance(result, torch.Tensor) for result in results):
        return
    if name_of(call.operator) in WIDER_ON_CUDA and results[0].dtype != torch.float32:
        return  # out= fits the type of only one of the devices
    for overload in (getattr(packet, name) for name in packet.overloads()):
        outs = [argument.name for argument in overload._schema.arguments if argument.is_out]
        others = [argument.name for argument in overload._schema.arguments if not argument.is_out]
        if others == names and len(outs) == len(results) > 0:
            made = {name: torch.zeros_like(r) for name, r in zip(outs, results, strict=True)}
            yield Call(overload, call.args, {**call.kwargs, **made})
    first = call.args[0] if call.args else None
    if isinstance(first, torch.Tensor) and first.shape != results[0].shape:
        return
    in_place = getattr(torch.ops.aten, packet.__name__ + "_", None)
    overload_name = call.operator._overloadname
    if in_place is not None and overload_name in in_place.overloads():
        overload = getattr(in_place, overload_name)
        if [argument.name for argument in overload._schema.arguments] == names:
            yield Call(overload, call.args, call.kwargs)


@dataclass
class Comparison:
    """Compares calls, each kind once, and keeps what differs."""

    left_out: Callable[[str], bool]  # by the operator's name
    differences: dict[str, str] = field(default_factory=dict)
    seen: set[Signature] = field(default_factory=set)

    def compare_all(self, calls: Iterable[Call]) -> None:
        for call in calls:
            if call.signature() in self.seen:
                continue
            self.compare(call)
            with torch.no_grad():
                for variant in variants(call) if self.is_compared(call) else ():
                    if variant.signature() not in self.seen:
                        self.compare(variant)

    def is_compared(self, call: Call) -> bool:
        name = name_of(call.operator)
        return (
            torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CUDA")
            and torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU")
            and call.operator.overloadpacket.__name__ not in WITHOUT_VALUES
            and not self.left_out(name)
        )

    @torch.no_grad()
    def compare(self, call: Call) -> None:
        if not self.is_compared(call):
            self.seen.add(call.signature())
            return
        name = name_of(call.operator)
        is_random = torch.Tag.nondeterministic_seeded in call.operator.tags
        try:
            want = call.on("cuda" if is_random else "cpu")
        except (RuntimeError, NotImplementedError, IndexError, ValueError):
            return  # the CPU refuses it: out= of another type, or too small in place
        self.seen.add(call.signature())
        try:
            got = call.on("cuda")
            torch.cuda.synchronize()
        except (RuntimeError, NotImplementedError) as error:
            self.differences[name] = str(error).split("\n", 1)[0]
            return
        found = difference(want, got, is_wider=name in WIDER_ON_CUDA)
        if found is not None:
            types = {str(t.dtype) for t in tree_flatten(call.args)[0] if hasattr(t, "dtype")}
            self.differences[f"{name} of {', '.join(sorted(types))}"] = found
