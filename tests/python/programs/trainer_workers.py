# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Trainer with its defaults, evaluation in between, and DataLoader workers."""

import tempfile

import torch
from exact import DEVICE, Results, few, wide
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Blocks(torch.utils.data.Dataset):
    """Reads a tensor of the parent process inside the workers, which are forked."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 256, (count, 32), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main():
    if DEVICE != "cpu":
        torch.set_default_device(None)  # the Trainer itself brings model and batches to the GPU
    torch.manual_seed(15)
    results = Results()
    config = GPT2Config(
        vocab_size=256,
        n_positions=32,
        n_embd=wide(128),
        n_layer=few(3, 2),
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=4,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="no",
            dataloader_num_workers=2,
            use_cpu=DEVICE == "cpu",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Blocks(512, 1),
            eval_dataset=Blocks(8, 2),
        )
        trainer.train()
    for entry in trainer.state.log_history:
        for key in ("loss", "grad_norm", "eval_loss"):
            if key in entry:
                results.scalar(key, entry[key])
    results.module("model", trainer.model)
    results.optimizer("adamw", trainer.optimizer)
    results.write()


if __name__ == "__main__":
    main()
