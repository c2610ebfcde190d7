# SPDX-License-Identifier: Apache-2.0
"""Calls of the emulated GPU's CUDA runtime by ctypes, and the numbers of its errors."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import byref, c_size_t, c_void_p
from typing import Any

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
INVALID_PITCH = 12
INVALID_DIRECTION = 21
INVALID_DEVICE = 101
INVALID_HANDLE = 400
ILLEGAL_STATE = 401
NOT_READY = 600
NOT_SUPPORTED = 801
(
    UNSUPPORTED,
    INVALIDATED,
    MERGE,
    UNMATCHED,
    UNJOINED,
    ISOLATION,
    IMPLICIT,
    CAPTURED,
    WRONG_THREAD,
) = range(900, 909)
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
TO_DEVICE, TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS = range(1, 5)
NON_BLOCKING = 1
HostFunction = ctypes.CFUNCTYPE(None, c_void_p)
BYTES = 4096


def cuda(name: str, *arguments: Any) -> int:
    return int(getattr(ctypes.CDLL("libcudart.so.13"), name)(*arguments))


def done(name: str, *arguments: Any) -> None:
    assert cuda(name, *arguments) == 0, name


def stream(flags: int = NON_BLOCKING) -> c_void_p:
    made = c_void_p()
    done("cudaStreamCreateWithFlags", byref(made), flags)
    return made


def event() -> c_void_p:
    made = c_void_p()
    done("cudaEventCreate", byref(made))
    return made


def pinned() -> c_void_p:
    made = c_void_p()
    done("cudaMallocHost", byref(made), c_size_t(BYTES))
    return made


def device_memory() -> c_void_p:
    made = c_void_p()
    done("cudaMalloc", byref(made), c_size_t(BYTES))
    return made


def bytes_of(memory: c_void_p) -> bytes:
    host = ctypes.create_string_buffer(BYTES)
    done("cudaMemcpy", host, memory, c_size_t(BYTES), BY_ADDRESS)
    return host.raw


def memset(memory: c_void_p, value: int, within: c_void_p) -> int:
    return cuda("cudaMemsetAsync", memory, value, c_size_t(BYTES), within)


def in_other_thread(call: Callable[[], int]) -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]
