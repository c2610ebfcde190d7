# SPDX-License-Identifier: Apache-2.0
"""How long OpenMP's threads spin while they wait for each other.

On a CPU, PyTorch computes with one OpenMP thread per core. A thread of tencache that moves tensors
takes a core for a moment, and the other compute threads must wait for the one that lost it. GNU's
OpenMP, which PyTorch's wheels bring, makes them spin for some milliseconds. While they spin no core
is idle, so the kernel cannot give one to the thread that lost its own. If they sleep soon, the
kernel does (docs/cpu.md).

OpenMP reads its variables once, when torch loads it. This module imports no torch. Threads: the
caller's.
"""

from __future__ import annotations

from collections.abc import MutableMapping

SPINS = "GOMP_SPINCOUNT"
_POLICY = "OMP_WAIT_POLICY"
# A tenth of GNU's default. So few spins last about half a millisecond.
_FEW_SPINS = "30000"


def let_threads_sleep(environment: MutableMapping[str, str]) -> None:
    """Makes waiting threads sleep soon, unless the environment says how they wait."""
    if SPINS not in environment and _POLICY not in environment:
        environment[SPINS] = _FEW_SPINS
