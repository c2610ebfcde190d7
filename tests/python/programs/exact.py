# SPDX-License-Identifier: Apache-2.0
"""What the programs in this folder share: exact results, to be compared bit for bit.

Losses are hexadecimal floats; parameters and optimizer state are SHA-256 hashes. An ordinary op
copies bytes out (`copy_` into NumPy's memory), so that reading a result is announced like any other
access.

PROGRAM_DEVICE=cuda runs a program on a GPU: new tensors are made there, and those that `wide` sizes
are large enough to leave it (nothing below 2 MiB does). With PROGRAM_EMULATED=1 that GPU computes
on the processor: `wide` makes parameters just large enough to leave, and `few` reduces pure
computing, like the tokens of a batch.
"""

import hashlib
import json
import os
import sys

import numpy as np
import torch

DEVICE = os.environ.get("PROGRAM_DEVICE", "cpu")
IS_EMULATED = os.environ.get("PROGRAM_EMULATED") == "1"
# The least widths of a model at which its float32 matrices have the 2 MiB that a tensor needs to
# leave a GPU: matrices of width x 2 width, and square ones.
LEAST_OF_OBLONG, LEAST_OF_SQUARE = 512, 725


def use_device():
    """Makes this thread's new tensors on the device. Importing this module calls it once."""
    if DEVICE != "cpu":
        torch.set_default_device(DEVICE)


if DEVICE != "cpu":
    # Ops without a deterministic variant only warn: the tests first compare two stock runs.
    torch.use_deterministic_algorithms(True, warn_only=True)
    use_device()


# PyTorch's functions from oneMKL's vector mathematics, which chooses a kernel at the first call of
# each. In oneMKL 2024.2 that is a race: if two threads of an op are first at once, one may compute
# its part with a less exact kernel (pytorch issue 188792). A single element needs one thread.
_OF_ONE_MKL = (
    "acos asin atan cos cosh erf erfc erfinv exp expm1 lgamma log log10 log1p log2 rsqrt sin sinh "
    "sqrt tan tanh"
)
for _name in _OF_ONE_MKL.split():
    for _dtype in (torch.float32, torch.float64):
        getattr(torch, _name)(torch.full((1,), 0.5, dtype=_dtype, device="cpu"))


def wide(width, least=1024, emulated=LEAST_OF_OBLONG):
    """The width, or on a GPU its first multiple that is at least `least`.

    On an emulated GPU, `emulated` is enough.
    """
    if DEVICE == "cpu":
        return width
    least = min(least, emulated) if IS_EMULATED else least
    return width * -(-least // width)


def few(count, emulated):
    """The count, or on an emulated GPU `emulated`."""
    return emulated if IS_EMULATED else count


def to_bytes(tensor):
    """A NumPy array of the tensor's bytes in logical order, owned by NumPy."""
    tensor = tensor.detach()
    copy = np.empty(tensor.numel() * tensor.element_size(), dtype=np.uint8)
    if copy.size:
        torch.from_numpy(copy).view(tensor.dtype).copy_(tensor.reshape(-1))
    return copy


def sha256(tensor):
    header = f"{tensor.dtype} {tuple(tensor.shape)} "
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        return header + sha256(tensor.indices()) + sha256(tensor.values())
    return header + hashlib.sha256(to_bytes(tensor)).hexdigest()


class Results:
    """Collects exact values by name; write() puts them into the file named by argv[1]."""

    def __init__(self):
        self.values = {}

    def scalar(self, name, value):
        """Appends a number (a tensor of one element, or a float) to the list `name`."""
        value = value.item() if isinstance(value, torch.Tensor) else value
        self.values.setdefault(name, []).append(float(value).hex())

    def tensor(self, name, value):
        self.values[name] = sha256(value)

    def tokens(self, name, value):
        """Adds a tensor of token numbers as numbers: few, and readable if they differ."""
        shape = tuple(value.shape)
        self.values[name] = to_bytes(value).view(np.int64).reshape(shape).tolist()

    def module(self, name, module):
        for key, value in module.state_dict().items():
            if isinstance(value, torch.Tensor):
                self.tensor(f"{name}.{key}", value)

    def optimizer(self, name, optimizer):
        for index, state in optimizer.state_dict()["state"].items():
            self._nested(f"{name}.{index}", state)

    def _nested(self, name, value):
        """Adds tensors and numbers in nested dictionaries and lists (such as LBFGS's state)."""
        if isinstance(value, torch.Tensor):
            self.tensor(name, value)
        elif isinstance(value, dict):
            for key, inner in value.items():
                self._nested(f"{name}.{key}", inner)
        elif isinstance(value, (list, tuple)):
            for index, inner in enumerate(value):
                self._nested(f"{name}.{index}", inner)
        elif isinstance(value, (int, float)):
            self.values[name] = float(value).hex()

    def write(self):
        if not self.values:
            raise RuntimeError("a program without results compares nothing")
        with open(sys.argv[1], "w") as file:
            json.dump(self.values, file, indent=1)
