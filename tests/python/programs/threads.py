# SPDX-License-Identifier: Apache-2.0
"""Two Python threads train a model each at the same time; a third reads both models' weights."""

import threading

import torch
import torch.nn.functional as F
from exact import DEVICE, LEAST_OF_SQUARE, Results, use_device, wide
from torch import nn


def train(seed, barrier, outcome):
    use_device()
    generator = torch.Generator(DEVICE).manual_seed(seed)
    width = wide(384, emulated=LEAST_OF_SQUARE)
    model = nn.Sequential(nn.Linear(96, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    model.append(nn.Linear(width, 10))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(6):
        barrier.wait()
        data = torch.randn(64, 96, generator=generator)
        loss = F.mse_loss(model(data), data[:, :10])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    outcome[seed] = (model, optimizer, losses)


def main():
    torch.manual_seed(16)
    results = Results()
    barrier, outcome = threading.Barrier(2), {}
    frozen = torch.randn(300, 300)
    threads = [threading.Thread(target=train, args=(seed, barrier, outcome)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    total = frozen
    while any(thread.is_alive() for thread in threads):
        total = frozen @ frozen.T  # always the same value, however often it is computed
        total[0, 0].item()  # waits for the GPU; else the loop would run far ahead
    for thread in threads:
        thread.join()
    results.tensor("total", frozen @ frozen.T if total is frozen else total)
    for seed, (model, optimizer, losses) in sorted(outcome.items()):
        for loss in losses:
            results.scalar(f"losses.{seed}", loss)
        results.module(f"model.{seed}", model)
        results.optimizer(f"adam.{seed}", optimizer)
    results.write()


if __name__ == "__main__":
    main()
