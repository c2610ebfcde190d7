# SPDX-License-Identifier: Apache-2.0
"""Quantised inference: packed weights hold a bias that no later op names; per-channel scales."""

import torch
from exact import Results


def main():
    torch.manual_seed(17)
    results = Results()
    weight, bias = torch.randn(768, 512), torch.randn(768)
    scales, zeros = torch.rand(768).double() * 0.02 + 0.01, torch.zeros(768, dtype=torch.int64)
    quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(quantized, bias)
    data = torch.randn(64, 512)
    for _ in range(20):
        noise = torch.randn(768, 512)
        output = torch.ops.quantized.linear_dynamic(data, packed, True)
        data = (output[:, :512] @ noise.T[:, :512].contiguous()).tanh()
        results.scalar("sums", data.double().sum())
    results.tensor("output", output)
    results.tensor("scales", quantized.q_per_channel_scales())
    results.tensor("dequantized", quantized.dequantize())
    results.tensor("unpacked", torch.ops.quantized.linear_unpack(packed)[0].int_repr())
    results.write()


if __name__ == "__main__":
    main()
