# SPDX-License-Identifier: Apache-2.0
"""The building blocks of training, each as a program of a few lines, on the emulated GPU.

Most must give the CPU's bytes, results and gradients. Where PyTorch takes another way on CUDA
(fused cells of LSTM and GRU, RMS norm, autocast's lists of operators), the results must be close,
or the same program must give the same bytes twice. Random numbers differ from the CPU's: they must
follow from the seed, and differ from replay to replay of a graph. The suite is for
tests/emulated_gpu/run, and skips if torch sees no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from operator_comparison import difference
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() == 0, reason="needs a GPU: start it by tests/emulated_gpu/run"
)

Tensors = list[torch.Tensor]
TOLERANCE = 1e-5


def on_host(tensors: Iterable[torch.Tensor]) -> Tensors:
    return [t.detach().to("cpu", copy=True) for t in tensors]


def trained(module: nn.Module, device: str, *inputs: Any) -> Tensors:
    """Results, gradients of inputs and weights, and buffers, after one step forward and back."""
    module.to(device)
    given = [x.to(device) if hasattr(x, "to") else x for x in inputs]
    leaves = [x.requires_grad_() for x in given if torch.is_tensor(x) and x.is_floating_point()]
    result = module(*given)
    results = [result] if torch.is_tensor(result) else list(result)
    results = [t for t in results if torch.is_tensor(t)]
    sum(t.pow(3).sum() for t in results).backward()  # squares of a norm would have no gradient
    gradients = [p.grad for p in [*leaves, *module.parameters()] if p.grad is not None]
    return on_host([*results, *(g.to_dense() for g in gradients), *module.buffers()])


def assert_as_cpu(program: Callable[[str], Tensors], tolerance: float | None = None) -> None:
    found = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(11)
        found[device] = program(device)
    assert found["cpu"]
    assert difference(found["cpu"], found["cuda"], tolerance=tolerance) is None


def test_quotients_of_integers_have_the_default_type_of_their_moment() -> None:
    def program(device: str) -> Tensors:
        i, j = (torch.arange(1, 9, device=device) * k for k in (1, 3))
        first = torch.get_default_dtype()
        results = [i / j]
        torch.cuda.synchronize()  # the kernel runs under the type of its launch
        torch.set_default_dtype(torch.float64)
        try:
            results.append(i / j)
            torch.cuda.synchronize()
        finally:
            torch.set_default_dtype(first)
        return on_host([*results, i / j])

    assert_as_cpu(program)


def test_convolutions() -> None:
    def program(device: str) -> Tensors:
        result = []
        for dimensions in (1, 2, 3):
            x = torch.randn(2, 4, *[6] * dimensions)
            for kind, options in (
                ("Conv", {"groups": 1}),
                ("Conv", {"groups": 2, "stride": 2, "padding": 1}),
                ("Conv", {"groups": 4, "dilation": 2, "bias": False}),
                ("ConvTranspose", {"groups": 2, "stride": 2, "output_padding": 1}),
            ):
                module = getattr(nn, f"{kind}{dimensions}d")(4, 8, 3, **options)
                result += trained(module, device, x.clone())
        return result

    assert_as_cpu(program)


def test_norms() -> None:
    def program(device: str) -> Tensors:
        x = torch.randn(3, 4, 5, 5)
        modules = [
            nn.BatchNorm2d(4),
            nn.BatchNorm2d(4).eval(),
            nn.GroupNorm(2, 4),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            nn.LayerNorm([5, 5]),
            nn.LocalResponseNorm(2),
            nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 2, 1)),
        ]
        result = [t for module in modules for t in trained(module, device, x.clone())]
        result += trained(nn.BatchNorm1d(4), device, x[:, :, 0, 0].clone())
        return result + trained(nn.BatchNorm3d(4), device, x.unsqueeze(2).clone())

    assert_as_cpu(program)


def test_rms_norm_is_close() -> None:
    """CUDA has a fused kernel, the CPU a composite."""
    for shape in ([6], [5, 6]):
        for has_weight in (True, False):
            assert_as_cpu(
                lambda device, shape=shape, has_weight=has_weight: trained(
                    nn.RMSNorm(shape, elementwise_affine=has_weight),
                    device,
                    torch.randn(4, 5, 6),
                ),
                TOLERANCE,
            )


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_networks_are_close(kind: str) -> None:
    """Without cuDNN, CUDA runs fused cells of LSTM and GRU, the CPU one operator after another."""

    def program(device: str) -> Tensors:
        result = []
        for options in ({}, {"num_layers": 2, "bidirectional": True, "bias": False}):
            module = getattr(nn, kind)(3, 4, batch_first=True, **options).to(device)
            x = torch.randn(2, 5, 3).to(device).requires_grad_()
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
            for out in (module(x)[0], module(packed)[0].data):
                out.pow(2).sum().backward()
                result.append(out)
            result += [x.grad, *(p.grad for p in module.parameters())]
        result += trained(getattr(nn, f"{kind}Cell")(3, 4), device, torch.randn(2, 3))
        return on_host(result)

    assert_as_cpu(program, TOLERANCE)


def sparse_training(device: str) -> Tensors:
    result = []
    modules: list[tuple[nn.Module, bool]] = [(nn.Embedding(20, 4, sparse=True), True)]
    modules += [(nn.Embedding(20, 4, padding_idx=3, max_norm=1.0), False)]
    modules += [
        (nn.EmbeddingBag(20, 4, mode=mode, sparse=sparse), sparse)
        for mode, sparse in (("sum", True), ("mean", True), ("sum", False), ("mean", False))
    ]
    modules += [(nn.EmbeddingBag(20, 4, mode="max"), False)]
    for module, is_sparse in modules:
        module.to(device)
        picked = torch.tensor([[1, 2, 3], [3, 3, 7]]).to(device)
        optimizer = (torch.optim.SparseAdam if is_sparse else torch.optim.Adam)(module.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            for scale in (1.0, 2.0):  # the second gradient is added to the first
                (module(picked) * scale).pow(2).sum().backward()
            optimizer.step()
        gradient = module.weight.grad
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        result += [module.weight, gradient.to_dense()]
        if is_sparse:
            whole = gradient.coalesce()
            result += [whole.indices(), whole.values(), (gradient * 2).to_dense(), gradient.norm()]
            result += [
                torch.sparse.mm(gradient.to_dense().to_sparse(), torch.ones(4, 3).to(device))
            ]
    return on_host(result)


def test_sparse_gradients() -> None:
    assert_as_cpu(sparse_training)


def test_operators_of_sparse_tensors() -> None:
    def program(device: str) -> Tensors:
        torch.manual_seed(3)
        dense, other = (torch.randn(4, 4).to(device) for _ in range(2))
        a, b = dense.relu().to_sparse(), other.relu().to_sparse()
        stacked = torch.stack([dense, other.tril()]).to_sparse()
        made = [torch.hspmm(a, dense), torch.sspaddmm(a, b, dense), a * b, torch.cat([a, b])]
        made += [a.index_select(1, torch.tensor([2, 0]).to(device)), dense.sparse_mask(b)]
        made += [torch.addmm(dense, a, other, beta=0.5), torch.bmm(stacked, stacked.to_dense())]
        for function in (
            lambda x: torch.sparse.mm(x, b),
            lambda x: torch.sparse.softmax(x, 1),
            lambda x: torch.sparse.log_softmax(x, 0),
            lambda x: torch.sparse.sum(x, 1),
            lambda x: x + b,
        ):
            x = a.clone().requires_grad_()
            out = function(x)
            torch.sparse.sum(out * 2).backward()
            made += [out, x.grad]
        return on_host([t.to_dense() for t in made])

    assert_as_cpu(program)


def test_attention() -> None:
    def program(device: str) -> Tensors:
        result = []
        mask = torch.ones(5, 7).tril(2)
        for options in (
            {},
            {"is_causal": True},
            {"attn_mask": mask.bool().to(device)},
            {"attn_mask": mask.to(device), "scale": 0.3},
        ):
            made = [torch.randn(2, 3, n, 4).to(device).requires_grad_() for n in (5, 7, 7)]
            with sdpa_kernel(SDPBackend.MATH):  # the CPU has a flash attention of its own
                out = F.scaled_dot_product_attention(*made, **options)
            out.pow(2).sum().backward()
            result += [out, *(t.grad for t in made)]
        return on_host(result)

    assert_as_cpu(program)


def attention_with_dropout(_: int) -> Tensors:
    torch.manual_seed(4)
    made = [torch.randn(2, 3, 5, 4, device="cuda").requires_grad_() for _ in range(3)]
    out = F.scaled_dot_product_attention(*made, dropout_p=0.5)
    out.sum().backward()
    return on_host([out, *(t.grad for t in made)])


def test_attention_with_dropout_follows_from_the_seed() -> None:
    first, second = map(attention_with_dropout, range(2))
    assert difference(first, second) is None


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "Adadelta"]
)
def test_optimizers(name: str) -> None:
    kinds = ["foreach", "fused"] if name in ("SGD", "Adam", "AdamW") else ["foreach"]

    def program(device: str) -> Tensors:
        result = []
        for kind in kinds:
            weights = [torch.randn(n, 3).to(device).requires_grad_() for n in (3, 5)]
            optimizer = getattr(torch.optim, name)(
                weights, lr=0.1, weight_decay=0.01, **{kind: True}
            )
            for _ in range(3):
                optimizer.zero_grad()
                sum(weight.pow(3).sum() for weight in weights).backward()
                nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
                optimizer.step()
            result += weights
        return on_host(result)

    assert_as_cpu(program)


def mixed_precision(dtype: torch.dtype) -> tuple[Tensors, list[float]]:
    """The weights and the scale after each step; the second step's loss overflows."""
    torch.manual_seed(2)
    module = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Flatten(), nn.Linear(24, 2)).cuda()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    weights: Tensors = []
    scales = []
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            out = module(torch.randn(4, 3, 8, device="cuda"))
            assert out.dtype == dtype
            loss = out.float().pow(2).mean() * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        weights += on_host([module[2].weight])
        scales.append(scaler.get_scale())
    return weights, scales


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scaler_skips_the_step_that_overflows(dtype: torch.dtype) -> None:
    """Autocast runs other operators in half precision on CUDA than on the CPU."""
    weights, scales = mixed_precision(dtype)
    assert scales == [1024.0, 512.0, 512.0]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert all(torch.isfinite(weight).all() for weight in weights)
    assert difference(weights, mixed_precision(dtype)[0]) is None


