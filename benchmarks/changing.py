# SPDX-License-Identifier: Apache-2.0
"""Programs whose tensors have new sizes again and again.

A worker (support.run_worker) runs one of PROGRAMS, by its name, for a count of rounds. It answers
with the processor time of the rounds, the peak of resident memory, a digest of the result, and
tencache's stats. The programs are plain PyTorch and do not know whether tencache is there.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import support

_SEED = 25


def growing_cat(rounds: int) -> torch.Tensor:
    """A row of samples that grows by concatenation, as naive logging or buffering code does."""
    rows = torch.randn(2048, 256)
    for _ in range(rounds):
        rows = torch.cat([rows, torch.randn(384, 256)])
        rows = rows * 1.0001
    return rows.sum(0)


def growing_cache(rounds: int) -> torch.Tensor:
    """Beam search: caches of keys and values grow by a token and are reordered each time."""
    layers, beams, heads, width = 6, 8, 12, 64
    weight = torch.randn(heads * width, heads * width) / 28
    keys = [torch.randn(beams, heads, 128, width) for _ in range(layers)]
    values = [torch.randn(beams, heads, 128, width) for _ in range(layers)]
    state = torch.randn(beams, heads * width)
    for _ in range(rounds):
        order = torch.randint(0, beams, (beams,))
        for layer in range(layers):
            query = torch.tanh(state @ weight).view(beams, heads, 1, width)
            keys[layer] = torch.cat([keys[layer], query], 2).index_select(0, order)
            values[layer] = torch.cat([values[layer], query * 0.5], 2).index_select(0, order)
            mixed = torch.nn.functional.scaled_dot_product_attention(
                query, keys[layer], values[layer]
            )
            state = mixed.reshape(beams, heads * width)
    return state


def serving_threads(rounds: int) -> torch.Tensor:
    """Four threads answer requests of random batch and length with one model."""
    model = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).eval()
    sums = [torch.zeros(256)] * 4

    def serve(thread: int) -> None:
        shapes = random.Random(_SEED + thread)
        generator = torch.Generator().manual_seed(thread)
        with torch.inference_mode():
            for _ in range(rounds):
                batch, length = shapes.randint(1, 16), shapes.randint(32, 384)
                request = torch.randn(batch, length, 256, generator=generator)
                sums[thread] = sums[thread] + model(request).sum((0, 1))

    threads = [threading.Thread(target=serve, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return torch.stack(sums).sum(0)


def random_lengths(rounds: int) -> torch.Tensor:
    """Training on batches that are padded to the longest of each, 96 to 256 tokens."""
    lengths = random.Random(_SEED)
    model = torch.nn.Sequential(
        torch.nn.Embedding(4096, 384),
        torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True), 6
        ),
        torch.nn.Linear(384, 4096),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(rounds):
        tokens = torch.randint(0, 4096, (8, lengths.randint(96, 256)))
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


PROGRAMS: dict[str, Callable[[int], torch.Tensor]] = {
    program.__name__: program
    for program in (growing_cat, growing_cache, serving_threads, random_lengths)
}


def _processor_s() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def run(job: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(_SEED)
    PROGRAMS[job["program"]](2)  # PyTorch does some work only once
    torch.manual_seed(_SEED)
    user, system = _processor_s()
    begin = time.monotonic()
    result = PROGRAMS[job["program"]](job["rounds"])
    wall_s = time.monotonic() - begin
    user_after, system_after = _processor_s()
    return {
        "wall_s": wall_s,
        "user_s": user_after - user,
        "system_s": system_after - system,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * support.KIB,
        "digest": hashlib.sha256(result.numpy().tobytes()).hexdigest(),
        "stats": support.tencache_stats(),
    }


if __name__ == "__main__":
    support.answer(run(json.loads(sys.argv[1])))
