# SPDX-License-Identifier: Apache-2.0
"""Calls composite operators with cold tensors and counts accesses that no operator announced.

`TENCACHE_CHAOS=1 ... python composite_operators.py OUT.json`. An operator is composite if the
dispatcher runs its CompositeImplicitAutograd kernel for dense CPU tensors. The calls are those of
PyTorch's own operator database (forward, backward, in place, with out=), with each tensor moved
into a block of its own that is large enough to go cold. More calls are written here, for operators
that the database lacks or makes too small.
"""

from __future__ import annotations

import json
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

EXTENT_MIN_BYTES = 4096
SAMPLES_MAX = 4
PREFERRED_KEYS = (
    "CPU",
    "AutogradCPU",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
# Database entries that are slow, or whose samples or results are not dense tensors.
LEFT_OUT_PREFIXES = ("sparse", "_segment", "masked.", "_refs.", "normal", "jiterator")


def composite_names() -> set[str]:
    """The names of PyTorch's composite operators, without overloads."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return {
        name.removeprefix("aten::").split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
        and has_kernel(name, "CompositeImplicitAutograd")
        and not any(has_kernel(name, key) for key in PREFERRED_KEYS)
    }


def operator_database() -> list[Any]:
    """torch.testing's op_db. It imports one package only for assertions that we do not use."""
    if "expecttest" not in sys.modules:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def in_own_block(value: Any) -> Any:
    """A copy of a tensor in a block that can go cold; other values unchanged."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_nested:
        return value
    if value.is_conj() or value.is_neg() or value.is_quantized or value.numel() == 0:
        return value
    span = 1 + sum(
        (size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)
    )
    count = max(span, EXTENT_MIN_BYTES // value.element_size())
    base = torch.zeros(count, dtype=value.dtype)
    moved = base.as_strided(value.shape, value.stride())
    with torch.no_grad():
        moved.copy_(value)
    return moved.detach().requires_grad_(value.requires_grad)


def gradients(result: Any) -> None:
    outputs = [each for each in flat(result) if each.requires_grad]
    if outputs:
        sum(
            (each.abs() if each.is_complex() else each).double().sum() for each in outputs
        ).backward()


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in flat(each)]
    return []


def database_calls(names: set[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    for entry in operator_database():
        if entry.aten_name not in names or entry.name.startswith(LEFT_OUT_PREFIXES):
            continue
        supported = entry.supported_dtypes("cpu")
        if not supported:
            continue
        dtype = torch.float32 if torch.float32 in supported else sorted(supported, key=str)[0]
        grads = entry.supports_autograd and dtype.is_floating_point
        label = f"{entry.name} {entry.variant_test_name}".strip()

        def call(entry: Any = entry, dtype: torch.dtype = dtype, grads: bool = grads) -> None:
            samples = entry.sample_inputs("cpu", dtype, requires_grad=grads)
            for number, sample in enumerate(samples):
                if number == SAMPLES_MAX:
                    break
                call_sample(entry, sample.transform(in_own_block))

        yield label, call


def call_sample(entry: Any, sample: Any) -> None:
    arguments = (sample.input, *sample.args)
    result = entry.op(*arguments, **sample.kwargs)
    gradients(result)
    with torch.no_grad():
        plain = entry.op(*arguments, **sample.kwargs)
        if entry.supports_out and isinstance(plain, torch.Tensor):
            out = in_own_block(torch.zeros_like(plain))
            entry.op(*arguments, **sample.kwargs, out=out)
        if entry.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
            target = in_own_block(sample.input.detach().clone())
            entry.inplace_variant(target, *sample.args, **sample.kwargs)


def cold(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values between -1 and 1, or small whole numbers."""
    values = torch.linspace(-1, 1, int(torch.tensor(shape).prod())).view(shape)
    return values.to(dtype) if dtype.is_floating_point else values.abs().mul(9).to(dtype)


def recurrent(kind: type[torch.nn.RNNBase]) -> None:
    model = kind(48, 40, num_layers=2, bidirectional=True)
    inputs = cold(12, 8, 48).requires_grad_()
    model(inputs)[0].square().sum().backward()
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        inputs, torch.tensor([12, 9, 9, 8, 5, 2, 2, 1])
    )
    output, _ = torch.nn.utils.rnn.pad_packed_sequence(model(packed)[0])
    output.square().sum().backward()
    with torch.no_grad():
        model(inputs)


