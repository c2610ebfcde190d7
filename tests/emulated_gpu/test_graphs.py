# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs on the emulated GPU: tencache at half the memory gives PyTorch's own bits.

One program does what torch.cuda offers for graphs: a whole training step with dropout, captured
once and replayed; graphed callables; a second graph in the first one's pool. Beside them are
tensors that no graph uses, which leave the device between replays. The program runs once with each
allocator, in a process of its own. Another program captures a kernel that no operator announces:
the launch guard sees it then, and nobody sees its replays.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from requirement import needs_emulated_gpu

pytestmark = needs_emulated_gpu

PRELUDE = """
import hashlib, json, sys, warnings
import torch
warnings.filterwarnings("ignore")  # streams of AccumulateGrad; captures that were broken off

def digest(*tensors):
    joined = hashlib.sha256()
    for tensor in tensors:
        joined.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return joined.hexdigest()

"""
PROGRAM = """
import torch.nn.functional as F

def make_net():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 64)
    ).cuda()

torch.manual_seed(5)
inputs = torch.Generator().manual_seed(6)
found = {}
idle = [torch.full((1 << 20,), float(i), device="cuda") for i in range(12)]  # 4 MiB each

net = make_net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, capturable=True)
x, y = torch.randn(32, 64, device="cuda"), torch.randn(32, 64, device="cuda")
def step():
    optimizer.zero_grad(set_to_none=True)
    loss = F.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
    return loss
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
losses = []
for _ in range(5):
    x.copy_(torch.randn(32, 64, generator=inputs))
    graph.replay()
    losses.append(loss.item().hex())
    for tensor in idle:
        tensor.add_(1)
found["losses"] = losses
found["weights"] = digest(*net.parameters())

total = torch.zeros(4, device="cuda")
second = torch.cuda.CUDAGraph()
with torch.cuda.graph(second, pool=graph.pool()):
    total.add_(1)
    doubled = total * 2
for _ in range(3):
    second.replay()
found["second"] = [total.tolist(), doubled.tolist()]

small = make_net()
graphed = torch.cuda.make_graphed_callables(small, (torch.randn(8, 64, device="cuda"),))
outputs = []
for _ in range(2):
    out = graphed(torch.randn(8, 64, generator=inputs).cuda())
    out.square().sum().backward()
    outputs.append(digest(out))
found["graphed"] = outputs
found["gradients"] = digest(*(p.grad for p in small.parameters()))

found["dropout"] = digest(F.dropout(torch.ones(1000, device="cuda"), 0.3))
broken = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(broken):
        total.sum().item()
except RuntimeError as error:
    found["item"] = str(error).splitlines()[0]
found["idle"] = [tensor.sum().item() / (1 << 20) for tensor in idle]
allocator = {"peak": torch.cuda.max_memory_allocated()}
if sys.argv[1:] == ["tencache"]:
    import tencache
    stats = tencache.stats()
    allocator["evicted"] = stats["bytes"]["evicted"]
    allocator["over_budget"] = stats["over_budget"]["events"]
print(json.dumps([found, allocator]))
"""

TREES = """
from torch._inductor import cudagraph_trees

torch.manual_seed(5)
body = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
).cuda()
head = torch.nn.Linear(64, 64).cuda()
parameters = [*body.parameters(), *head.parameters()]
compiled_body = torch.compile(body, backend="cudagraphs")
compiled_head = torch.compile(head, backend="cudagraphs")
optimizer = torch.optim.SGD(parameters, lr=0.1)
idle = [torch.full((1 << 20,), float(i), device="cuda") for i in range(12)]  # 4 MiB each
found = []
for step in range(8):
    torch.compiler.cudagraph_mark_step_begin()
    optimizer.zero_grad(set_to_none=True)
    hidden = compiled_body(torch.randn(32, 64).cuda())
    if step % 3 == 2:
        hidden = hidden + 1  # so that the next graph has another input
    loss = compiled_head(hidden).square().mean()
    loss.backward()
    optimizer.step()
    found.append(loss.item().hex())
    for tensor in idle:
        tensor.add_(1)
with torch.no_grad():
    for step in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        hidden = compiled_body(torch.randn(16, 64).cuda())
        # Either graph runs after the first one, and starts from the pool's state after that one.
        output = compiled_head(hidden) if step % 2 else compiled_body(hidden)
        found.append(digest(hidden, output))
manager = cudagraph_trees.get_manager(0, create_if_none_exists=False)
found += [digest(*parameters), [tensor.sum().item() / (1 << 20) for tensor in idle]]
allocator = {"peak": torch.cuda.max_memory_allocated()}
allocator["restored"] = manager.debug_checkpointing_counter
if sys.argv[1:] == ["tencache"]:
    import tencache
    allocator["evicted"] = tencache.stats()["bytes"]["evicted"]
print(json.dumps([found, allocator]))
"""

