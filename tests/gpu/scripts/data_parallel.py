# SPDX-License-Identifier: Apache-2.0
"""One process trains one model on two GPUs by nn.DataParallel, as the Trainer does unasked.

Each step copies the parameters to the second GPU, splits the batch, runs a thread for each GPU,
gathers outputs and adds gradients on the first.
"""

import torch
from exact import LEAST_OF_SQUARE, Results, wide
from torch import nn


def main():
    torch.manual_seed(23)
    results = Results()
    width = wide(256, emulated=LEAST_OF_SQUARE)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(5))).to("cuda:0")
    parallel = nn.DataParallel(model, device_ids=[0, 1])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(4):
        outputs = parallel(torch.randn(16, width, device="cuda:0"))
        loss = outputs.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        results.scalar("losses", loss)
    results.module("model", model)
    results.optimizer("adamw", optimizer)
    results.write()


if __name__ == "__main__":
    main()
