# SPDX-License-Identifier: Apache-2.0
"""bfloat16 autocast over convolutions and attention, with a loss scaler, then a pure bf16 model."""

import torch
import torch.nn.functional as F
from exact import DEVICE, LEAST_OF_SQUARE, Results, few, wide
from torch import nn

WIDTH = wide(192, emulated=LEAST_OF_SQUARE)  # the matrices are oblong, of bfloat16
COUNT, PIXELS = few(8, 6), few(48, 8)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 8, 8)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, few(2, 1), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images):
        patches = self.patch(images).flatten(2).transpose(1, 2)
        return self.head(self.encoder(patches).mean(1))


def main():
    torch.manual_seed(14)
    results = Results()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=2)
    for _ in range(4):
        images, labels = torch.randn(COUNT, 3, PIXELS, PIXELS), torch.randint(0, 10, (COUNT,))
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        results.scalar("norms", nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(optimizer)
        scaler.update()
        results.scalar("losses", loss)
    half = Model().to(torch.bfloat16)
    momentum = torch.optim.SGD(half.parameters(), 0.01, 0.9)
    for _ in range(3):
        loss = half(images.bfloat16()).float().square().mean()
        momentum.zero_grad()
        loss.backward()
        momentum.step()
        results.scalar("half_losses", loss)
    results.module("model", model)
    results.module("half", half)
    results.optimizer("adamw", optimizer)
    results.optimizer("sgd", momentum)
    results.write()


if __name__ == "__main__":
    main()
