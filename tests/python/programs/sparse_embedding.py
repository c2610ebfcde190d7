# SPDX-License-Identifier: Apache-2.0
"""Embeddings with sparse gradients: SparseAdam, Adagrad, a dense part beside them, CSR products."""

import torch
import torch.nn.functional as F
from exact import Results
from torch import nn


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(20000, 64, sparse=True)
        self.items = nn.EmbeddingBag(20000, 64, mode="sum", sparse=True)
        self.top = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, users, items, offsets):
        both = torch.cat([self.users(users), self.items(items, offsets)], 1)
        return self.top(both).squeeze(1)


def main():
    torch.manual_seed(9)
    results = Results()
    model = Recommender()
    optimizers = {
        "sparse_adam": torch.optim.SparseAdam(list(model.users.parameters()), 1e-2),
        "adagrad": torch.optim.Adagrad(model.items.parameters(), 1e-2),
        "adam": torch.optim.Adam(model.top.parameters(), 1e-3),
    }
    for _ in range(8):
        users = torch.randint(0, 20000, (256,))
        items = torch.randint(0, 20000, (1024,))
        clicks = torch.randint(0, 2, (256,)).float()
        score = model(users, items, torch.arange(0, 1024, 4))
        loss = F.binary_cross_entropy_with_logits(score, clicks)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        results.scalar("losses", loss)
        for optimizer in optimizers.values():
            optimizer.step()
    counts = torch.zeros(512, 20000).index_put_((users % 512, users), torch.ones(256))
    graph = counts.to_sparse_coo().coalesce()
    dense = model.users.weight.detach()
    results.tensor("product_coo", torch.sparse.mm(graph, dense))
    results.tensor("graph", graph + graph)
    results.module("model", model)
    for name, optimizer in optimizers.items():
        results.optimizer(name, optimizer)
    results.write()


if __name__ == "__main__":
    main()
