# SPDX-License-Identifier: Apache-2.0
"""One rank of a training with FSDP2 (fully_shard) over gloo on the CPU."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from exact import Results
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(21)
    results = Results()
    model = nn.Sequential(*(Block(192) for _ in range(3)))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(300 + dist.get_rank())
    for _ in range(4):
        data = torch.randn(32, 192, generator=generator)
        loss = F.mse_loss(model(data), data.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.scalar("losses", loss)
    for name, parameter in model.named_parameters():
        results.tensor(f"shard.{name}", parameter.to_local())
        results.tensor(f"full.{name}", parameter.full_tensor())
        for key, value in optimizer.state[parameter].items():
            local = value.to_local() if hasattr(value, "to_local") else value
            results.tensor(f"state.{name}.{key}", local)
    dist.barrier()
    dist.destroy_process_group()
    results.write()


if __name__ == "__main__":
    main()
