# SPDX-License-Identifier: Apache-2.0
"""What the gate sees of a program; opens and closes must balance.

Each test makes tensors cold by evicting everything that may be evicted, then checks which of them
an operator brought back. A leaked pin shows as a tensor that can no longer go cold.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import pytest
from conftest import Finished

# Blocks of 4 KiB are extents, the first one arms the hooks, and nothing leaves by itself. Plans are
# off: a tensor that came back ahead of its use would hide that the gate missed it.
EXTENTS = {
    "TENCACHE_DEVICE_MEMORY": "256MiB",
    "TENCACHE_EXTENT_MIN": "4KiB",
    "TENCACHE_ARM_AT": "0.00001",
    "TENCACHE_PLAN": "off",
    "TENCACHE_QUIET": "1",
}

PROBE = """
import ctypes, pathlib, threading, warnings
import torch, tencache
tencache.enable()
core = ctypes.CDLL(str(pathlib.Path(tencache.__file__).with_name("libtencache.so")))
core.tencache_is_cold.argtypes = [ctypes.c_void_p]
core.tencache_evict_all.restype = ctypes.c_uint64

def address(tensor):
    return tensor.untyped_storage().data_ptr()

def is_cold(tensor):
    # 1 means cold, and 0 resident. -1 means no extent; then the test would prove nothing.
    state = core.tencache_is_cold(address(tensor))
    assert state >= 0
    return state == 1

def all_cold(tensors):
    return all([is_cold(each) for each in tensors])

def none_cold(tensors):
    return not any([is_cold(each) for each in tensors])

def make(*shape, dtype=torch.float32):
    # The first op arms, so a second one names the tensor to the gate.
    tensor = torch.ones(*shape, dtype=dtype)
    tensor.view(-1)
    return tensor

def evict(*tensors):
    core.tencache_evict_all()
    assert all_cold(tensors), [is_cold(each) for each in tensors]

def brings_back(call, *tensors):
    evict(*tensors)
    result = call()
    assert none_cold(tensors), [is_cold(each) for each in tensors]
    evict(*tensors)
    return result

def leaves_cold(call, *tensors):
    evict(*tensors)
    result = call()
    assert all_cold(tensors), [is_cold(each) for each in tensors]
    return result

make(2048)
"""

Run = Callable[..., Finished]


def test_inputs_of_all_kinds_are_found(run_forked: Run) -> None:
    run_forked(
        PROBE,
        """
a, b, c = make(64, 64), make(64, 64), make(64, 64)
rows = make(2048, dtype=torch.int64)
wide = make(2048, 4)
brings_back(lambda: a + b, a, b)
brings_back(lambda: torch.cat([a, b, c]), a, b, c)
brings_back(lambda: torch.add(a, b, out=c), a, b, c)
brings_back(lambda: a.mul_(b), a, b)
# These calls take Tensor?[] with a gap, Tensor?, and lists that are cut.
brings_back(lambda: wide[:, rows * 0], wide, rows)
brings_back(lambda: torch.nn.functional.layer_norm(a, (64,), None, None), a)
weight = make(1024)
brings_back(lambda: torch.nn.functional.layer_norm(make(8, 1024), (1024,), weight, None), weight)
brings_back(lambda: torch._foreach_add([a, b], [c, c]), a, b, c)
lstm = torch.nn.LSTM(32, 32)
hidden = (make(1, 32, 32), make(1, 32, 32))
parameters = [each.data for each in lstm.parameters() if each.numel() >= 1024]
brings_back(lambda: lstm(make(5, 32, 32), hidden), *hidden, *parameters)
""",
        env=EXTENTS,
    )


def test_tensors_that_keep_bytes_elsewhere(run_forked: Run) -> None:
    run_forked(
        PROBE,
        """
warnings.simplefilter("ignore")
dense = make(64, 64)
coo = dense.to_sparse()
brings_back(lambda: torch.sparse.mm(coo, dense), coo._indices(), coo._values(), dense)
square = make(1024, 1024)
for layout in (torch.sparse_csr, torch.sparse_csc):
    compressed = square.to_sparse(layout=layout)
    by_rows = layout == torch.sparse_csr
    parts = [
        compressed.crow_indices() if by_rows else compressed.ccol_indices(),
        compressed.col_indices() if by_rows else compressed.row_indices(),
        compressed.values(),
    ]
    brings_back(lambda: compressed.sum(), *parts[2:])
    brings_back(lambda: compressed.to_dense(), *parts)
