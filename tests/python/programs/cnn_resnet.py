# SPDX-License-Identifier: Apache-2.0
"""A small residual CNN with BatchNorm in channels_last, SGD with momentum, and an evaluation."""

import torch
import torch.nn.functional as F
from exact import Results, few, wide
from torch import nn


class Block(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x), inplace=True)


CHANNELS, PIXELS = wide(32, least=128, emulated=64), few(32, 8)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, 1, 1)
        self.blocks = nn.Sequential(
            Block(CHANNELS, CHANNELS, 1),
            Block(CHANNELS, 2 * CHANNELS, 2),
            Block(2 * CHANNELS, 4 * CHANNELS, 2),
            Block(4 * CHANNELS, 4 * CHANNELS, 1),
        )
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(4 * CHANNELS, 10)

    def forward(self, x):
        x = self.pool(self.blocks(F.relu(self.stem(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def main():
    torch.manual_seed(1)
    results = Results()
    model = ResNet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    for step in range(6):
        images = torch.randn(8, 3, PIXELS, PIXELS).contiguous(memory_format=torch.channels_last)
        labels = torch.randint(0, 10, (8,))
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        results.scalar("losses", loss)
        if step == 3:
            model.eval()
            with torch.no_grad():
                results.tensor("logits", model(torch.randn(8, 3, PIXELS, PIXELS)))
            model.train()
    results.module("model", model)
    results.optimizer("sgd", optimizer)
    results.write()


if __name__ == "__main__":
    main()
