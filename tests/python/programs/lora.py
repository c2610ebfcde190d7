# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters by hand over a frozen base: most bytes are only ever read."""

import torch
import torch.nn.functional as F
from exact import Results, few, wide
from torch import nn


class Adapted(nn.Module):
    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.02)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up) * 2.0


WIDTH = wide(256)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.wide = Adapted(nn.Linear(width, 4 * width))
        self.narrow = Adapted(nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.narrow(F.silu(self.wide(self.norm(x))))


def main():
    torch.manual_seed(12)
    results = Results()
    embed = nn.Embedding(300, WIDTH).requires_grad_(False)
    body = nn.Sequential(*(Block(WIDTH) for _ in range(few(5, 3))))
    head = nn.Linear(WIDTH, 300).requires_grad_(False)
    trained = [p for p in body.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-3, fused=True)
    for _ in range(6):
        tokens = torch.randint(0, 300, (4, few(32, 8)))
        loss = F.cross_entropy(head(body(embed(tokens))).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.scalar("losses", loss)
    for block in body:  # merging writes the frozen base, once, after all the reading
        for adapted in (block.wide, block.narrow):
            with torch.no_grad():
                adapted.base.weight.addmm_(adapted.up, adapted.down, alpha=2.0)
    results.module("body", body)
    results.optimizer("adamw", optimizer)
    results.write()


if __name__ == "__main__":
    main()
