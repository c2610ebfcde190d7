# SPDX-License-Identifier: Apache-2.0
"""One rank of a program of two over NCCL, each with an emulated GPU of its own.

`python nccl_ranks.py PART RANK STORE OUT.json`, where PART is one of the functions below. A part
checks what it can by itself and returns tensors; their digests and tencache's stats, if it is on,
go to OUT.json.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist

SIZE = 3 << 17  # more than one piece of a message
LARGE = 1 << 20  # floats that take an extent of their own
TYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]


def make(
    rank: int, seed: int, size: int = SIZE, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * seed + rank)
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0, 100, (size,), generator=generator).to(dtype)


def check(found: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    assert torch.equal(found.cpu(), expected), what


def combined(operation: dist.ReduceOp.RedOpType, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if operation == dist.ReduceOp.AVG:
        return a * 0.5 + b * 0.5 if a.is_floating_point() else (a + b).div(2, rounding_mode="trunc")
    return {
        dist.ReduceOp.SUM: torch.add,
        dist.ReduceOp.PRODUCT: torch.mul,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.MAX: torch.maximum,
    }[operation](a, b)


def reductions(rank: int) -> None:
    operations = dist.ReduceOp
    for dtype in TYPES:
        parts = [make(r, 0, 4099, dtype) for r in range(2)]
        own = parts[rank].cuda()
        for operation in [
            operations.SUM,
            operations.PRODUCT,
            operations.MIN,
            operations.MAX,
            operations.AVG,
        ]:
            expected = combined(operation, *parts)
            reduced = own.clone()
            dist.all_reduce(reduced, operation)
            check(reduced, expected, (dtype, operation))
            half = torch.empty(2048, dtype=dtype, device="cuda")
            dist.reduce_scatter_tensor(half, own[:4096], operation)
            check(half, expected[2048 * rank :][:2048], (dtype, operation, "scattered"))
            reduced = own.clone()
            dist.reduce(reduced, 1, operation)
            check(reduced, expected if rank == 1 else parts[0], (dtype, operation, "reduced"))
        if dtype.is_floating_point and dtype != torch.bfloat16:
            factor = dist._make_nccl_premul_sum(0.25 * (rank + 1))  # each rank's is its own
            expected = parts[0] * 0.25 + parts[1] * 0.5
            reduced = own.clone()
            dist.all_reduce(reduced, factor)
            check(reduced, expected, (dtype, "premul"))
            half = torch.empty(2048, dtype=dtype, device="cuda")
            dist.reduce_scatter_tensor(half, own[:4096], factor)
            check(half, expected[2048 * rank :][:2048], (dtype, "premul scattered"))
            reduced = own.clone()
            dist.reduce(reduced, 1, factor)
            check(reduced, expected if rank == 1 else parts[0], (dtype, "premul reduced"))


def moves(rank: int) -> None:
    for dtype in TYPES:
        parts = [make(r, 1, SIZE, dtype) for r in range(2)]
        own = parts[rank].cuda()
        whole = torch.empty(2 * SIZE, dtype=dtype, device="cuda")
        dist.all_gather_into_tensor(whole, own)
        check(whole, torch.cat(parts), dtype)
        copied = own.clone()
        dist.broadcast(copied, 1)
        check(copied, parts[1], dtype)
        swapped = torch.empty_like(own)
        dist.all_to_all_single(swapped, own)
        check(swapped, torch.cat([each.chunk(2)[rank] for each in parts]), dtype)
        if rank == 0:
            dist.send(own, 1)
        else:
            dist.recv(copied, 0)
            check(copied, parts[0], dtype)
    lists = [torch.empty(SIZE, device="cuda") for _ in range(2)]
    parts = [make(r, 2) for r in range(2)]
    dist.all_gather(lists, parts[rank].cuda())
    check(torch.cat(lists), torch.cat(parts), "all_gather")
    dist.gather(parts[rank].cuda(), lists if rank == 0 else None, 0)
    check(torch.cat(lists), torch.cat(parts), "gather")
    given = torch.empty(SIZE, device="cuda")
    dist.scatter(given, lists if rank == 0 else None, 0)
    check(given, parts[rank], "scatter")
    small = torch.ones(8, device="cuda", dtype=torch.float8_e5m2)
    try:
        dist.all_reduce(small)
    except RuntimeError:  # NCCL refuses
        pass
    except TypeError:  # PyTorch refuses before it asks NCCL
        pass
    else:
        raise AssertionError("8-bit floating point was reduced")


def groups(rank: int) -> None:
    parts = [make(r, 3) for r in range(2)]
    own = parts[rank].cuda()
    received = torch.empty(SIZE, device="cuda")
    peer = 1 - rank
    # Both send first: without a group, each would wait for the other's receive.
    both = [dist.P2POp(dist.isend, own, peer), dist.P2POp(dist.irecv, received, peer)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    check(received, parts[peer], "batch")
    several = [own.clone() + i for i in range(4)]
    with dist._coalescing_manager(device=torch.device("cuda", rank), async_ops=True) as manager:
        for each in several:
            dist.all_reduce(each)
    manager.wait()
    for i, each in enumerate(several):
        check(each, (parts[0] + i) + (parts[1] + i), "coalesced")
    # Two communicators are waited for in another order than their work was queued in.
    other = dist.new_group([0, 1])
    first, second = own.clone(), own.clone()
    works = [
        dist.all_reduce(first, async_op=True),
        dist.all_reduce(second, group=other, async_op=True),
    ]
    for work in reversed(works):
        work.wait()
    check(first, parts[0] + parts[1], "first")
    check(second, parts[0] + parts[1], "second")
    # One communicator is used in two streams.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    again = own.clone()
    for turn in range(6):
        with torch.cuda.stream(side if turn % 2 else torch.cuda.current_stream()):
            dist.all_reduce((first, again)[turn % 2])
    torch.cuda.synchronize()
    expected = parts[0] + parts[1]
    check(first, expected * 8, "main stream")
    check(again, (own.cpu() + parts[peer]) * 4, "side stream")


def graph(rank: int) -> None:
    """Captures collectives, and replays them with other values. A Work from before is kept."""
    given = torch.ones(LARGE, device="cuda")
    dist.all_reduce(given.clone(), async_op=True).wait()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        doubled = given * 2
        dist.all_reduce(doubled)
        again = doubled + 1
        dist.all_reduce(again, async_op=True).wait()
    for turn in range(3):
        given.fill_(rank + turn)
        captured.replay()
        total = 2.0 * (1 + 2 * turn)
        check(doubled, torch.full((LARGE,), total), turn)
        check(again, torch.full((LARGE,), 2 * (total + 1)), turn)


def one_process(rank: int) -> None:
    """One process drives both GPUs, and groups calls for their communicators."""
    if rank == 0:
        parts = [make(r, 4).cuda(r) for r in range(2)]
        for each in torch.cuda.nccl.broadcast(parts) or ():
            del each
        check(parts[1], make(0, 4), "broadcast")
        parts = [make(r, 5).cuda(r) for r in range(2)]
        torch.cuda.nccl.all_reduce(parts)
        for each in parts:
            check(each, make(0, 5) + make(1, 5), "all_reduce")


def collectives(rank: int) -> list[torch.Tensor]:
    reductions(rank)
    moves(rank)
    groups(rank)
    graph(rank)
    one_process(rank)
    return []


def killed(rank: int) -> list[torch.Tensor]:
    """Rank 1 dies between two collectives."""
    tensor = torch.ones(SIZE, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    raise AssertionError("rank 0 was not told")


def dropped(rank: int) -> list[torch.Tensor]:
    """Rank 1 comes late to a collective whose Work nobody keeps on rank 0.

    Meanwhile its tensor would be the first to leave.
    """
    tensor = make(rank, 6, 1 << 20).cuda()
    dist.barrier()  # makes the communicator
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["pressed"])
    dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        held = [torch.ones(1 << 20, device="cuda") for _ in range(14)]
        for each in held:
            each += 1
        store.set("pressed", "yes")
        torch.cuda.synchronize()
        return [tensor, *held]
    torch.cuda.synchronize()
    return [tensor]


def grouped(rank: int) -> list[torch.Tensor]:
    """Rank 1 comes late to a group; on rank 0 the tensors would be the first to leave."""
    store = dist.distributed_c10d._get_default_store()
    copied = [make(rank, 7 + index, LARGE).cuda() for index in range(2)]
    held = [torch.ones(LARGE, device="cuda") for _ in range(14)]
    dist.barrier()  # makes the communicator
    if rank == 1:
        store.wait(["pressed"])
    device = torch.device("cuda", rank)
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for each in copied:
            dist.broadcast(each, 1, async_op=True)
    if rank == 0:
        for each in held:
            each += 1
        store.set("pressed", "yes")
    manager.wait()
    torch.cuda.synchronize()
    return copied


def broken(rank: int) -> list[torch.Tensor]:
    """A kernel of rank 0 fails before anybody has asked whether a Work is complete.

    Both ranks end with os._exit().
    """
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(LARGE, device="cuda")
    dist.barrier()  # makes the communicator
    if rank == 1:
        store.wait(["queued"])
    work = dist.all_reduce(tensor, async_op=True)
    store.set("queued", "yes")
    torch.cuda.synchronize()
    if rank == 1:
        os._exit(0)
    on_host = torch.zeros(1, requires_grad=True)
    on_host.grad = torch.ones(1)
    optimizer = torch.optim.SGD([on_host])
    scale = ctypes.CDLL(os.environ["EMULATED_GPU_OPERATORS"]).emulated_gpu_unannounced_scale
    scale.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float]
    scale(tensor.data_ptr(), 1 << 32, 2.0)  # far beyond its memory
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        optimizer.step()
        print("the step was made", flush=True)
    os._exit(0 if work is not None else 1)


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(768, 768) for _ in range(6)))


def train(module: torch.nn.Module, rank: int, accumulates: bool) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, foreach=True)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        if accumulates:
            with module.no_sync():
                module(make(rank, 20 + step, 64 * 768).view(64, 768).cuda()).pow(
                    2
                ).mean().backward()
        loss = module(make(rank, 10 + step, 64 * 768).view(64, 768).cuda()).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return losses


def ddp(rank: int) -> list[torch.Tensor]:
    from torch.nn.parallel import DistributedDataParallel

    module = model()
    module[0].register_module("unused", torch.nn.Linear(768, 768))  # no forward pass uses it
    module.cuda()
    wrapped = DistributedDataParallel(
        module, device_ids=[rank], bucket_cap_mb=4, find_unused_parameters=True
    )
    losses = train(wrapped, rank, accumulates=True)
    return losses + [each.detach() for each in module.parameters()]


def fsdp2(rank: int) -> list[torch.Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    module = model().cuda()
    mesh = init_device_mesh("cuda", (2,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in module:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    losses = train(module, rank, accumulates=False)
    return losses + [each.to_local().detach() for each in module.parameters()]


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def main(part: str, rank: int, store: str, path: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    results = globals()[part](rank)
    report: dict[str, Any] = {
        "digests": [digest(each) for each in results],
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }
    if "TENCACHE" in os.environ:
        import tencache

        report["stats"] = tencache.stats()
    dist.barrier()
    dist.destroy_process_group()
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
