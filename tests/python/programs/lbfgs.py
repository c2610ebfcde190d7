# SPDX-License-Identifier: Apache-2.0
"""LBFGS with a line search: a closure that runs an unknown number of times, and a long history."""

import torch
import torch.nn.functional as F
from exact import LEAST_OF_SQUARE, Results, few, wide
from torch import nn


def main():
    torch.manual_seed(8)
    results = Results()
    width = wide(256, emulated=LEAST_OF_SQUARE)
    model = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
    model.append(nn.Linear(width, 4))
    data = torch.randn(few(512, 128), 64)
    target = torch.sin(data[:, :4] * 3) + data[:, 4:8].square()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=few(8, 4), history_size=10, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(data), target)
        loss.backward()
        results.scalar("losses", loss)
        return loss

    for _ in range(2):
        results.scalar("first_losses", optimizer.step(closure))
    results.module("model", model)
    results.optimizer("lbfgs", optimizer)
    results.write()


if __name__ == "__main__":
    main()
