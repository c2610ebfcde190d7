# SPDX-License-Identifier: Apache-2.0
"""Training steps to measure on a GPU, run as a worker (support.run_worker).

The worker answers with the time of each step, the losses to the last bit, the peak that PyTorch's
allocator reports, and tencache's counts and the processor time of each thread after the warm-up.
The loop is plain PyTorch and does not know whether tencache is there. A job may ask for an
alternative that a user would pick: `instead` "checkpoint" (activations are computed again) or
"save_on_cpu" (activations wait in pinned host memory).
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import support

SEED = 21
# 1.3 billion parameters: 21 GB of parameters, gradients and AdamW's state.
LARGE = {"layers": 24, "width": 2048, "heads": 16, "sequence": 1024, "vocabulary": 50257}
SHAPES: dict[str, dict[str, int]] = {
    "gpt-1.3b": {**LARGE, "batch": 8},
    # A small batch gives little computation for each byte of state.
    "gpt-1.3b-small-batch": {**LARGE, "batch": 2},
    # This one serves to try the program: a processor can compute it, and its matrices can leave a
    # GPU.
    "gpt-tiny": {
        "layers": 2,
        "width": 768,
        "heads": 4,
        "sequence": 8,
        "vocabulary": 512,
        "batch": 2,
    },
}


def make_model(shape: dict[str, int], device: str, instead: str | None) -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    config = GPT2Config(
        n_layer=shape["layers"],
        n_embd=shape["width"],
        n_head=shape["heads"],
        n_positions=shape["sequence"],
        vocab_size=shape["vocabulary"],
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    with torch.device(device):
        model = GPT2LMHeadModel(config)
    if instead == "checkpoint":
        model.gradient_checkpointing_enable()
    return model.train()


def thread_seconds() -> Counter[str]:
    """Seconds of processor time so far of this process's living threads, by name."""
    seconds: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        try:
            stat = (task / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since it was listed
        name, words = stat.split("(", 1)[1].rsplit(")", 1)
        user, system = words.split()[11:13]
        seconds[name] += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return seconds


def main(job: dict[str, Any]) -> None:
    import torch

    device, shape, instead = job["device"], SHAPES[job["shape"]], job.get("instead")
    # Without this call, sums without a fixed order would differ between two runs of one program. If
    # ops without a fixed order only warned, attention would still choose a backward pass without
    # one.
    torch.use_deterministic_algorithms(True)
    model = make_model(shape, device, instead)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(SEED)

    def step() -> torch.Tensor:
        tokens = torch.randint(
            shape["vocabulary"], (shape["batch"], shape["sequence"]), generator=generator
        ).to(device)
        saved = contextlib.nullcontext()
        if instead == "save_on_cpu":
            saved = torch.autograd.graph.save_on_cpu(pin_memory=device != "cpu")
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16), saved:
            loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    seconds, losses, before, threads_before = [], [], None, Counter[str]()
    for number in range(job["warmup"] + job["steps"]):
        if number == job["warmup"]:
            before, threads_before = support.tencache_stats(), thread_seconds()
        begin = time.perf_counter()
        # Reading the loss waits for the device.
        losses.append(struct.pack("<f", step().item()).hex())
        seconds.append(time.perf_counter() - begin)
    on_gpu = device != "cpu"
    support.answer(
        {
            "seconds": seconds[job["warmup"] :],
            "losses": losses,
            "parameters": sum(p.numel() for p in model.parameters()),
            "allocated_peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
            "reserved_peak_bytes": torch.cuda.max_memory_reserved() if on_gpu else 0,
            "thread_seconds": dict(thread_seconds() - threads_before),
            "stats_before": before,
            "stats": support.tencache_stats(),
        }
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
