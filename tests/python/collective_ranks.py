# SPDX-License-Identifier: Apache-2.0
"""One rank of a two-process program over gloo; it writes digests of all results.

`python collective_ranks.py PART RANK STORE OUT.json [--tencache]`, where PART is one of the
functions below. Between the start and the end of a collective it runs small operators. If these
evict all that is not pinned (TENCACHE_CHAOS), the process group's threads would meet cold memory
unless something holds it. The stats are taken after an operator has touched every result, because
accesses to a cold extent are found only when it comes back, and before Python reads the results.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

SIZE = 1 << 18  # 1 MiB of float32
BUSY_OPS = 40


def make(rank: int, seed: int, size: int = SIZE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.rand(size, generator=generator)


def busy() -> None:
    """Small operators of this thread, while the process group works."""
    small = torch.ones(8)
    for _ in range(BUSY_OPS):
        small = small + 1


def finished(work: Any) -> None:
    busy()
    work.wait()
    busy()


def collectives(rank: int) -> list[torch.Tensor]:
    summed, copied, reduced = (make(rank, seed) for seed in range(3))
    finished(dist.all_reduce(summed, async_op=True))
    finished(dist.broadcast(copied, src=1, async_op=True))
    finished(dist.reduce(reduced, dst=0, async_op=True))
    gathered = [torch.zeros(SIZE) for _ in range(2)]
    finished(dist.all_gather(gathered, make(rank, 3), async_op=True))
    flat = torch.zeros(2 * SIZE)
    finished(dist.all_gather_into_tensor(flat, make(rank, 4), async_op=True))
    scattered = torch.zeros(SIZE // 2)
    finished(dist.reduce_scatter_tensor(scattered, make(rank, 5), async_op=True))
    pieces = list(make(rank, 6).chunk(2))
    piece = torch.zeros(SIZE // 2)
    finished(dist.reduce_scatter(piece, pieces, async_op=True))
    exchanged = torch.zeros(SIZE)
    finished(dist.all_to_all_single(exchanged, make(rank, 7), async_op=True))
    collected = [torch.zeros(SIZE) for _ in range(2)] if rank == 0 else None
    finished(dist.gather(make(rank, 8), collected, dst=0, async_op=True))
    given = torch.zeros(SIZE)
    source = [make(0, 9), make(1, 9)] if rank == 0 else None
    finished(dist.scatter(given, source, src=0, async_op=True))
    received = make(rank, 10)
    finished(dist.isend(received, 1) if rank == 0 else dist.irecv(received, 0))
    results = [summed, copied, flat, scattered, piece, exchanged, given, received, *gathered]
    return results + (collected or []) + ([reduced] if rank == 0 else [])


def many_at_once(rank: int) -> list[torch.Tensor]:
    """Waits for Works in another order, and for one not at all."""
    tensors = [make(rank, seed) for seed in range(6)]
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    busy()
    for work in works[:0:-1]:
        work.wait()
    del works
    dist.barrier()
    return tensors


def functional(rank: int) -> list[torch.Tensor]:
    from torch.distributed import _functional_collectives as funcol

    group = dist.group.WORLD
    results = [
        funcol.all_reduce(make(rank, 0), "sum", group),
        funcol.all_gather_tensor(make(rank, 1), 0, group),
        funcol.reduce_scatter_tensor(make(rank, 2), "sum", 0, group),
    ]
    busy()
    return [each + 0 for each in results]


def model(rank: int) -> tuple[torch.nn.Module, Callable[[], torch.Tensor]]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(384, 384), torch.nn.Tanh(), torch.nn.Linear(384, 384)]
    module = torch.nn.Sequential(*layers)
    return module, lambda: make(rank, 0, 64 * 384).view(64, 384)


def train(module: torch.nn.Module, batch: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (module(batch()) ** 2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return losses


def ddp(rank: int) -> list[torch.Tensor]:
    module, batch = model(rank)
    wrapped = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=1)
    losses = train(wrapped, batch)
    return losses + [each.detach() for each in module.parameters()]


def fsdp2(rank: int) -> list[torch.Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module, batch = model(rank)
    mesh = init_device_mesh("cpu", (2,))
    for layer in module:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    losses = train(module, batch)
    return losses + [each.to_local().detach() for each in module.parameters()]


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def main(part: str, rank: int, store: str, path: str, with_tencache: bool) -> None:
    if with_tencache:
        import tencache

        tencache.enable()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    results = globals()[part](rank)
    dist.barrier()
    for each in results:
        each + 0
    report: dict[str, Any] = {}
    if with_tencache:
        from tencache._library import shim
        from tencache._torch_version import running

        dist.barrier()
        report["stats"] = tencache.stats()
        report["shim"] = shim(running(torch)).describe()
    report["digests"] = [digest(each) for each in results]
    dist.destroy_process_group()
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report, file)
    # gloo's threads outlive the process group and may still let go of a tensor while the
    # interpreter ends. That needs the interpreter's lock, and the process aborts ("terminate called
    # without an active exception"), rarely and without tencache, too: pytorch/pytorch#179291,
    # #190489.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], "--tencache" in sys.argv[5:])