blocks = square.to_sparse_bsr((1, 1))
brings_back(
    lambda: blocks.to_dense(), blocks.crow_indices(), blocks.col_indices(), blocks.values()
)
nested = torch.nested.nested_tensor([make(40, 40), make(50, 40)], layout=torch.strided)
many = torch.nested.nested_tensor([torch.ones(2, 2) for _ in range(1024)], layout=torch.strided)
buffer = many.values()
sizes, strides, offsets = many._nested_tensor_size(), many._nested_tensor_strides(), (
    many._nested_tensor_storage_offsets())
for each in (buffer, sizes, strides, offsets, nested.values()):
    each.view(-1)
brings_back(lambda: many * 2.0, buffer, sizes)
brings_back(lambda: nested * 2.0, nested.values())
scales, zeros = make(1024, dtype=torch.float64), make(1024, dtype=torch.int64)
quantized = torch.quantize_per_channel(make(1024, 16), scales, zeros, 0, torch.qint8)
kept_scales, kept_zeros = quantized.q_per_channel_scales(), quantized.q_per_channel_zero_points()
kept_scales.view(-1), kept_zeros.view(-1)
brings_back(lambda: quantized.dequantize(), quantized, kept_scales, kept_zeros)
# Meta and fake tensors have no memory to find; ops on them must just not fail.
torch.ones(2048, device="meta") + 1
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    torch.ones(2048) + 1
# Functions of torch.func wrap tensors that have memory.
torch.func.vmap(lambda each: each + 1)(make(64, 64))
brings_back(lambda: torch.func.vjp(lambda each: each.sum(1), dense), dense)
opaque = dense.to_mkldnn()
(opaque + opaque).to_dense()
""",
        env=EXTENTS,
    )


def test_views_and_shapes_do_not_fetch(run_forked: Run) -> None:
    run_forked(
        PROBE,
        """
a, b = make(64, 64), make(64, 64)
for call in (
    lambda: a.view(-1), lambda: a.t(), lambda: a[3], lambda: a.detach(), lambda: a.reshape(-1),
    lambda: a.contiguous(), lambda: a.to(torch.float32), lambda: a.expand(2, 64, 64),
    lambda: a.split(16), lambda: a.unbind(), lambda: a.chunk(4), lambda: a.requires_grad_(False),
    lambda: torch.zeros_like(a), lambda: torch.empty_like(a), lambda: a.new_zeros(4096),
    lambda: torch.rand_like(a), lambda: torch.is_same_size(a, b),
):
    leaves_cold(call, a, b)
other = torch.empty(0)
for call in (
    lambda: a.detach_(), lambda: a.t_(), lambda: a.transpose_(0, 1), lambda: a.unsqueeze_(0),
    lambda: a.squeeze_(0), lambda: a.as_strided_((64, 64), (64, 1)), lambda: other.set_(a),
):
    leaves_cold(call, a, b)
evict(a, b)
a.view_as(b), a.expand_as(b), a.reshape(-1).view_as(b)
assert is_cold(b)
# A copy is announced by the operator that copies.
brings_back(lambda: a.t().contiguous(), a)
brings_back(lambda: a.to(torch.float64), a)
brings_back(lambda: a.t().reshape(-1), a)
""",
        env=EXTENTS,
    )


# In one call of the kernel, and cut into a chunk for each parameter.
@pytest.mark.parametrize("chunk_share", ["0.5", "0.000001"])
def test_fused_optimizers_only_read_gradients_that_they_do_not_scale(
    run_forked: Run, chunk_share: str
) -> None:
    run_forked(
        PROBE,
        """
def bytes_left_clean(gradient):
    before = tencache.stats()["bytes"]["clean_dropped"]
    evict(gradient)
    return tencache.stats()["bytes"]["clean_dropped"] - before

