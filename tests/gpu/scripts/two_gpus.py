# SPDX-License-Identifier: Apache-2.0
"""One process trains a model whose two halves are on two GPUs.

Activations and gradients are copied from one to the other; each GPU has an optimizer's state and a
budget.
"""

import torch
from exact import LEAST_OF_SQUARE, Results, wide
from torch import nn


def main():
    torch.set_default_device(None)
    torch.manual_seed(23)
    results = Results()
    width = wide(256, emulated=LEAST_OF_SQUARE)
    halves = []
    for ordinal in (0, 1):
        with torch.device("cuda", ordinal):
            halves.append(nn.Sequential(*(nn.Linear(width, width) for _ in range(5))))
    parameters = [parameter for half in halves for parameter in half.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-3)
    for _ in range(4):
        data = torch.randn(16, width, device="cuda:0")
        between = halves[0](data).relu().to("cuda:1")
        loss = halves[1](between).square().mean() + between.to("cuda:0").mean().to("cuda:1")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        results.scalar("losses", loss)
    for ordinal, half in enumerate(halves):
        results.module(str(ordinal), half)
    results.optimizer("adamw", optimizer)
    results.write()


if __name__ == "__main__":
    main()
