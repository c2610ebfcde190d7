# SPDX-License-Identifier: Apache-2.0
"""Helpers for test programs under tencache: tensors with known bytes, made cold on demand.

Import this module first: it enables tencache (with TENCACHE=1 in the environment `import torch`
does) and looks up the two functions of the C ABI that exist for tests. The truth is a NumPy array:
its memory is not tencache's, so it holds what stock PyTorch would have held.
"""

import contextlib
import ctypes
from pathlib import Path

import numpy as np
import torch

import tencache

assert tencache.is_enabled(), "run this with TENCACHE=1"

_library = ctypes.CDLL(str(Path(tencache.__file__).parent / "libtencache.so"))
_library.tencache_evict_all.restype = ctypes.c_uint64
_library.tencache_is_cold.argtypes = [ctypes.c_void_p]

COUNT = 300_000  # floats: 1.2 MB, 293 pages, the last one partly used


def make(seed, count=COUNT):
    """A tensor that an op has used (so that it may go cold), and its values in NumPy."""
    truth = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    tensor = torch.empty(count)
    tensor.copy_(torch.from_numpy(truth))
    return tensor, truth


def is_cold(tensor):
    """Whether the tensor is cold; touches no byte. Fails if the tensor is on no extent."""
    answer = _library.tencache_is_cold(tensor.data_ptr())
    assert answer >= 0, "the tensor is on no extent"
    return answer == 1


def chill(*tensors):
    """Brings these tensors back, evicts everything, and checks that they are cold now.

    So each call begins a new cold spell; accesses are counted once a spell.
    """
    for tensor in tensors:
        tensor.detach().reshape(-1)[:1].clone()
        assert not is_cold(tensor), "an op has just used the tensor"
    _library.tencache_evict_all()
    for tensor in tensors:
        assert is_cold(tensor), "the tensor should be cold now"


def same(tensor, truth):
    """Whether an op sees exactly these bytes."""
    copy = np.empty_like(truth)
    torch.from_numpy(copy).copy_(tensor)
    return copy.tobytes() == truth.tobytes()


def unannounced():
    counts = tencache.stats()["unannounced"]
    return counts["reads"], counts["writes"]


@contextlib.contextmanager
def counted(reads, writes):
    """Checks how much the counters of unannounced accesses rise inside."""
    before = unannounced()
    yield
    after = unannounced()
    rise = tuple(b - a for a, b in zip(before, after, strict=True))
    assert rise == (reads, writes), f"{rise} (reads, writes) were counted, not {(reads, writes)}"