OPTIMIZERS = (
    lambda parameters: torch.optim.Adam(parameters, fused=True, amsgrad=True),
    lambda parameters: torch.optim.AdamW(parameters, fused=True, lr=torch.tensor(0.001)),
    lambda parameters: torch.optim.SGD(parameters, fused=True, momentum=0.9),
    lambda parameters: torch.optim.Adagrad(parameters, fused=True),
)
for make_optimizer in OPTIMIZERS:
    parameters = [make(64, 64).requires_grad_() for _ in range(3)]
    gradients = [make(64, 64) for _ in parameters]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient
    optimizer = make_optimizer(parameters)
    optimizer.step()  # makes the state
    evict(*gradients)
    optimizer.step()
    assert bytes_left_clean(gradients[0]) == 3 * 64 * 64 * 4, optimizer
    # With a scale the step writes the gradients, even the same bytes.
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(0.0)
    optimizer.step()
    assert bytes_left_clean(gradients[0]) == 0, optimizer
    optimizer.grad_scale = torch.tensor(2.0)
    optimizer.step()
    assert all(bool((each == 0.5).all()) for each in gradients), optimizer
""",
        env={**EXTENTS, "TENCACHE_CHUNK_SHARE": chunk_share},
    )


def test_reads_by_python_are_announced(run_forked: Run) -> None:
    run_forked(
        PROBE,
        """
a = make(64, 64)
for call in (lambda: a.numpy(), lambda: a.tolist(), lambda: repr(a), lambda: a.sum().item()):
    brings_back(call, a)
assert tencache.stats()["unannounced"] == {"reads": 0, "writes": 0}
""",
        env=EXTENTS,
    )


def test_only_what_an_op_has_named_goes_cold(run_forked: Run) -> None:
    run_forked(
        PROBE,
        """
fresh = torch.empty(2048)
core.tencache_evict_all()
assert not is_cold(fresh)
fresh.view(-1)
evict(fresh)
""",
        env=EXTENTS,
    )


@pytest.mark.skipif(
    version("torch").startswith("2.15"),
    reason="torch 2.15 calls operators defined in Python past the dispatcher, so no event tells "
    "of the outer one; its tensors may go cold meanwhile, which is slow but right",
)
def test_pins_last_for_the_outermost_op(run_forked: Run) -> None:
    run_forked(
        PROBE,
        """
kept = []

@torch.library.custom_op("probe::outer", mutates_args=())
def outer(x: torch.Tensor) -> torch.Tensor:
    inner = torch.ones(2048)
    (inner + 1).view(-1)
    inner.view(-1)
    kept.append(inner)
    core.tencache_evict_all()
    assert not is_cold(x) and not is_cold(inner)
    return inner.sum()

x, other = make(2048), make(2048)
evict(x, other)
outer(x)
assert is_cold(other)
evict(x, other, kept[0])
""",
        env=EXTENTS,
    )


def test_exceptions_give_the_pins_back(run_forked: Run) -> None:
    run_forked(
        PROBE,
        """
a, b, lists = make(64, 64), make(7, 700), [make(2048) for _ in range(4)]

@torch.library.custom_op("probe::fails", mutates_args=())
def fails(x: torch.Tensor) -> torch.Tensor:
    (x + 1).sum()
    raise ValueError("inside")

class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("backward")

leaf = make(64, 64).requires_grad_()
def attempt():
    for call in (
        lambda: a + b,
        lambda: a @ b,
        lambda: torch.cat([a, b]),
        lambda: fails(a),
        lambda: torch._foreach_add_(lists[:2] + [a, b], lists[:3] + [a]),
        lambda: torch._foreach_add_(lists, lists[:3]),
        lambda: Failing.apply(leaf + leaf).sum().backward(),
    ):
        try:
            call()
        except (RuntimeError, ValueError):
            continue
        raise AssertionError("nothing was raised")

attempt()
threads = [threading.Thread(target=lambda: [attempt() for _ in range(20)]) for _ in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
evict(a, b, leaf.data, *lists)
""",
        env={**EXTENTS, "TENCACHE_CHUNK_SHARE": "0.000001"},
    )


def test_training_leaves_nothing_pinned(run_forked: Run) -> None:
    run_forked(
        PROBE,
        """
from torch.utils.checkpoint import checkpoint

model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters(), fused=True)

def step():
    hidden = checkpoint(model, torch.ones(64, 64, requires_grad=True), use_reentrant=True)
    hidden.register_hook(lambda gradient: gradient * 1.0)
    (hidden ** 2).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

for _ in range(3):
    step()
workers = [threading.Thread(target=lambda: (model(make(64, 64)) ** 2).sum().backward())
           for _ in range(4)]
[each.start() for each in workers]
[each.join() for each in workers]
big = [each for each in model.parameters() if each.numel() > 1024]
tensors = [each.data for each in big] + [each.grad for each in big]
tensors += [optimizer.state[each][name] for each in big for name in ("exp_avg", "exp_avg_sq")]
for each in tensors:
    each.view(-1)
