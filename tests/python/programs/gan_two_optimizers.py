# SPDX-License-Identifier: Apache-2.0
"""A convolutional GAN: two models, two optimizers of different kinds, steps that alternate."""

import torch
import torch.nn.functional as F
from exact import Results, few, wide
from torch import nn

CHANNELS = wide(64, least=256, emulated=128)


def make_generator():
    return nn.Sequential(
        nn.ConvTranspose2d(64, 2 * CHANNELS, 4, 1, 0, bias=False),
        nn.BatchNorm2d(2 * CHANNELS),
        nn.ReLU(True),
        nn.ConvTranspose2d(2 * CHANNELS, CHANNELS, 4, 2, 1, bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(True),
        nn.ConvTranspose2d(CHANNELS, 3, 4, 2, 1),
        nn.Tanh(),
    )


def make_discriminator():
    return nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, CHANNELS, 4, 2, 1)),
        nn.LeakyReLU(0.2, True),
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(CHANNELS, 2 * CHANNELS, 4, 2, 1)),
        nn.LeakyReLU(0.2, True),
        nn.Flatten(),
        nn.Linear(2 * CHANNELS * 16, 1),
    )


def main():
    torch.manual_seed(7)
    results = Results()
    generator, discriminator = make_generator(), make_discriminator()
    step_g = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
    step_d = torch.optim.RMSprop(discriminator.parameters(), 1e-4, momentum=0.5)
    count = few(16, 4)
    ones, zeros = torch.ones(count, 1), torch.zeros(count, 1)
    for _ in range(5):
        real = torch.rand(count, 3, 16, 16) * 2 - 1
        fake = generator(torch.randn(count, 64, 1, 1))
        loss_d = F.binary_cross_entropy_with_logits(discriminator(real), ones)
        loss_d = loss_d + F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
        step_d.zero_grad()
        loss_d.backward()
        step_d.step()
        loss_g = F.binary_cross_entropy_with_logits(discriminator(fake), ones)
        step_g.zero_grad()
        loss_g.backward()
        step_g.step()
        results.scalar("losses_d", loss_d)
        results.scalar("losses_g", loss_g)
    for name, module in (("generator", generator), ("discriminator", discriminator)):
        results.module(name, module)
    results.optimizer("adam", step_g)
    results.optimizer("rmsprop", step_d)
    results.write()


if __name__ == "__main__":
    main()
