# SPDX-License-Identifier: Apache-2.0
"""tencache: train beyond the memory budget, with the same bits and no code change.

It is a caching allocator under an unmodified PyTorch. It keeps cold tensors in a spill file (those
of a GPU in host memory), and brings them back before an op uses them. There are four ways in, and
all of them end in `enable`:

* ``tencache run --device-memory 2GiB -- python train.py``
* ``TENCACHE=1 TENCACHE_DEVICE_MEMORY=2GiB python train.py``
* ``LD_PRELOAD=$(tencache preload) TENCACHE_DEVICE_MEMORY=2GiB python train.py``
* ``import tencache; tencache.enable(device_memory="2GiB")``

Importing this package imports no torch and starts nothing.
"""

from tencache._library import OptionError, TencacheError
from tencache._library import package_version as _package_version
from tencache._runtime import (
    allocator,
    empty_cache,
    enable,
    is_enabled,
    name_tensors,
    options,
    reset_peak_stats,
    stats,
)

__version__ = _package_version()

__all__ = [
    "OptionError",
    "TencacheError",
    "__version__",
    "allocator",
    "empty_cache",
    "enable",
    "is_enabled",
    "name_tensors",
    "options",
    "reset_peak_stats",
    "stats",
]
