# SPDX-License-Identifier: Apache-2.0
"""The clock of the emulated device: how long kernels take, and how a stream spent its time.

With EMULATED_GPU_DURATIONS each kernel takes the time that the file gives it, however long the
processor works on it, and torch.cuda.Event shows times of that clock. They hold if nothing was
late, and are as exact as `lag_s` is short. Threads: any.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


@dataclass(frozen=True)
class StreamTimes:
    """Times from the first kernel since the reset to the last, in seconds of the device."""

    kernels: int
    busy_s: float
    """Kernels ran."""
    stalled_s: float
    """A kernel was queued, but an event, a value or a copy stood before it."""
    starved_s: float
    """No kernel was queued: the program was behind."""


class _Times(ctypes.Structure):
    _fields_ = (
        ("kernels", ctypes.c_uint64),
        ("busy_s", ctypes.c_double),
        ("stalled_s", ctypes.c_double),
        ("starved_s", ctypes.c_double),
    )


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def times(stream: int = 0) -> StreamTimes:
    """The times of a stream, by its `torch.cuda.Stream.cuda_stream`. Wait for the stream first."""
    found = _Times()
    result = _driver().emulated_gpu_times(ctypes.c_void_p(stream), ctypes.byref(found))
    if result != 0:
        raise RuntimeError(f"there are no times before CUDA is started (error {result})")
    return StreamTimes(found.kernels, found.busy_s, found.stalled_s, found.starved_s)


def late() -> int:
    """How many kernels and copies since the reset took the processor longer than their given time.

    If there are any, the times are void.
    """
    count = _driver().emulated_gpu_late
    count.restype = ctypes.c_uint64
    return int(count())


def lag_s() -> float:
    """How long, at most since the reset, the end of a kernel or copy came after it was due.

    That is how long the machine let its thread wait. The stream makes up for it. But work that
    waits for the device's end, as tencache does when it plans the next copy, starts that much
    later.
    """
    longest = _driver().emulated_gpu_lag_s
    longest.restype = ctypes.c_double
    return float(longest())


def reset() -> None:
    """Makes all streams count anew, from their next kernels on. Wait for the device first."""
    _driver().emulated_gpu_reset_times()


def set_duration(name: str, launch_s: float, bytes_per_s: float = 0) -> None:
    """Sets how long kernels of that name take for each launch, and for each byte that they touch.

    Names are those of a line of EMULATED_GPU_DURATIONS.
    """
    set_one = _driver().emulated_gpu_set_duration
    set_one(name.encode(), ctypes.c_double(launch_s), ctypes.c_double(bytes_per_s))
