# SPDX-License-Identifier: Apache-2.0
"""Chooses a program's backend: `cuda` for the memory of GPUs, or `cpu` for tensors in DRAM.

The option `backend` decides. `auto` is `cuda` where torch sees a GPU that tencache can serve, else
`cpu`. A process has one backend: where GPU memory has a budget, tensors in DRAM are PyTorch's own.
Like torch itself, we look for GPUs through NVML if it is there: asking CUDA would initialise it,
and forked workers could not use it any more. This module imports no torch; the caller passes the
one that runs. Threads: any.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from tencache import _torch_version
from tencache._library import Core, TencacheError
from tencache._messages import say

AUTO, CPU, CUDA = "auto", "cpu", "cuda"


def resolve(text: str, torch: Any) -> str:
    """`cpu` or `cuda` for the option's text.

    Raises TencacheError for cuda if no GPU can be used. For auto, a line on stderr says so if there
    is a GPU that tencache cannot serve: the budget is not that of its memory then.
    """
    if text == CPU:
        return CPU
    reason = why_no_cuda(torch)
    if reason is None:
        return CUDA
    if text == CUDA:
        raise TencacheError(no_cuda_message(reason))
    if _visible_gpus(torch) > 0:
        say(
            f"warning: the budget is that of tensors in DRAM, although there is a GPU: {reason}. "
            "Use --backend cpu if that is what you want."
        )
    return CPU


def settle(library: Core) -> None:
    """Sets the option backend to cuda where `auto` means that, for a command that imports no torch.

    Raises TencacheError if cuda is asked for and no GPU can be used.
    """
    backend = library.option_text("backend")
    if backend == CPU:
        return
    reason = why_not_served(library.doctor()["gpu"], _torch_version.installed())
    if reason is None:
        library.set_option("backend", CUDA)  # auto means cuda here
    elif backend == CUDA:
        raise TencacheError(no_cuda_message(reason))


def why_no_cuda(torch: Any) -> str | None:
    """Why this torch can use no GPU under tencache here, as a clause; None if it can."""
    reason = _torch_version.why_no_cuda_shim(_torch_version.running(torch))
    if reason is not None:
        return reason
    count = _visible_gpus(torch)
    if count < 0:
        # Without NVML only CUDA itself can tell; it would be asked in a moment anyway.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            count = int(torch.cuda.device_count())
    if count > 0:
        return None
    return "torch sees no GPU (no NVIDIA driver, or CUDA_VISIBLE_DEVICES hides them)"


def no_cuda_message(reason: str) -> str:
    """The error for a program that asked for cuda where no GPU can be used."""
    return (
        f"backend=cuda was asked for, but no GPU can be used here: {reason.rstrip('.')}. `tencache "
        "doctor` shows what was found. Leave the option backend at auto, or set it to cpu "
        '(--backend cpu, backend="cpu"), to keep tensors in DRAM under a budget.'
    )


def why_not_served(gpu: Mapping[str, Any], torch: _torch_version.TorchVersion | None) -> str | None:
    """Why tencache cannot serve the GPUs that the core has found, as a clause; None if it can.

    `torch` is the installed one.
    """
    if not gpu["devices"]:
        return str(gpu["reason"])
    if torch is None:
        return "torch is not installed"
    return _torch_version.why_no_cuda_shim(torch)


def _visible_gpus(torch: Any) -> int:
    """How many GPUs torch will see, without calling CUDA; below 0 if that cannot be told."""
    if torch.version.cuda is None:
        return 0
    count = getattr(torch.cuda, "_device_count_nvml", None)
    return -1 if count is None else int(count())
