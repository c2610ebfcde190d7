# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 decoder of transformers with fused AdamW, norm clipping, evaluation in between."""

import torch
from exact import Results, few, wide
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    torch.manual_seed(4)
    results = Results()
    length = few(64, 16)
    config = GPT2Config(
        vocab_size=512,
        n_positions=64,
        n_embd=wide(192),
        n_layer=few(4, 2),
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1, fused=True)
    for step in range(5):
        tokens = torch.randint(0, 512, (4, length))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        results.scalar("norms", torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()
        results.scalar("losses", loss)
        if step == 2:
            model.eval()
            with torch.no_grad():
                held_out = torch.randint(0, 512, (2, length))
                results.scalar("eval", model(input_ids=held_out, labels=held_out).loss)
            model.train()
    results.module("model", model)
    results.optimizer("adamw", optimizer)
    results.write()


if __name__ == "__main__":
    main()
