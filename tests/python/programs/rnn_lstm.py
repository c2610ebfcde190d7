# SPDX-License-Identifier: Apache-2.0
"""An LSTM over packed sequences of changing lengths, then a GRU: Adam and Rprop, value clipping."""

import torch
import torch.nn.functional as F
from exact import Results, few, wide
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WIDTH = wide(256)


class Tagger(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed = nn.Embedding(500, 128)
        self.rnn = kind(128, WIDTH, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(2 * WIDTH, 20)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embed(tokens), lengths, True, enforce_sorted=False)
        output, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(output)


def train(name, kind, make_optimizer, results):
    model = Tagger(kind)
    optimizer = make_optimizer(model.parameters())
    for step in range(3):
        longest = (few(20, 4), few(12, 3), few(26, 5))[step]
        lengths = torch.randint(longest // 2, longest, (6,), device="cpu")
        lengths[0] = longest
        tokens = torch.randint(0, 500, (6, longest))
        logits = model(tokens, lengths)
        loss = F.cross_entropy(logits.flatten(0, 1), (tokens % 20).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        results.scalar(f"{name}.losses", loss)
    with torch.inference_mode():
        model.eval()
        results.tensor(f"{name}.logits", model(tokens, lengths))
    results.module(name, model)
    results.optimizer(name, optimizer)


def main():
    torch.manual_seed(2)
    results = Results()
    train("lstm", nn.LSTM, lambda p: torch.optim.Adam(p, 1e-3, amsgrad=True), results)
    train("gru", nn.GRU, lambda p: torch.optim.Rprop(p, 1e-3), results)
    results.write()


if __name__ == "__main__":
    main()
