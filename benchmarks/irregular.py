# SPDX-License-Identifier: Apache-2.0
"""Programs whose ops differ from round to round: the data decide which expert works, caches grow.

A worker (support.run_worker) runs one of PROGRAMS, by its name, for a count of rounds to warm up
and a count of rounds that are measured. It answers with the time of the latter, a digest of the
result and tencache's counts of the measured rounds. The programs are plain PyTorch and do not know
whether tencache is there.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from training import counted

import support

_SEED = 26
Rounds = Iterator[torch.Tensor]


class Mixture(torch.nn.Module):
    """A feed-forward layer of eight experts; the router sends each token to two of them."""

    def __init__(self, width: int, experts: int = 8) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.router = torch.nn.Linear(width, experts)
        self.experts = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(width, 4 * width),
                torch.nn.GELU(),
                torch.nn.Linear(4 * width, width),
            )
            for _ in range(experts)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        normed = self.norm(tokens)
        weights, chosen = self.router(normed).softmax(-1).topk(2)
        result = tokens
        for index, expert in enumerate(self.experts):
            rows, places = (chosen == index).nonzero(as_tuple=True)
            if rows.numel() == 0:
                continue
            output = expert(normed[rows]) * weights[rows, places].unsqueeze(1)
            result = result.index_add(0, rows, output)
        return result


def mixture_of_experts() -> Rounds:
    """Trains four layers; now and then an expert gets no token, and no gradient either."""
    width = 320
    model = torch.nn.Sequential(
        torch.nn.Embedding(2048, width),
        *(Mixture(width) for _ in range(4)),
        torch.nn.Linear(width, 2048),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        tokens = torch.randint(0, 2048, (48,))
        loss = torch.nn.functional.cross_entropy(model(tokens), tokens.roll(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def decoding() -> Rounds:
    """Generates token by token for eight sequences; keys and values of each layer grow by one."""
    width, layers, heads, batch = 512, 6, 8, 8
    model = torch.nn.ModuleList(
        torch.nn.ModuleDict(
            {
                "norm": torch.nn.LayerNorm(width),
                "attention": torch.nn.Linear(width, 3 * width),
                "output": torch.nn.Linear(width, width),
                "up": torch.nn.Linear(width, 4 * width),
                "down": torch.nn.Linear(4 * width, width),
            }
        )
        for _ in range(layers)
    )
    head = torch.nn.Linear(width, 4096)
    table = torch.nn.Embedding(4096, width)
    shape = (batch, heads, -1, width // heads)
    keys = [torch.randn(batch, heads, 96, width // heads) for _ in range(layers)]
    values = [torch.randn(batch, heads, 96, width // heads) for _ in range(layers)]
    token = torch.zeros(batch, dtype=torch.long)
    with torch.inference_mode():
        while True:
            state = table(token)
            for index, layer in enumerate(model):
                query, key, value = layer["attention"](layer["norm"](state)).chunk(3, -1)
                keys[index] = torch.cat([keys[index], key.reshape(shape)], 2)
                values[index] = torch.cat([values[index], value.reshape(shape)], 2)
                mixed = torch.nn.functional.scaled_dot_product_attention(
                    query.reshape(shape), keys[index], values[index]
                )
                state = state + layer["output"](mixed.reshape(batch, width))
                state = state + layer["down"](torch.nn.functional.gelu(layer["up"](state)))
            logits = head(state)
            token = logits.argmax(-1)
            yield logits.sum()


PROGRAMS: dict[str, Callable[[], Rounds]] = {
    program.__name__: program for program in (mixture_of_experts, decoding)
}


def run(job: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(_SEED)
    torch.tanh(torch.zeros(1))  # PyTorch does some work only once
    rounds = PROGRAMS[job["program"]]()
    digest = hashlib.sha256()
    for _ in range(job["warmup"]):
        digest.update(next(rounds).numpy().tobytes())
    before = support.tencache_stats()
    begin = time.monotonic()
    for _ in range(job["rounds"]):
        digest.update(next(rounds).numpy().tobytes())
    wall_s = time.monotonic() - begin
    stats = support.tencache_stats()
    return {
        "wall_s": wall_s,
        "digest": digest.hexdigest(),
        "stats": stats,
        "measured": None if stats is None else counted(before, stats),
    }


if __name__ == "__main__":
    support.answer(run(json.loads(sys.argv[1])))
