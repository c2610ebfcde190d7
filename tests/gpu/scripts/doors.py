# SPDX-License-Identifier: Apache-2.0
"""Trains low-rank adapters (tests/python/programs/lora.py) on tencache's memory.

The variable DOOR names how tencache comes in: `change`, PyTorch's change_current_allocator;
`pluggable`, C symbols and no Python. Otherwise whatever started the script has enabled it, or
nothing has.
"""

import json
import os

import lora
import torch


def open_door(door):
    if door == "change":
        import tencache

        torch.cuda.memory.change_current_allocator(tencache.allocator())
    elif door == "pluggable":
        from tencache import _library, _torch_version

        path = _library.cuda_shim_path(_torch_version.running(torch))
        allocator = torch.cuda.memory.CUDAPluggableAllocator(
            str(path), "tencache_cuda_malloc", "tencache_cuda_free"
        )
        torch.cuda.memory.change_current_allocator(allocator)


def main():
    door = os.environ.get("DOOR", "")
    open_door(door)
    lora.main()
    if door == "pluggable":
        from tencache import _library

        with open(os.environ["TENCACHE_STATS"], "w") as file:
            json.dump(_library.core().stats(), file)


if __name__ == "__main__":
    main()
