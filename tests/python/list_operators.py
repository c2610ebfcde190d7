# SPDX-License-Identifier: Apache-2.0
"""Calls every multi-tensor operator of the dispatcher and writes digests of all its effects.

`python list_operators.py OUT.json [--tencache]` finds the operators by their schemas and makes
their arguments from them, the same in every process, so two runs can be compared bit for bit. A
digest covers what an operator returned, its effect on each argument, and gradients where requested;
an exception counts by its type and text. With --tencache the TENCACHE variables apply, and each
case also tells into how many chunks its call was cut.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

PREFIXES = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")
LENGTH = 5
# Values for tensors of one element.
UNIT_TENSORS = {"lr": 0.01, "inv_scale": 0.5, "grad_scale": 2.0, "found_inf": 0.0, "other": 0.75}
SCALARS = {"beta1": 0.9, "beta2": 0.999, "lr": 0.01, "eps": 1e-8, "weight_decay": 0.1}


# Calls left out, by the start of the operator's name and the case's name, with the reason.
LEFT_OUT = {
    ("aten::_fused_sgd", "bfloat16"): "PyTorch's kernel reads the momentum buffer as if it were "
    "float32: past its end, and with another result at each call, also without tencache",
}


@dataclass(frozen=True)
class Case:
    """One way to call an operator."""

    name: str
    dtype: torch.dtype = torch.float32
    layout: str = "contiguous"  # or strided, shared, repeated, empty
    flags: bool = False  # the value of every bool argument
    with_scaling: bool = False  # whether optional tensors are given
    found_inf: float = 0.0
    with_grad: bool = False


CASES = (
    Case("plain"),
    Case("double", dtype=torch.float64),
    Case("bfloat16", dtype=torch.bfloat16),
    Case("int64", dtype=torch.int64),
    Case("strided", layout="strided"),
    Case("shared storage", layout="shared"),
    Case("one tensor twice", layout="repeated"),
    Case("some empty", layout="empty"),
    Case("flags", flags=True),
    Case("scaled", with_scaling=True),
    Case("scaled, not finite", with_scaling=True, found_inf=1.0),
    Case("gradients", with_grad=True),
)


def operators() -> Iterator[torch._C.FunctionSchema]:
    """Schemas of all operators with the prefixes that take tensor lists, by name."""
    found = [
        schema
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith(PREFIXES)
        and any(str(argument.type) == "List[Tensor]" for argument in schema.arguments)
    ]
    return iter(sorted(found, key=full_name))


def full_name(schema: torch._C.FunctionSchema) -> str:
    return schema.name + ("." + schema.overload_name if schema.overload_name else "")


class Maker:
    """Makes the arguments of one call; the values depend on the case alone."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._generator = torch.Generator().manual_seed(1234)

    def tensors(self, length: int = LENGTH) -> list[torch.Tensor]:
        """Square matrices of different sizes, values between 0.1 and 0.9 (int64: 1 to 8)."""
        made = [self._matrix(40 + 8 * index) for index in range(length)]
        if self._case.layout == "shared":
            base = self._matrix(64 * 2)
            made[0], made[3] = base[:64, :64], base[64:, 64:]
        elif self._case.layout == "repeated":
            made[3] = made[1]
        elif self._case.layout == "empty":
            made[0] = made[0][:0]
            made[2] = made[2][:0]
        return made

    def argument(self, argument: torch._C.Argument) -> Any:
        name, kind = argument.name, str(argument.type)
        if kind == "List[Tensor]":
            return self._list(name)
        if kind == "Tensor" and name == "scalars":
            return torch.linspace(0.5, 1.5, LENGTH, dtype=torch.float32)
        if kind in ("Tensor", "Optional[Tensor]"):
            if kind != "Tensor" and not self._case.with_scaling:
                return None
            value = self._case.found_inf if name == "found_inf" else UNIT_TENSORS[name]
            return torch.tensor(value)
        if kind == "List[number]":
            return [1 + index for index in range(LENGTH)]
        if kind == "bool":
            return self._case.flags
        if kind in ("number", "float"):
            return SCALARS.get(name, 2)
        if kind.startswith("Optional["):
            return None
        raise NotImplementedError(f"{name} of type {kind}")

    def _list(self, name: str) -> list[torch.Tensor]:
        if name == "out":
            return [torch.empty(0, dtype=self._case.dtype) for _ in range(LENGTH)]
        if name == "state_steps":
            return [torch.tensor(float(index + 1)) for index in range(LENGTH)]
        if name == "max_exp_avg_sqs" and not self._case.flags:
            return []
        return self.tensors()

    def _matrix(self, size: int) -> torch.Tensor:
        values = torch.rand(size, size, generator=self._generator) * 0.8 + 0.1
        if self._case.dtype == torch.int64:
            values = values * 9
        made = values.to(self._case.dtype)
        if self._case.layout == "strided":
            made = made.t()
        return made.requires_grad_(self._case.with_grad and made.is_floating_point())


