# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Trainer with its defaults: evaluation, checkpoints, and resuming from one.

The second Trainer has a model of its own. It reads the first one's middle checkpoint, with the
state of the optimizer and the generators. Both must end with the same parameters, or the script
fails.
"""

import tempfile
from pathlib import Path

import torch
from exact import DEVICE, Results, wide
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

STEPS, MIDDLE = 4, 2


class Blocks(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 256, (count, 16), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def make_trainer(folder):
    set_seed(15)
    config = GPT2Config(
        vocab_size=256,
        n_positions=16,
        n_embd=wide(128),
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=MIDDLE,
        save_steps=MIDDLE,
        use_cpu=DEVICE == "cpu",
        disable_tqdm=True,
    )
    return Trainer(
        model=model, args=arguments, train_dataset=Blocks(16, 1), eval_dataset=Blocks(8, 2)
    )


def main():
    torch.set_default_device(None)  # the Trainer itself brings model and batches to the device
    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        for name, checkpoint in (("whole", None), ("resumed", f"{folder}/checkpoint-{MIDDLE}")):
            trainer = make_trainer(folder if checkpoint is None else str(Path(folder) / name))
            trainer.train(resume_from_checkpoint=checkpoint)
            for entry in trainer.state.log_history:
                for key in ("loss", "grad_norm", "eval_loss"):
                    if key in entry:
                        results.scalar(f"{name}.{key}", entry[key])
            results.module(name, trainer.model)
            results.optimizer(f"{name}.adamw", trainer.optimizer)
            del trainer
    for key, value in results.values.items():
        other = key.replace("whole", "resumed", 1)
        assert results.values[other] == value, f"{key} is not what it is after going on"
    results.write()


if __name__ == "__main__":
    main()
