# SPDX-License-Identifier: Apache-2.0
"""torch.compile on the CPU: training with a compiled model, then a compiled function alone."""

import torch
import torch.nn.functional as F
from exact import Results
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 128)
        self.norm = nn.LayerNorm(128)
        self.wide, self.narrow = nn.Linear(128, 512), nn.Linear(512, 128)
        self.head = nn.Linear(128, 300)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.narrow(F.silu(self.wide(self.norm(x))))
        return self.head(x * torch.sigmoid(x))


@torch.compile
def smooth(x, y):
    return (torch.sin(x) * torch.exp(-y.square()) + y.cumsum(0)).softmax(1).sum(0)


def main():
    torch.manual_seed(22)
    results = Results()
    model = Model()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(5):
        tokens = torch.randint(0, 300, (8, 32))
        loss = F.cross_entropy(compiled(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.scalar("losses", loss)
    for _ in range(3):
        results.tensor("smooth", smooth(torch.randn(300, 200), torch.randn(300, 200)))
    results.module("model", model)
    results.optimizer("adamw", optimizer)
    results.write()


if __name__ == "__main__":
    main()
