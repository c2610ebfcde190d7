# SPDX-License-Identifier: Apache-2.0
"""Small programs for operators that PyTorch's own samples (operator_samples.py) do not reach.

Each runs on the CPU while a Recorder keeps its operators: fused optimizers, the scaler of mixed
precision, inference paths of transformers, convolutions as CUDA does them without cuDNN, and
overloads that a function's samples never choose. The caller fixes seeds. Programs take gradients if
the backward operators matter.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

A = torch.ops.aten
CALLS: list[Callable[[], object]] = []


def call(function: Callable[[], object]) -> Callable[[], object]:
    CALLS.append(function)
    return function


def r(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes)


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, requires_grad=True)


def integers(high: int, *sizes: int) -> torch.Tensor:
    return torch.randint(high, sizes)


def backward(result: torch.Tensor) -> None:
    result.pow(2).sum().backward()


@call
def shifts() -> None:
    for operator in (A.__lshift__, A.__rshift__, A.__ilshift__, A.__irshift__):
        operator.Scalar(integers(9, 4), 2)
        operator.Tensor(integers(9, 4), integers(3, 4))


@call
def extremes() -> None:
    torch._aminmax(r(4, 5))
    torch._aminmax(r(4, 5), 1)
    torch.clamp_max(r(4, 5), 1.0)
    A.linalg__powsum(r(4, 5), 2)
    A.norm.ScalarOpt_dim_dtype(r(4, 5), 2, [0], False, dtype=torch.float64)


@call
def mixed_precision() -> None:
    for gradients in ([r(4), r(2, 3)], [r(4), torch.tensor([1.0, float("inf")])]):
        A._amp_foreach_non_finite_check_and_unscale_(gradients, torch.zeros(1), torch.tensor(0.5))
    for found in (0.0, 1.0):
        state = (torch.tensor([1024.0]), torch.tensor([2], dtype=torch.int32))
        A._amp_update_scale_(*state, torch.tensor([found]), 2.0, 0.5, 3)


@call
def asserts() -> None:
    A._assert_async(torch.tensor(True))
    A._assert_async.msg(torch.tensor(True), "why")


@call
def batch_norms() -> None:
    x, weight, bias = r(4, 3, 5), r(3), r(3)
    statistics = (torch.zeros(3), torch.ones(3))
    out = {"out": r(4, 3, 5), "save_mean": r(3), "save_invstd": r(3)}
    A._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.1, 1e-5)
    A._native_batch_norm_legit.out(x, weight, bias, *statistics, True, 0.1, 1e-5, **out)
    A._batch_norm_with_update.out(
        x, weight, bias, *statistics, 0.1, 1e-5, **out, reserve=torch.empty(0, dtype=torch.uint8)
    )
    A.batch_norm_update_stats(x, *statistics, 0.1)


@call
def linear_combinations() -> None:
    A._compute_linear_combination(r(3, 2, 2), r(4, 3))
    A._addmm_activation(r(3), r(5, 7), r(7, 3))
    A._addmm_activation(r(3), r(5, 7), r(7, 3), use_gelu=True)
    A._int_mm(integers(9, 32, 32).to(torch.int8), integers(9, 32, 32).to(torch.int8))
    A._weight_int8pack_mm(r(4, 32).bfloat16(), integers(9, 32, 32).to(torch.int8), r(32).bfloat16())
    torch._grouped_mm(r(2, 16, 16).bfloat16(), r(2, 16, 16).bfloat16())
    eighths, one = [r(16, 16).to(torch.float8_e4m3fn) for _ in range(2)], torch.ones(())
    torch._scaled_mm(eighths[0], eighths[1].t(), one, one, out_dtype=torch.bfloat16)
    A._linalg_eigvals(r(4, 4))
    A.linalg_eigvals.out(r(4, 4), out=torch.zeros(4, dtype=torch.complex64))


@call
def compressed_indices() -> None:
    rows, columns = torch.tensor([0, 0, 2, 3]), torch.tensor([1, 2, 0, 3])
    compressed = A._convert_indices_from_coo_to_csr(rows, 4)
    A._convert_indices_from_csr_to_coo(compressed, columns)
    A._validate_compressed_sparse_indices(True, compressed, columns, 4, 4, 4)
    dense = r(4, 4) * (r(4, 4) > 0)
    dense.to_sparse()
    dense.to_sparse(1)
    dense.to_sparse_csr()
    dense.to_sparse_csc()
    dense.to_sparse_bsr((2, 2))
    dense.to_sparse_bsc((2, 2))


@call
def distributions() -> None:
    alpha = torch.rand(4, 3) + 0.5
    A._standard_gamma(alpha)
    A._standard_gamma_grad(alpha, torch.rand(4, 3) + 0.1)
    A._sample_dirichlet(alpha)
    A._dirichlet_grad(
        torch.rand(4, 3), alpha, alpha.sum(-1, keepdim=True).expand(4, 3).contiguous()
    )
    torch.poisson(alpha)
    torch.binomial(torch.full((4,), 9.0), torch.rand(4))
    torch.normal(0.0, alpha)
    r(9).random_()
    r(9).random_(7)
    A.randperm.generator_out(7, generator=None, out=integers(2, 7))
    A.rrelu_with_noise.out(r(4), torch.rand(4), training=True, out=r(4))
    A.rrelu_with_noise_(r(4), torch.rand(4), training=True)


@call
def fake_quantization() -> None:
    scale, zero = torch.tensor([0.1]), torch.tensor([0.0])
    scales, zeros = torch.full((3,), 0.1), torch.zeros(3)
    backward(torch._fake_quantize_learnable_per_tensor_affine(leaf(4, 3), scale, zero, -9, 9, 1.0))
    backward(
        torch._fake_quantize_learnable_per_channel_affine(leaf(4, 3), scales, zeros, 1, -9, 9, 1.0)
    )
    torch.fake_quantize_per_tensor_affine(r(4, 3), 0.1, 0, -9, 9)
    torch.fake_quantize_per_tensor_affine(r(4, 3), scale, zero.int(), -9, 9)
    torch.fake_quantize_per_channel_affine(r(4, 3), scales, zeros.int(), 1, -9, 9)
    one = torch.ones(1, dtype=torch.int64)
    A._fused_moving_avg_obs_fq_helper(
        r(4, 3), one, one, r(1), r(1), scale, zero.int(), 0.1, -9, 9, 1
    )


@call
def lists_of_tensors() -> None:
    lists = [[r(3), r(2, 2)] for _ in range(3)]
    A._foreach_add.Tensor(lists[0], torch.tensor(2.0))
    A._foreach_addcmul.Tensor(*lists, r(2))
    A._foreach_addcdiv.Tensor(*lists, r(2))
    A._foreach_add_.Tensor(lists[0], torch.tensor(2.0))
    A._foreach_addcmul_.Tensor(*lists, r(2))
    A._foreach_addcdiv_.Tensor(*lists, r(2))
    A._foreach_pow.ScalarAndTensor(2.0, lists[0])
    A._foreach_powsum.Scalar(lists[0], 2)
    A._foreach_copy_(lists[0], lists[1])
    A.split_with_sizes_copy.out(r(5, 2), [2, 3], out=[r(2, 2), r(3, 2)])


@call
def fused_optimizers() -> None:
    optimizers = torch.optim
    for optimizer in (optimizers.Adam, optimizers.AdamW, optimizers.SGD, optimizers.Adagrad):
        for rate in (0.1, torch.tensor(0.1)):
            weights = [leaf(3, 2), leaf(4)]
            trained = optimizer(weights, lr=rate, fused=True)
            for _ in range(2):
                trained.zero_grad()
                for weight in weights:
                    backward(weight)
                trained.step()


@call
def jagged() -> None:
    offsets = [torch.tensor([0, 2, 5])]
    A._jagged_to_padded_dense_forward(r(5, 3), offsets, [4], 0.5)
    A._padded_dense_to_jagged_forward(r(2, 4, 3), offsets, 5)


@call
def transformers_in_inference() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.no_grad():
        x = r(2, 5, 8)
        layer(x)
        attention(x, x, x)
        A._transform_bias_rescale_qkv(r(2, 5, 24), r(24), 2)
        mask = torch.zeros(2, 5, dtype=torch.bool)
        mask[0, 3:] = True
        soft = A._masked_softmax(r(2, 2, 5, 5), mask, 3, 1)
        A._masked_softmax_backward(
            r(2, 2, 5, 5), soft, mask.view(2, 1, 1, 5).expand(2, 2, 5, 5).contiguous(), 3
        )


@call
def convolutions_without_cudnn() -> None:
    x2, w2, x3, w3 = r(1, 2, 6, 6), r(3, 2, 3, 3), r(1, 2, 5, 5, 5), r(3, 2, 3, 3, 3)
    A._convolution(
        x2, w2, r(3), [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, False, False
    )
    A._slow_conv2d_forward(x2, w2, [3, 3], r(3), [1, 1], [0, 0])
    gradient = r(1, 3, 4, 4)
    mask = [True, True, True]
    A._slow_conv2d_backward.output_mask(gradient, x2, w2, [3, 3], [1, 1], [0, 0], mask)
    A._slow_conv2d_backward.grad_input(
        gradient,
        x2,
        w2,
        [3, 3],
        [1, 1],
        [0, 0],
        grad_input=r(1, 2, 6, 6),
        grad_weight=r(3, 2, 3, 3),
        grad_bias=r(3),
    )
    A.slow_conv_dilated2d(x2, w2, [3, 3], r(3), [1, 1], [0, 0], [2, 2])
    A.slow_conv_dilated3d(x3, w3, [3, 3, 3], r(3), [1, 1, 1], [0, 0, 0], [2, 2, 2])
    ones2, zeros2 = [1, 1], [0, 0]
    A.slow_conv_transpose2d(x2, r(2, 3, 3, 3), [3, 3], r(3), ones2, zeros2, zeros2, ones2)
    ones3, zeros3 = [1, 1, 1], [0, 0, 0]
    A.slow_conv_transpose3d(x3, r(2, 3, 3, 3, 3), [3, 3, 3], r(3), ones3, zeros3, zeros3, ones3)


@call
def sizes_in_three_dimensions() -> None:
    for mode in ("nearest", "nearest-exact"):
        backward(F.interpolate(leaf(1, 2, 3, 3, 3), scale_factor=2, mode=mode))
    for mode in ("reflect", "replicate"):
        backward(F.pad(leaf(1, 2, 3, 3, 3), (1, 1, 1, 1, 1, 1), mode=mode))
    backward(F.interpolate(leaf(1, 2, 8, 8), scale_factor=0.5, mode="bicubic", antialias=True))
    A.adaptive_avg_pool2d.out(r(1, 2, 5, 5), [2, 2], out=r(1, 2, 2, 2))
    A.adaptive_avg_pool3d.out(r(1, 2, 5, 5, 5), [2, 2, 2], out=r(1, 2, 2, 2, 2))
    A.adaptive_avg_pool3d_backward.grad_input(
        r(1, 2, 2, 2, 2), r(1, 2, 5, 5, 5), grad_input=r(1, 2, 5, 5, 5)
    )


@call
def what_is_new_in_2_15() -> None:
    if not hasattr(A, "_philox_key_split"):
        return
    key = torch.tensor([1, 2], dtype=torch.uint64)
    A._philox_key_split(key, 3)
    A._philox_key_fold_in(key, 3)
    A._philox_key_fold_in.Tensor(key, torch.tensor(3, dtype=torch.uint64))
    A._philox_uniform_(r(5), key)
    A._philox_normal_(r(5), key, 2.0, 3.0)
    A._philox_randint_(integers(9, 5), key, 2, 9)
    eighths, one = [r(16, 16).to(torch.float8_e4m3fn) for _ in range(2)], torch.ones(())
    scales = ([one], [0], [0])  # one for the whole tensor, nothing swizzled
    A._scaled_mm_v2(eighths[0], eighths[1].t(), *scales, *scales, None, torch.bfloat16)


@call
def weight_norm() -> None:
    backward(torch._weight_norm(leaf(4, 3), leaf(4, 1), 0))


@call
def numbers_as_first_argument() -> None:
    edges = torch.tensor([1.0, 2.0, 3.0])
    torch.bucketize(2.5, edges)
    torch.searchsorted(edges, 2.5)
    torch.isin(2.0, edges)
    torch.isin(edges, 2.0)
    torch.remainder(5, edges)


@call
def overloads() -> None:
    A.embedding_renorm_(r(9, 4), integers(9, 3), 1.0, 2.0)
    A.eye.out(3, out=r(3, 3))
    A.range.out(0, 4, 1, out=r(5))
    r(4).floor_divide_(r(4))
    r(4).abs().pow_(r(4))
    A.scatter.reduce(r(4, 9), 1, integers(9, 4, 1), r(4, 1), reduce="add")
    A.scatter.value_reduce(r(4, 9), 1, integers(9, 4, 1), 2.0, reduce="add")
    x, dx = r(4, 6), r(4, 6)
    A.glu_jvp(F.glu(x, 1), x, dx, 1)
    A.glu_backward_jvp(r(4, 6), r(4, 3), x, r(4, 3), dx, 1)
    A.unique_dim(integers(2, 6, 2), 0, True, True, True)
    A.unique_dim_consecutive(integers(2, 6, 2), 0, True, True)
