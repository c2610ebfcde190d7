# SPDX-License-Identifier: Apache-2.0
"""Trains a causal language model with the Hugging Face Trainer, as any script would.

The model is a GPT-2 with random weights (GPT2Config). The text is on every machine: the source
files of Python's standard library, in alphabetical order, one token a byte. Nothing is downloaded.
The Trainer runs with its defaults: fused AdamW, gradient clipping, evaluation in between, a
checkpoint after the last step. It runs on the CPU; --cuda chooses the GPU.

The same seed on the same machine gives the same bits. --report FILE writes what is needed to check
that: every loss and gradient norm as exact hexadecimal floats, and a SHA-256 of every parameter and
every tensor of the optimizer's state after the last step. It also writes the peak of memory: on the
CPU how much the process's memory grew after the imports, on a GPU what was allocated there.
"""

import argparse
import hashlib
import json
import os
import sysconfig
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

VOCABULARY = 256


class ByteText(torch.utils.data.Dataset):
    """Consecutive blocks of `sequence` bytes of the standard library's source text."""

    def __init__(self, text, sequence):
        count = len(text) // sequence
        self.blocks = torch.frombuffer(bytearray(text[: count * sequence]), dtype=torch.uint8)
        self.blocks = self.blocks.view(count, sequence)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        block = self.blocks[index].long()
        return {"input_ids": block, "labels": block}


def standard_library_text(bytes_wanted):
    """The first `bytes_wanted` bytes of the library's top-level modules in alphabetical order."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= bytes_wanted:
            return bytes(text[:bytes_wanted])
    raise SystemExit(f"{folder} holds {len(text)} bytes of text, {bytes_wanted} are needed")


def sha256(tensor):
    """The hash of a tensor's bytes, copied out by an ordinary op first."""
    copy = np.empty(tensor.numel() * tensor.element_size(), dtype=np.uint8)
    flat = tensor.detach().reshape(-1)
    torch.from_numpy(copy).view(tensor.dtype).copy_(flat)
    return hashlib.sha256(copy).hexdigest()


def parameter_digests(model):
    return {name: sha256(value) for name, value in sorted(model.state_dict().items())}


def optimizer_digests(optimizer):
    digests = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in sorted(state.items()):
            digests[f"{index}.{name}"] = sha256(value)
    return digests


def memory_bytes(field):
    """A field of /proc/self/status: VmRSS (now) or VmHWM (the highest so far)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no field {field}")


def exact_history(history, key):
    return [entry[key].hex() for entry in history if key in entry]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--eval-blocks", type=int, default=8, help="blocks held out for evaluation")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    parser.add_argument("--output", default="build/train_gpt2", help="folder for checkpoints")
    parser.add_argument("--report", help="JSON file for exact results")
    return parser.parse_args()


def make_trainer(options):
    set_seed(options.seed)
    blocks_train = options.steps * options.batch
    text = standard_library_text((blocks_train + options.eval_blocks) * options.sequence)
    border = blocks_train * options.sequence
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=options.sequence,
            n_layer=options.layers,
            n_embd=options.width,
            n_head=options.heads,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    model.loss_type = "ForCausalLM"
    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=options.batch,
        learning_rate=options.learning_rate,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=max(1, options.steps // 2),
        save_steps=options.steps,
        seed=options.seed,
        use_cpu=not options.cuda,
    )
    return Trainer(
        model=model,
        args=arguments,
        train_dataset=ByteText(text[:border], options.sequence),
        eval_dataset=ByteText(text[border:], options.sequence),
    )


def main():
    options = parse_arguments()
    if options.cuda:
        # Some kernels of CUDA add in another order each time.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    # If two threads are first to use a function of oneMKL 2024.2 at once, it may give other bits
    # than later (pytorch issue 188792). A single element needs one thread.
    torch.tanh(torch.zeros(1))
    rss_after_imports = memory_bytes("VmRSS")
    trainer = make_trainer(options)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    print(f"GPT-2 with {parameters / 1e6:.1f} M parameters, {options.steps} steps", flush=True)
    trainer.train()
    if options.report:
        history = trainer.state.log_history
        report = {
            "losses": exact_history(history, "loss"),
            "gradient_norms": exact_history(history, "grad_norm"),
            "eval_losses": exact_history(history, "eval_loss"),
            "parameters": parameter_digests(trainer.model),
            "optimizer": optimizer_digests(trainer.optimizer),
            "train_runtime_s": next(e["train_runtime"] for e in history if "train_runtime" in e),
            "device": torch.cuda.get_device_name() if options.cuda else "CPU",
            "peak_bytes": torch.cuda.max_memory_allocated()
            if options.cuda
            else memory_bytes("VmHWM") - rss_after_imports,
        }
        Path(options.report).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