def long_packed_sequence() -> None:
    """A packed sequence so long that its batch sizes fill a block that can go cold."""
    inputs = torch.nn.utils.rnn.pack_padded_sequence(cold(520, 2, 4), torch.tensor([520, 515]))
    with torch.no_grad():
        torch.nn.utils.rnn.pad_packed_sequence(torch.nn.LSTM(4, 4)(inputs)[0])


def losses() -> None:
    logits, targets = cold(64, 100).requires_grad_(), cold(64, dtype=torch.int64)
    torch.nn.functional.cross_entropy(logits, targets).backward()
    count = 600
    torch.nn.functional.ctc_loss(
        cold(20, count, 12).log_softmax(2),
        torch.ones(count, 5, dtype=torch.int64),
        torch.full((count,), 20),
        torch.full((count,), 5),
    )


def attention() -> None:
    query = cold(2, 4, 64, 32).requires_grad_()
    mask = cold(64, 64) > 0
    torch.nn.functional.scaled_dot_product_attention(query, query, query, mask).sum().backward()
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    layer(cold(4, 32, 64)).sum().backward()
    with torch.no_grad():
        layer.eval()(cold(4, 32, 64))


def pooling() -> None:
    data = cold(2, 16, 512)
    torch.max_pool1d(data, 3)
    torch.max_pool1d(data.requires_grad_(), 3).sum().backward()
    torch.nn.functional.max_pool2d(cold(2, 4, 64, 64).requires_grad_(), 2).sum().backward()
    torch.nn.functional.adaptive_avg_pool2d(cold(2, 4, 64, 64), 1)


def convolutions() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU6(), torch.nn.Dropout()
    )
    model(cold(4, 8, 32, 32)).sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(cold(4, 8, 32, 32)).sum().backward()


def indices() -> None:
    data, where = cold(1200, 4), torch.arange(1, 601)
    torch.tensor_split(data, where)
    data.narrow(0, torch.tensor(3), 5)
    torch.repeat_interleave(data, torch.ones(1200, dtype=torch.int64), 0)
    torch.quasirandom.SobolEngine(64, scramble=True, seed=1).draw(600)


def products() -> None:
    left, right = cold(4, 64, 64).requires_grad_(), cold(64, 64)
    torch.einsum("bij,jk->bik", left, right).sum().backward()
    torch.linalg.multi_dot([right, right, right])
    torch.kron(right, cold(2, 2))
    torch.nn.functional.linear(left, right, cold(64)).sum().backward()
    torch.func.vmap(lambda each: torch.matmul(each, right))(left.detach())
    torch.func.jacrev(lambda each: torch.nn.functional.layer_norm(each, (64,)).sum(1))(right)


WRITTEN_CALLS: dict[str, Callable[[], Any]] = {
    "LSTM": lambda: recurrent(torch.nn.LSTM),
    "GRU": lambda: recurrent(torch.nn.GRU),
    "RNN": lambda: recurrent(torch.nn.RNN),
    "a long packed sequence": long_packed_sequence,
    "losses": losses,
    "attention": attention,
    "pooling": pooling,
    "convolutions": convolutions,
    "indices": indices,
    "products": products,
}


def main(path: str) -> None:
    warnings.simplefilter("ignore")
    names = composite_names()
    calls = [*database_calls(names), *WRITTEN_CALLS.items()]
    import tencache

    tencache.enable()
    report: dict[str, Any] = {}
    for label, call in calls:
        before = tencache.stats()["unannounced"]
        torch.manual_seed(1)
        error = ""
        try:
            call()
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        after = tencache.stats()["unannounced"]
        accesses = sum(after.values()) - sum(before.values())
        report[label] = {"unannounced": accesses, "error": error}
    result = {"calls": report, "composite": len(names), "stats": tencache.stats()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1])
