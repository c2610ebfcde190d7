# SPDX-License-Identifier: Apache-2.0
"""A tiny Mixtral: the data decide which expert works on which token, and so which op runs."""

import torch
from exact import Results, few, wide
from transformers import MixtralConfig, MixtralForCausalLM


def main():
    torch.manual_seed(6)
    results = Results()
    config = MixtralConfig(
        vocab_size=256,
        hidden_size=wide(128),
        intermediate_size=2 * wide(128),
        num_hidden_layers=few(2, 1),
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        output_router_logits=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = MixtralForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(4):
        tokens = torch.randint(0, 256, (2, few(48, 24)))
        output = model(input_ids=tokens, labels=tokens)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        results.scalar("losses", output.loss)
        results.scalar("router_losses", output.aux_loss)
    results.module("model", model)
    results.optimizer("adamw", optimizer)
    results.write()


if __name__ == "__main__":
    main()
