# SPDX-License-Identifier: Apache-2.0
"""Puts the emulated operators into torch.

`import torch` calls `autoload` (entry point of group torch.backends) if tests/emulated_gpu/run has
put this folder on the path.
"""

import os


def autoload() -> None:
    """Loads the operators.

    Turns off whatever would choose kernels of CUDA's libraries behind the dispatcher's back.
    """
    import torch

    torch.ops.load_library(os.environ["EMULATED_GPU_OPERATORS"])
    torch._C._set_cudnn_enabled(False)
    torch._C._set_sdp_use_flash(False)
    torch._C._set_sdp_use_mem_efficient(False)
    torch._C._set_sdp_use_cudnn(False)
    torch._C._set_sdp_use_math(True)
