# SPDX-License-Identifier: Apache-2.0
"""accelerate trains peft's low-rank adapters, then merges them into the base, which generates.

The training has float16 with a loss scaler, recomputed activations, gradients accumulated over two
batches, and clipping.
"""

import torch
from accelerate import Accelerator
from exact import Results, few, wide
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, set_seed


def make_model():
    config = GPT2Config(
        vocab_size=256,
        n_positions=32,
        n_embd=wide(128),
        n_layer=few(4, 2),
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    model.gradient_checkpointing_enable()
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=8,
        lora_dropout=0.1,
        target_modules=["c_attn", "c_fc"],
        fan_in_fan_out=True,
    )
    return get_peft_model(model, lora)


def main():
    torch.set_default_device(None)  # accelerate itself brings model and batches to the device
    set_seed(19)
    results = Results()
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
    model = make_model()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tokens = torch.randint(0, 256, (16, 6))
    loader = torch.utils.data.DataLoader(tokens, batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(trained, 1e-3), loader)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                results.scalar("norms", accelerator.clip_grad_norm_(trained, 1.0))
            optimizer.step()
            optimizer.zero_grad()
            results.scalar("losses", loss)
    results.scalar("scale", accelerator.scaler.get_scale())
    results.optimizer("adamw", optimizer)
    merged = accelerator.unwrap_model(model, keep_fp32_wrapper=False).merge_and_unload().eval()
    prompt = batch[:, :3]
    for name, arguments in (("greedy", {}), ("sampled", {"do_sample": True, "top_k": 20})):
        generated = merged.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, **arguments
        )
        results.tokens(name, generated)
    results.module("merged", merged)
    results.write()


if __name__ == "__main__":
    main()
