# SPDX-License-Identifier: Apache-2.0
"""nn.TransformerEncoder: training with padding masks, then the fast path of evaluation."""

import torch
import torch.nn.functional as F
from exact import Results, few, wide
from torch import nn

WIDTH = wide(192)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, wide(512), dropout=0.1, batch_first=True)
        self.embed = nn.Embedding(1000, WIDTH)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, tokens, padding):
        hidden = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
        return self.head(hidden.masked_fill(padding.unsqueeze(-1), 0).mean(1))


def batch(size, length):
    tokens = torch.randint(0, 1000, (size, length))
    ends = torch.randint(length // 2, length, (size, 1))
    ends[0] = length
    return tokens, torch.arange(length) >= ends, torch.randint(0, 8, (size,))


def main():
    torch.manual_seed(3)
    results = Results()
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=True)
    for step in range(6):
        length = (few(48, 12), few(32, 8), few(64, 16))[step % 3]
        tokens, padding, labels = batch((8, 8, 4)[step % 3], length)
        loss = F.cross_entropy(model(tokens, padding), labels)
        optimizer.zero_grad()
        loss.backward()
        results.scalar("norms", nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        results.scalar("losses", loss)
    model.eval()
    with torch.no_grad():
        tokens, padding, _ = batch(8, 40)
        results.tensor("logits", model(tokens, padding))
    results.module("model", model)
    results.optimizer("adamw", optimizer)
    results.write()


if __name__ == "__main__":
    main()
