# SPDX-License-Identifier: Apache-2.0
"""Lightning shows what a memory budget costs, in the files of its logger.

    tencache run --device-memory 48MiB -- python lightning_logs.py

The model is a stack of linear layers; the data are random. Needs lightning.
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger

from tencache.integrations.lightning import TencacheCallback

WIDTH, DEPTH = 768, 8


class Layers(LightningModule):
    """Learns to give back what it is given."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))

    def training_step(self, batch):
        (inputs,) = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), inputs)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", default="lightning_logs", help="folder of the logs")
    options = parser.parse_args()
    seed_everything(1)
    data = torch.utils.data.TensorDataset(torch.randn(256, WIDTH))
    trainer = Trainer(
        max_steps=options.steps,
        log_every_n_steps=5,
        logger=CSVLogger(options.output),
        callbacks=[TencacheCallback()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        accelerator="auto",
        devices=1,
    )
    trainer.fit(Layers(), torch.utils.data.DataLoader(data, batch_size=16, shuffle=True))


if __name__ == "__main__":
    main()
