# SPDX-License-Identifier: Apache-2.0
"""Operators on the emulated GPU give what the CPU gives, bit for bit.

Each case of the table is one call on tensors of fixed seeds. It runs once on the CPU and once on
"cuda"; results and gradients must be equal, NaN where NaN. Dropout draws from another generator
than the CPU's, so only its statistics are compared. A real GPU rounds differently: the suite is for
tests/emulated_gpu/run, and skips where torch sees no GPU. One thread runs it all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() == 0, reason="needs a GPU: start it by tests/emulated_gpu/run"
)


CASES: dict[str, Callable[[Source], Any]] = {}

UNARY = [
    "abs",
    "neg",
    "exp",
    "expm1",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "sigmoid",
    "erf",
    "erfc",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "sign",
    "square",
    "reciprocal",
    "isnan",
    "isfinite",
    "relu",
    "lgamma",
    "digamma",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "maximum",
    "minimum",
    "fmod",
    "remainder",
    "atan2",
    "eq",
    "lt",
    "ge",
    "hypot",
    "copysign",
    "logaddexp",
]
REDUCTIONS = [
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "var",
    "std",
    "logsumexp",
    "norm",
    "argmax",
    "argmin",
    "any",
    "all",
    "cumsum",
    "cumprod",
]
SMOOTH = [
    "relu",
    "gelu",
    "silu",
    "elu",
    "leaky_relu",
    "softplus",
    "mish",
    "hardswish",
    "logsigmoid",
    "softsign",
    "selu",
    "hardtanh",
]
TYPES = (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)


def add_case(name: str, call: Callable[[Source], Any]) -> None:
    assert name not in CASES
    CASES[name] = call


for name in UNARY:
    add_case(name, lambda r, name=name: getattr(torch, name)(r(5, 7)))
for name in BINARY:
    add_case(name, lambda r, name=name: getattr(torch, name)(r(5, 7), r(7)))
for name in REDUCTIONS:
    add_case(name, lambda r, name=name: getattr(torch, name)(r(6, 9), dim=1))
for name in SMOOTH:
    add_case(f"{name}_and_gradient", lambda r, name=name: getattr(F, name)(r(5, 7, grad=True)))
for dtype in TYPES:
    add_case(f"add_{dtype}", lambda r, dtype=dtype: r(4, 5).mul(9).abs().to(dtype) + 3)
    add_case(f"sum_{dtype}", lambda r, dtype=dtype: r(4, 5).mul(9).abs().to(dtype).sum(0))

CASES |= {
    "matmul": lambda r: r(5, 7, grad=True) @ r(7, 3, grad=True),
    "matmul_bfloat16": lambda r: r(5, 7).bfloat16() @ r(7, 3).bfloat16(),
    "addmm": lambda r: torch.addmm(r(3), r(5, 7, grad=True), r(7, 3)),
    "bmm": lambda r: torch.bmm(r(2, 5, 7, grad=True), r(2, 7, 3, grad=True)),
    "baddbmm": lambda r: torch.baddbmm(r(2, 5, 3), r(2, 5, 7), r(2, 7, 3)),
    "mv": lambda r: torch.mv(r(5, 7), r(7)),
    "linear": lambda r: F.linear(r(4, 7, grad=True), r(3, 7, grad=True), r(3, grad=True)),
    "softmax": lambda r: F.softmax(r(4, 7, grad=True), -1),
    "log_softmax": lambda r: F.log_softmax(r(4, 7, grad=True), -1),
    "layer_norm": lambda r: F.layer_norm(r(4, 8, grad=True), (8,), r(8, grad=True), r(8)),
    "batch_norm": lambda r: F.batch_norm(
        r(4, 3, 5, grad=True), r(3), r(3).abs(), r(3, grad=True), r(3), training=True
    ),
    "group_norm": lambda r: F.group_norm(r(2, 6, 5, grad=True), 3, r(6, grad=True), r(6)),
    "conv1d": lambda r: F.conv1d(r(2, 3, 9, grad=True), r(4, 3, 3, grad=True), r(4)),
    "conv2d": lambda r: F.conv2d(r(2, 3, 8, 8, grad=True), r(4, 3, 3, 3, grad=True), r(4)),
    "conv_transpose2d": lambda r: F.conv_transpose2d(r(1, 3, 5, 5), r(3, 2, 3, 3)),
    "max_pool2d": lambda r: F.max_pool2d(r(2, 3, 8, 8, grad=True), 2),
    "avg_pool2d": lambda r: F.avg_pool2d(r(2, 3, 8, 8, grad=True), 2),
    "adaptive_avg_pool2d": lambda r: F.adaptive_avg_pool2d(r(2, 3, 8, 8, grad=True), 3),
    "interpolate": lambda r: F.interpolate(r(1, 2, 4, 4, grad=True), scale_factor=2),
    "pad_reflect": lambda r: F.pad(r(1, 3, 8), (2, 2), mode="reflect"),
    "embedding": lambda r: F.embedding(r.integers(6, high=9), r(9, 4, grad=True)),
    "gather": lambda r: r(4, 9, grad=True).gather(1, r.integers(4, 3, high=9)),
    "scatter": lambda r: r(4, 9).scatter(1, r.integers(4, 1, high=9), r(4, 1)),
    "scatter_add": lambda r: r(4, 9).scatter_add(1, r.integers(4, 3, high=9), r(4, 3)),
    "index_select": lambda r: r(9, 4).index_select(0, r.integers(3, high=9)),
    "index": lambda r: r(9, 4, grad=True)[r.integers(3, high=9)],
    "index_put": lambda r: r(9, 4).index_put((r.integers(3, high=9),), r(3, 4), accumulate=True),
    "sort": lambda r: r(4, 9).sort(1),
    "topk": lambda r: r(4, 9).topk(3),
    "unique": lambda r: r.integers(20, high=5).unique(return_counts=True),
    "nonzero": lambda r: (r(4, 9) > 0).nonzero(),
    "masked_select": lambda r: r(4, 9).masked_select(r(4, 9) > 0),
    "masked_fill": lambda r: r(4, 9).masked_fill(r(4, 9) > 0, 2.0),
    "where": lambda r: torch.where(r(4, 9) > 0, r(4, 9), r(9)),
    "cat": lambda r: torch.cat([r(2, 3, grad=True), r(4, 3, grad=True)]),
    "stack": lambda r: torch.stack([r(2, 3), r(2, 3)]),
    "split": lambda r: [part * 2 for part in r(9, 4).split(4)],
    "transposed": lambda r: r(5, 7).t() + r(7, 5),
    "strided": lambda r: r(9, 9)[::2, 1::3].exp(),
    "contiguous": lambda r: r(3, 4, 5).permute(2, 0, 1).contiguous(),
    "out": lambda r: torch.add(r(4, 5), r(4, 5), out=r(4, 5)),
    "out_resized": lambda r: torch.mm(r(4, 5), r(5, 3), out=r(0)),
    "in_place": lambda r: r(4, 5).mul_(r(5)).add_(1).clamp_(min=0),
    "copy_other_type": lambda r: r(4, 5).copy_(r(4, 5).bfloat16()),
    "bool": lambda r: (r(4, 5) > 0) & ~(r(5) > 0),
    "tril": lambda r: r(5, 5).tril(),
    "flip": lambda r: r(5, 5).flip(0),
    "bincount": lambda r: r.integers(20, high=5).bincount(),
    "histc": lambda r: r(30).histc(5, -2, 2),
    "attention": lambda r: torch.ops.aten._scaled_dot_product_attention_math(
        r(1, 2, 5, 4, grad=True), r(1, 2, 5, 4), r(1, 2, 5, 4)
    )[0],
    "cross_entropy": lambda r: F.cross_entropy(r(6, 9, grad=True), r.integers(6, high=9)),
    "nll_loss": lambda r: F.nll_loss(r(6, 9, grad=True), r.integers(6, high=9)),
    "mse_loss": lambda r: F.mse_loss(r(6, 9, grad=True), r(6, 9)),
    "foreach_add": lambda r: torch._foreach_add([r(3), r(4, 2)], 2.0),
}


class Source:
    """Makes the same tensors on each device, and keeps those that want gradients."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.generator = torch.Generator().manual_seed(7)
        self.leaves: list[torch.Tensor] = []

    def __call__(self, *sizes: int, grad: bool = False) -> torch.Tensor:
        made = torch.randn(sizes, generator=self.generator).to(self.device)
        if grad:
            self.leaves.append(made.requires_grad_())
        return made

    def integers(self, *sizes: int, high: int) -> torch.Tensor:
        return torch.randint(high, sizes, generator=self.generator).to(self.device)


