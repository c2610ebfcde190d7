# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama (grouped-query attention) generates: greedy, sampling, beams, a static cache."""

import torch
from exact import Results, wide
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    torch.manual_seed(10)
    results = Results()
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=wide(256),
        intermediate_size=2 * wide(256),
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    prompt = torch.randint(1, 1024, (2, 24))
    kinds = {
        "greedy": {"do_sample": False},
        "sampling": {"do_sample": True, "temperature": 1.3, "top_k": 50, "top_p": 0.9},
        "beams": {"do_sample": False, "num_beams": 3},
        "static": {"do_sample": False, "cache_implementation": "static", "disable_compile": True},
    }
    for name, arguments in kinds.items():
        tokens = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, **arguments
        )
        results.tokens(name, tokens)
    with torch.no_grad():
        results.tensor("logits", model(tokens).logits)
    results.write()


if __name__ == "__main__":
    main()
