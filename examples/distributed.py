# SPDX-License-Identifier: Apache-2.0
r"""Trains with several processes, each under a memory budget of its own.

    tencache run --device-memory 64MiB -- torchrun --nproc-per-node 2 distributed.py
    tencache run --device-memory 64MiB -- accelerate launch --multi_gpu --num_processes 2 \
        distributed.py

`--device-memory` is the budget of each process. Files are each process's own, too: with
`--stats run.json` rank 0 writes run.rank0.json, and so on. Needs accelerate.
"""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator

WIDTH, DEPTH = 768, 8


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--losses", type=Path, help="rank 0 writes them here, as JSON")
    options = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.utils.data.TensorDataset(torch.randn(1024, WIDTH))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _, (inputs,) in zip(range(options.steps), loader, strict=False):
        loss = torch.nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        accelerator.print(f"step {len(losses)}: loss {losses[-1]:.6f}")
    if options.losses and accelerator.is_main_process:
        options.losses.write_text(json.dumps([loss.hex() for loss in losses]))
    # The process group ends here only if nothing holds it any more. The thread of a group that
    # outlives the interpreter ends the process with SIGABRT, now and then.
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    accelerator.end_training()


if __name__ == "__main__":
    main()