def test_dropout_keeps_its_share_and_scales_it() -> None:
    torch.manual_seed(3)
    x = torch.ones(20000, device="cuda", requires_grad=True)
    result = F.dropout(x, 0.25)
    result.sum().backward()
    kept = result.detach().cpu() != 0
    assert 0.73 < kept.double().mean().item() < 0.77
    assert torch.equal(result.detach().cpu()[kept], torch.full((int(kept.sum()),), 1 / 0.75))
    assert torch.equal(x.grad, result.detach())
    assert torch.equal(F.dropout(x, 0.25, training=False), x)
    assert not F.dropout(x, 1.0).any()


def test_state_of_the_generator_can_be_kept_and_set() -> None:
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    first = [torch.rand(9, device="cuda"), F.dropout(torch.ones(99, device="cuda"))]
    assert not torch.equal(first[0], torch.rand(9, device="cuda"))
    torch.cuda.set_rng_state(state)
    again = [torch.rand(9, device="cuda"), F.dropout(torch.ones(99, device="cuda"))]
    assert difference(on_host(first), on_host(again)) is None
    own = [torch.Generator("cuda").manual_seed(7) for _ in range(2)]
    drawn = [torch.randn(9, device="cuda", generator=generator) for generator in own]
    assert torch.equal(*drawn)


