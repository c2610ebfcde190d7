# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing, reentrant and not, with dropout; gradients accumulated over batches."""

import torch
import torch.nn.functional as F
from exact import Results, few, wide
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.dropout(self.mlp(x))


WIDTH = wide(160)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.first = nn.ModuleList(Block(WIDTH) for _ in range(2))
        self.last = nn.Sequential(Block(WIDTH), Block(WIDTH))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens, reentrant):
        x = self.embed(tokens)
        for block in self.first:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return self.head(checkpoint_sequential(self.last, 2, x, use_reentrant=reentrant))


def main():
    torch.manual_seed(11)
    results = Results()
    model = Model()
    optimizer = torch.optim.NAdam(model.parameters(), 1e-3)
    for step in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            tokens = torch.randint(0, 256, (4, few(48, 12)))
            logits = model(tokens, reentrant=step % 2 == 0)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten()) / 2
            loss.backward()
            results.scalar("losses", loss)
        results.scalar("norms", nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
    results.module("model", model)
    results.optimizer("nadam", optimizer)
    results.write()


if __name__ == "__main__":
    main()
