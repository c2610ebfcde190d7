# SPDX-License-Identifier: Apache-2.0
"""Small calls of PyTorch's public functions: PyTorch's own samples (its op_db).

PyTorch's tests use them for all its functions. The samples come in a fixed order and with fixed
seeds. We take the first few of each function in float32, with gradients, and fewer in the other
types. One thread makes them.
"""

from __future__ import annotations

import itertools
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from operator_comparison import moved
from torch.utils._pytree import tree_flatten

# PyTorch's samples are beside its test classes, one of which inherits from expecttest's TestCase.
# The samples use nothing of that.
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]

from torch.testing._internal import common_methods_invocations as invocations  # noqa: E402

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64)
SAMPLES_OF_FLOAT = 8
SAMPLES_OF_OTHERS = 1
SAMPLES_OF_LISTS = 40  # with scalars, lists of scalars and tensors for the second argument


@dataclass(frozen=True)
class Sample:
    name: str
    dtype: torch.dtype
    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    has_gradient: bool

    def on(self, device: str) -> tuple[Any, list[torch.Tensor]]:
        """(results, gradients of those arguments that have one)"""
        args, kwargs = moved((self.args, self.kwargs), device)
        torch.manual_seed(3)
        results = self.function(*args, **kwargs)
        wanted = [
            t
            for t in tree_flatten(results)[0]
            if isinstance(t, torch.Tensor) and t.grad_fn is not None
        ]
        if not self.has_gradient or not wanted:
            return results, []
        leaves = [
            t
            for t in tree_flatten((args, kwargs))[0]
            if isinstance(t, torch.Tensor) and t.requires_grad
        ]
        weights = [torch.full_like(t, 0.5) for t in wanted]
        found = torch.autograd.grad(wanted, leaves, weights, allow_unused=True)
        return results, [gradient for gradient in found if gradient is not None]


def samples(is_left_out: Callable[[str], bool]) -> Iterator[Sample]:
    for info in invocations.op_db:
        if is_left_out(info.name):
            continue
        for dtype in TYPES:
            if dtype not in info.supported_dtypes("cpu") & info.supported_dtypes("cuda"):
                continue
            has_gradient = dtype == torch.float32 and info.supports_autograd
            torch.manual_seed(5)
            made = info.sample_inputs("cpu", dtype, requires_grad=has_gradient)
            count = SAMPLES_OF_FLOAT if dtype == torch.float32 else SAMPLES_OF_OTHERS
            for number, sample in enumerate(itertools.islice(made, count)):
                args, kwargs = (sample.input, *sample.args), sample.kwargs
                yield Sample(info.name, dtype, number, info.op, args, kwargs, has_gradient)


def samples_of_lists() -> Iterator[Sample]:
    """The samples of operators that take lists of tensors."""
    databases = (
        invocations.foreach_unary_op_db,
        invocations.foreach_binary_op_db,
        invocations.foreach_pointwise_op_db,
        invocations.foreach_reduce_op_db,
        invocations.foreach_other_op_db,
    )
    for info in itertools.chain(*databases):
        torch.manual_seed(5)
        made = info.sample_inputs(
            "cpu", torch.float32, num_input_tensors=[2], same_size=True, zero_size=False
        )
        for number, sample in enumerate(itertools.islice(made, SAMPLES_OF_LISTS)):
            kwargs = {
                name: value for name, value in sample.kwargs.items() if "fastpath" not in name
            }
            args = (sample.input, *sample.args)
            if any(isinstance(value, (bool, complex)) for value in tree_flatten(args)[0]):
                continue  # not every operator accepts them
            yield Sample(info.name, torch.float32, number, info.method_variant, args, kwargs, False)