evict(*tensors)
stats = tencache.stats()
assert stats["steps"] == 3, stats
assert stats["unannounced"] == {"reads": 0, "writes": 0}
""",
        env=EXTENTS,
    )


def test_events_that_are_no_operators(run_forked: Run) -> None:
    # Marks may end out of order, or after the profiler that asked for them has gone.
    run_forked(
        PROBE,
        """
a = make(64, 64)
with torch.profiler.profile():
    marks = [torch._C._profiler._RecordFunctionFast(name) for name in ("first", "second")]
    [each.__enter__() for each in marks]
    a + 1
    [each.__exit__(None, None, None) for each in marks]
with torch.profiler.record_function("outer"):
    a + 1
    evict(a)
evict(a)
""",
        env=EXTENTS,
    )


def test_packed_weights_stay(run_forked: Run) -> None:
    run_forked(
        PROBE,
        """
torch.backends.quantized.engine = "onednn" if "onednn" in (
    torch.backends.quantized.supported_engines) else torch.backends.quantized.engine
bias, free = make(1024), make(1024)
weight = torch.quantize_per_tensor(make(1024, 16), 0.1, 0, torch.qint8)
packed = torch.ops.quantized.linear_prepack(weight, bias)
free.view(-1)
core.tencache_evict_all()
assert not is_cold(bias) and is_cold(free)
""",
        env=EXTENTS,
    )


def test_an_operator_that_is_defined_anew(run_forked: Run) -> None:
    # The second definition may get the first one's addresses; the gate must ask again.
    run_forked(
        PROBE,
        """
x = make(2048)
for schema, call in (
    ("f(Tensor x) -> Tensor", lambda: torch.ops.redefined.f(x)),
    ("f(int n, int m, Tensor x) -> Tensor", lambda: torch.ops.redefined.f(3, 4, x)),
) * 8:
    library = torch.library.Library("redefined", "DEF")
    library.define(schema)
    library.impl("f", lambda *arguments: torch.ones(1), "CompositeExplicitAutograd")
    brings_back(call, x)
    library._destroy()
    del library
    if hasattr(torch.ops.redefined, "f"):
        delattr(torch.ops.redefined, "f")
""",
        env=EXTENTS,
    )


def test_a_program_that_fits_is_not_gated(run_forked: Run) -> None:
    run_forked(
        """
import torch, tencache
tencache.enable()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
stats = tencache.stats()
assert not stats["armed"] and stats["ops"] == 0 and stats["steps"] == 2, stats
""",
        env={"TENCACHE_DEVICE_MEMORY": "1GiB", "TENCACHE_QUIET": "1"},
    )


@pytest.mark.parametrize("rounds", [2])
def test_wrapped_kernels_pass_the_gate(run_forked: Run, rounds: int) -> None:
    run_forked(
        PROBE,
        f"""
from tencache._library import shim
from tencache._torch_version import running
gate = shim(running(torch))
a, b = make(2048), make(2048)
for _ in range({rounds}):
    evict(a, b)
    depth = gate.depth()
    gate.open(b"probe::kernel", [a.data_ptr(), b[7:].data_ptr(), 0, 12345], bytes([3, 1, 3, 3]))
    assert none_cold([a, b])
    core.tencache_evict_all()
    assert none_cold([a, b])
    gate.close_to(depth)
    gate.close_to(depth)  # ends nothing more
evict(a, b)
""",
        env=EXTENTS,
    )


def test_fork_while_other_threads_meet_operators(run_forked: Run) -> None:
    # A fresh thread knows no operator, so each of its ops takes the table's lock. If that lock
    # stayed taken in a child, the child would hang at its first operator.
    run_forked(
        PROBE,
        """
import os, time
warnings.simplefilter("ignore", DeprecationWarning)
running = True

def meet_operators():
    while running:
        thread = threading.Thread(target=lambda: make(8).mul(2).add(3).neg().abs().sum())
        thread.start()
        thread.join()

others = [threading.Thread(target=meet_operators) for _ in range(3)]
[each.start() for each in others]
for _ in range(100):
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.ones(8).cumprod(0).tolist() == [1.0] * 8 else 1)
    for _ in range(2000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        raise AssertionError("the child hangs")
    assert status == 0
running = False
[each.join() for each in others]
""",
        env=EXTENTS,
    )