CAPTURED_LAUNCH = """
import ctypes, json, os
import tencache, torch
scale = ctypes.CDLL(os.environ["EMULATED_GPU_OPERATORS"]).emulated_gpu_unannounced_scale
scale.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float]
tensor = torch.full((4 << 20,), 1.0, device="cuda")
others = [torch.full((4 << 20,), float(i), device="cuda") for i in range(8)]  # 16 MiB each
def push_out():
    for other in others:
        other.add_(1)
def count():
    torch.cuda.synchronize()
    return tencache.stats()["graph_extents"]
push_out()
before = count()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    assert scale(tensor.data_ptr(), tensor.numel(), 2) == 0
kept = count() - before
for _ in range(3):
    push_out()
    graph.replay()
wrong = int((tensor != 8).sum())
rest = [int((other != i + 4).sum()) for i, other in enumerate(others)]
print(json.dumps([kept, wrong, sum(rest), tencache.stats()["bytes"]["evicted"]]))
"""


def run(program: str, allocator_name: str, *prefix: str) -> tuple[Any, dict[str, int]]:
    finished = subprocess.run(
        [sys.executable, *prefix, "-c", PRELUDE + program, allocator_name],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    found, allocator = json.loads(finished.stdout.splitlines()[-1])
    return found, allocator


def run_at_half(program: str, stock: dict[str, int]) -> tuple[Any, dict[str, int]]:
    launcher = ("-m", "tencache", "run", "--backend", "cuda", "--device-memory")
    return run(program, "tencache", *launcher, str(stock["peak"] // 2), "--", sys.executable)


def test_graphs_give_equal_bits_at_half_the_memory() -> None:
    expected, stock = run(PROGRAM, "native")
    found, allocator = run_at_half(PROGRAM, stock)
    assert found == expected
    assert allocator["evicted"] > 0
    assert allocator["over_budget"] == 0
    # The program works as intended: dropout and inputs differ with each replay.
    assert len(set(expected["losses"])) == 5
    assert expected["second"] == [[3.0] * 4, [6.0] * 4]
    assert len(set(expected["graphed"])) == 2
    assert "capture" in expected["item"]
    assert expected["idle"] == [i + 5.0 for i in range(12)]


def test_trees_of_graphs_give_equal_bits_at_half_the_memory() -> None:
    expected, stock = run(TREES, "native")
    found, allocator = run_at_half(TREES, stock)
    assert found == expected
    assert allocator["evicted"] > 0
    # The program works as intended: the pool went back to earlier states, as often as with
    # PyTorch's own allocator.
    assert allocator["restored"] == stock["restored"] > 0
    assert len(set(expected[:8])) == 8
    assert expected[-1] == [i + 8.0 for i in range(12)]


def test_the_guard_keeps_what_is_launched_into_a_graph() -> None:
    launcher = ("-m", "tencache", "run", "--backend", "cuda", "--device-memory", "80MiB", "--")
    finished = subprocess.run(
        [sys.executable, *launcher, sys.executable, "-c", CAPTURED_LAUNCH],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    kept, wrong, wrong_rest, evicted = json.loads(finished.stdout.splitlines()[-1])
    assert (kept, wrong, wrong_rest) == (1, 0, 0)
    assert evicted > 0