def captured(function: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = function()
    # PyTorch writes the seed in the capturing stream before it captures. Without this wait, a
    # replay in another stream may see that seed instead of its own.
    torch.cuda.current_stream().wait_stream(stream)
    return graph, result


def test_each_replay_of_a_graph_draws_its_own_numbers() -> None:
    x = torch.ones(200, device="cuda")
    graph, result = captured(lambda: F.dropout(x, 0.5) + torch.rand_like(x))

    def replays() -> Tensors:
        torch.cuda.manual_seed(9)
        found = []
        for _ in range(3):
            graph.replay()
            found += on_host([result])
        return found

    first = replays()
    assert not any(torch.equal(first[i], first[i - 1]) for i in range(3))
    assert difference(first, replays()) is None


def test_a_step_in_a_graph_trains_as_without() -> None:
    """Captures backward, batch norm and a capturable optimizer; inputs change between replays."""

    def model() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(6)
        module = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.GELU(), nn.Conv1d(4, 1, 3))
        module.cuda()
        return module, torch.optim.AdamW(module.parameters(), lr=0.1, capturable=True)

    inputs = [torch.randn(2, 3, 8, device="cuda") for _ in range(3)]
    # Both runs take four steps: one to warm up, and then one for each input.
    results = []
    for is_captured in (False, True):
        module, optimizer = model()
        held = inputs[0].clone()

        def step(
            module: nn.Module = module,
            optimizer: torch.optim.Optimizer = optimizer,
            held: torch.Tensor = held,
        ) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = module(held).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss

        run: Callable[[], object] = step
        if is_captured:
            run = captured(step)[0].replay
        else:
            step()
        for given in inputs:
            held.copy_(given)
            run()
        results.append(on_host([*module.parameters(), *module.buffers()]))
    assert difference(*results) is None