def tensors_of(result: Any) -> Iterable[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def evaluate(call: Callable[[Source], Any], device: str) -> list[torch.Tensor]:
    source = Source(device)
    results = tensors_of(call(source))
    if source.leaves:
        results[0].pow(2).sum().backward()
    assert all(result.device.type == device for result in results)
    return [t.detach().cpu() for t in [*results, *(leaf.grad for leaf in source.leaves)]]


@pytest.mark.parametrize("name", CASES)
def test_equals_cpu(name: str) -> None:
    expected, found = (evaluate(CASES[name], device) for device in ("cpu", "cuda"))
    assert len(expected) == len(found)
    for want, got in zip(expected, found, strict=True):
        assert want.dtype == got.dtype
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=["foreach", "fused"])
def test_adamw(options: dict[str, bool]) -> None:
    found = []
    for device in ("cpu", "cuda"):
        source = Source(device)
        weights = [source(3, 4, grad=True), source(5, grad=True)]
        optimizer = torch.optim.AdamW(weights, lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            sum(weight.pow(3).sum() for weight in weights).backward()
            optimizer.step()
        found.append([weight.detach().cpu() for weight in weights])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_dropout_keeps_its_share_and_scales_it() -> None:
    torch.manual_seed(3)
    result = F.dropout(torch.ones(20000, device="cuda"), 0.25).cpu()
    kept = result != 0
    assert 0.73 < kept.double().mean().item() < 0.77
    assert torch.equal(result[kept], torch.full_like(result[kept], 1 / 0.75))


def test_operator_without_cpu_kernel_names_itself() -> None:
    with pytest.raises(NotImplementedError, match="aten::_cudnn_init_dropout_state"):
        torch.ops.aten._cudnn_init_dropout_state(0.5, True, 1, device="cuda", dtype=torch.uint8)


def test_mixed_devices_raise() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="cuda") + torch.ones(3)
