# SPDX-License-Identifier: Apache-2.0
"""One rank of a DistributedDataParallel training over gloo, plus collectives that DDP does not use.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT come from the environment, as torchrun sets them.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from exact import Results
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank, results):
    torch.manual_seed(20)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    model.append(nn.Linear(512, 64))
    parallel = DistributedDataParallel(model, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(parallel.parameters(), 1e-3, fused=True)
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(4):
        optimizer.zero_grad()
        for half in range(2):
            data = torch.randn(32, 256, generator=generator)
            with parallel.no_sync() if half == 0 and step % 2 else torch.enable_grad():
                loss = F.mse_loss(parallel(data), data[:, :64])
                loss.backward()
            results.scalar("losses", loss)
        results.scalar("norms", nn.utils.clip_grad_norm_(parallel.parameters(), 1.0))
        optimizer.step()
    results.module("model", model)
    results.optimizer("adamw", optimizer)


def use_collectives(rank, results):
    generator = torch.Generator().manual_seed(200 + rank)
    mine = torch.randn(512, 256, generator=generator)
    for index in range(3):
        total = mine.clone()
        works = [dist.all_reduce(total, async_op=True)]
        parts = [torch.empty_like(mine) for _ in range(2)]
        works.append(dist.all_gather(parts, mine, async_op=True))
        both = mine.sin()  # runs while the collectives may still run
        for work in works:
            work.wait()
        dist.broadcast(both, index % 2)
        if rank == 0:
            dist.send(parts[1], 1)
            received = torch.empty_like(mine)
            dist.recv(received, 1)
        else:
            received = torch.empty_like(mine)
            dist.recv(received, 0)
            dist.send(mine.neg(), 0)
        mine = (total + parts[0] - both + received) / 3
        results.tensor(f"collectives.{index}", mine)


def main():
    dist.init_process_group("gloo")
    results = Results()
    train(dist.get_rank(), results)
    use_collectives(dist.get_rank(), results)
    dist.barrier()
    dist.destroy_process_group()
    results.write()


if __name__ == "__main__":
    main()