def test_operators_in_a_graph_give_the_bytes_of_the_cpu() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(0, device=x.device)
        torch.mm(x, x.t(), out=y)
        y.mul_(0.5).add_(1)
        torch._foreach_mul_([y, x], 0.5)
        return torch.cat([F.softmax(y, -1), F.layer_norm(y, (4,)), y.sort(1)[0], y.half().float()])

    torch.manual_seed(1)
    given = [torch.randn(4, 6) for _ in range(3)]
    held = given[0].cuda()
    graph, result = captured(lambda: program(held))
    for x in given:
        held.copy_(x)
        graph.replay()
        assert difference(program(x.clone()), result.cpu()) is None


def test_an_operator_that_waits_cannot_be_captured() -> None:
    x = torch.ones(3, device="cuda")
    with (
        pytest.raises(RuntimeError, match="aten::nonzero waits for its results"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        x.nonzero()
    assert torch.equal((x + 1).cpu(), torch.full((3,), 2.0))


def test_checkpointed_layers_give_the_same_gradients() -> None:
    """Dropout draws the same numbers when a layer is computed again."""

    def program(is_kept: bool) -> Tensors:
        torch.manual_seed(8)
        module = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.GELU()).cuda()
        x = torch.randn(4, 6, device="cuda", requires_grad=True)
        y = module(x) if is_kept else checkpoint(module, x, use_reentrant=False)
        y.pow(2).sum().backward()
        return on_host([y, x.grad, *(p.grad for p in module.parameters())])

    assert difference(program(True), program(False)) is None


def test_compiled_to_eager_operators() -> None:
    torch.manual_seed(8)
    module = nn.Sequential(nn.Conv1d(3, 4, 3), nn.GELU(), nn.LayerNorm(6)).cuda()
    compiled = torch.compile(module, backend="aot_eager")
    x = torch.randn(2, 3, 8, device="cuda")
    results = []
    for function in (module, compiled):
        module.zero_grad()
        y = function(x)
        y.pow(2).sum().backward()
        results.append(on_host([y, *(p.grad for p in module.parameters())]))
    assert difference(*results) is None
