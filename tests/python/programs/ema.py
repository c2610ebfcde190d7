# SPDX-License-Identifier: Apache-2.0
"""Moving averages of weights: an EMA copy, a stochastic weight average, update_bn at the end."""

import copy

import torch
import torch.nn.functional as F
from exact import LEAST_OF_SQUARE, Results, wide
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

WIDTH = wide(512, emulated=LEAST_OF_SQUARE)


def make_model():
    return nn.Sequential(
        nn.Linear(128, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 10),
    )


def main():
    torch.manual_seed(13)
    results = Results()
    model = make_model()
    teacher = copy.deepcopy(model).requires_grad_(False)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    swa = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    schedule = SWALR(optimizer, swa_lr=0.02, anneal_epochs=4)
    batches = [torch.randn(64, 128) for _ in range(4)]
    for step in range(8):
        data = batches[step % 4]
        with torch.no_grad():
            soft = teacher(data).softmax(1)
        loss = F.cross_entropy(model(data), soft.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        ema.update_parameters(model)
        if step % 2:
            swa.update_parameters(model)
        results.scalar("losses", loss)
    update_bn(batches, swa)
    for name, module in (("model", model), ("ema", ema), ("swa", swa)):
        results.module(name, module)
    results.optimizer("sgd", optimizer)
    results.write()


if __name__ == "__main__":
    main()