class Digest:
    """A hash of the kinds of values that operators take and return."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            described = (value.dtype, tuple(value.shape), value.stride(), value.requires_grad)
            self._hash.update(str(described).encode())
            plain = value.detach().contiguous()
            self._hash.update(bytes(plain.view(-1).view(torch.uint8).numpy()))
        elif isinstance(value, (list, tuple)):
            self._hash.update(f"{len(value)}[".encode())
            for each in value:
                self.add(each)
        else:
            self._hash.update(repr(value).encode())

    def text(self) -> str:
        return self._hash.hexdigest()


def call(schema: torch._C.FunctionSchema, case: Case) -> str:
    """Calls the operator once; returns a digest of everything visible afterwards."""
    maker = Maker(case)
    arguments = [(each, maker.argument(each)) for each in schema.arguments]
    positional = [value for each, value in arguments if not each.kwarg_only]
    named = {each.name: value for each, value in arguments if each.kwarg_only}
    packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
    operator = getattr(packet, schema.overload_name or "default")
    digest = Digest()
    with torch.set_grad_enabled(case.with_grad):
        results = operator(*positional, **named)
        if case.with_grad:
            digest.add(gradients(results, positional))
    digest.add(results)
    digest.add([value for _, value in arguments])
    return digest.text()


def gradients(results: Any, arguments: list[Any]) -> list[torch.Tensor | None]:
    outputs = [each for each in flat(results) if each.requires_grad]
    inputs = [each for each in flat(arguments) if each.requires_grad]
    if not outputs:
        return []
    total = sum((each.double() ** 2).sum() for each in outputs)
    return list(torch.autograd.grad(total, inputs, allow_unused=True))


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in flat(each)]
    return []


def cases_of(schema: torch._C.FunctionSchema) -> Iterator[Case]:
    """The cases that differ for this operator, given the kinds of its arguments."""
    kinds = {str(argument.type) for argument in schema.arguments}
    for case in CASES:
        if any(schema.name.startswith(name) and case.name == left for name, left in LEFT_OUT):
            continue
        if case.flags and "bool" not in kinds:
            continue
        if case.with_scaling and "Optional[Tensor]" not in kinds and "_amp_" not in schema.name:
            continue
        yield case


def main(path: str, with_tencache: bool) -> None:
    warnings.simplefilter("ignore")  # resized outputs; their text does not matter
    chunks_so_far = lambda: 0  # noqa: E731
    if with_tencache:
        import tencache
        from tencache._library import shim
        from tencache._torch_version import running

        tencache.enable()
        doors = shim(running(torch))
        chunks_so_far = lambda: doors.describe()["split_chunks"]  # noqa: E731
    report: dict[str, Any] = {}
    for schema in operators():
        outcomes = report[full_name(schema)] = {}
        for case in cases_of(schema):
            runs_before = chunks_so_far()
            try:
                digest, error = call(schema, case), None
            except Exception as raised:
                digest, error = None, f"{type(raised).__name__}: {raised}"
            outcomes[case.name] = {
                "digest": digest,
                "error": error,
                "runs": chunks_so_far() - runs_before,
            }
    result: dict[str, Any] = {"operators": report}
    if with_tencache:
        result["stats"] = tencache.stats()
        result["left_alone"] = doors.describe()["left_alone"]
        result["split"] = doors.describe()["split"]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1], "--tencache" in sys.argv[2:])
