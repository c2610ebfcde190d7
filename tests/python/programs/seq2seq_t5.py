# SPDX-License-Identifier: Apache-2.0
"""A T5 encoder-decoder with shared embeddings, Adafactor, and greedy decoding at the end."""

import torch
from exact import Results, few, wide
from transformers import T5Config, T5ForConditionalGeneration


def main():
    torch.manual_seed(5)
    results = Results()
    config = T5Config(
        vocab_size=512,
        d_model=wide(128),
        d_kv=wide(128) // 4,
        d_ff=2 * wide(128),
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = T5ForConditionalGeneration(config)
    optimizer = torch.optim.Adafactor(model.parameters(), 1e-2)
    for _ in range(5):
        source = torch.randint(2, 512, (few(4, 2), 32))
        target = source.flip(1)[:, :24].contiguous()
        mask = torch.ones_like(source)
        mask[1, 20:] = 0
        loss = model(input_ids=source, attention_mask=mask, labels=target).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.scalar("losses", loss)
    model.eval()
    results.tokens("tokens", model.generate(source, max_new_tokens=8, do_sample=False))
    results.module("model", model)
    results.optimizer("adafactor", optimizer)
    results.write()


if __name__ == "__main__":
    main()
