# SPDX-License-Identifier: Apache-2.0
"""A program that keeps changing what it repeats, long enough each time to be learned.

It trains, evaluates and trains again; alternates two batch shapes; accumulates gradients over four
batches; generates greedily with a growing cache; uses a second optimizer; unfreezes parameters in
the middle; and goes on after an exception half way through a backward pass.
"""

import torch
import torch.nn.functional as F
from exact import Results, few, wide
from torch import nn

WIDTH, VOCABULARY = wide(128), 256
LENGTH, PROMPT, BLOCKS = few(32, 4), few(16, 4), few(4, 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x, cache=None):
        query, key, value = self.mix(self.norm(x)).chunk(3, dim=-1)
        if cache is not None:
            key, value = (
                torch.cat([old, new], 1) for old, new in zip(cache, (key, value), strict=True)
            )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=cache is None)
        x = x + self.out(mixed)
        return x + self.mlp(x), (key, value)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, caches=None):
        x, grown = self.embed(tokens), []
        for index, block in enumerate(self.blocks):
            x, cache = block(x, caches[index] if caches else None)
            grown.append(cache)
        return self.head(x), grown


class Interrupted(Exception):
    pass


class Program:
    def __init__(self):
        self.results = Results()
        self.model = Model()
        self.model.blocks[0].requires_grad_(False)
        self.optimizers = [torch.optim.AdamW(self._trainable(), 1e-3)]

    def _trainable(self):
        return [p for p in self.model.parameters() if p.requires_grad]

    def loss(self, batch, length):
        tokens = torch.randint(0, VOCABULARY, (batch, length))
        logits, _ = self.model(tokens)
        return F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())

    def train(self, name, steps, shapes=((8, LENGTH),), accumulate=1):
        for step in range(steps):
            for _ in range(accumulate):
                loss = self.loss(*shapes[step % len(shapes)]) / accumulate
                loss.backward()
                self.results.scalar(name, loss)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, name, batches):
        self.model.eval()
        for _ in range(batches):
            self.results.scalar(name, self.loss(8, LENGTH))
        self.model.train()

    @torch.no_grad()
    def generate(self, name, count):
        tokens = torch.randint(0, VOCABULARY, (8, PROMPT))
        logits, caches = self.model(tokens)
        for _ in range(count):
            last = logits[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, last], 1)
            logits, caches = self.model(last, caches)
        self.results.tokens(name, tokens)

    def interrupted_step(self):
        """The exception leaves gradients of some layers, which the next step sees."""

        def raise_in_backward(_gradient):
            raise Interrupted

        weight = self.model.blocks[1].mix.weight
        hook = weight.register_hook(raise_in_backward)
        try:
            self.loss(8, LENGTH).backward()
        except Interrupted:
            hook.remove()
            return
        raise RuntimeError("the backward pass was to be interrupted")

    def second_optimizer(self):
        half = len(self.model.blocks) // 2
        second = list(self.model.blocks[half:].parameters())
        names = {id(p) for p in second}
        first = [p for p in self._trainable() if id(p) not in names]
        self.optimizers = [
            torch.optim.AdamW(first, 1e-3),
            torch.optim.SGD(second, 1e-2, momentum=0.9),
        ]


def main():
    torch.manual_seed(12)
    program = Program()
    program.train("first", 5)
    program.evaluate("evaluation", 6)
    program.train("second", 4)
    program.train("shapes", 8, shapes=((8, LENGTH), (4, 3 * LENGTH // 2)))
    program.train("accumulated", 4, accumulate=4)
    program.generate("tokens", 12)
    program.train("after generating", 3)
    program.model.blocks[0].requires_grad_(True)
    program.second_optimizer()
    program.train("two optimizers", 5)
    program.interrupted_step()
    program.train("after the exception", 4)
    program.results.module("model", program.model)
    for index, optimizer in enumerate(program.optimizers):
        program.results.optimizer(f"optimizer {index}", optimizer)
    program.results.write()


if __name__ == "__main__":
    main()
