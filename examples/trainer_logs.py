# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Trainer shows what a memory budget costs, in its logs and in TensorBoard.

    tencache run --device-memory 48MiB -- python trainer_logs.py
    tensorboard --logdir trainer_logs/runs

The model is a small GPT-2 with random weights, the text is the Python that runs this. Needs
transformers, accelerate and tensorboard.
"""

import argparse
import os
import sysconfig
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from tencache.integrations.transformers import TencacheCallback


class ByteText(torch.utils.data.Dataset):
    """Blocks of bytes of a source file, one token a byte."""

    def __init__(self, path, length=64):
        text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        self.blocks = text[: len(text) // length * length].view(-1, length).long()

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        return {"input_ids": self.blocks[index], "labels": self.blocks[index]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", default="trainer_logs", help="folder of logs and checkpoints")
    options = parser.parse_args()
    set_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=64, n_embd=256, n_layer=6, n_head=4)
    )
    model.loss_type = "ForCausalLM"
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(Path(options.output) / "runs"))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=options.output,
            max_steps=options.steps,
            logging_steps=5,
            save_strategy="no",
            report_to="tensorboard",
        ),
        train_dataset=ByteText(Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"),
    )
    TencacheCallback.add_to(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
