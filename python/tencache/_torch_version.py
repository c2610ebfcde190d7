# SPDX-License-Identifier: Apache-2.0
"""Which of the package's libraries fit a torch: by its minor version, and for GPUs its CUDA major.

Within a minor version PyTorch keeps the layout of its C++ classes, so patch releases and local tags
fit (2.11.1, 2.11.0+cpu); the library itself tests the layouts before it installs anything. A wheel
has a library for every known minor version. A build from source has one, for the torch it was built
against (`_build_info.py` lists what is there).

Invariants: (1) nothing here imports torch; (2) a refusal names the version that was found, what is
supported, and the remedy. Threads: any.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The command that builds tencache against the installed torch. shim/layout_refusal.cpp says the
# same. CMake names system packages that are missing.
REBUILD_COMMAND = (
    "pip install -r requirements/build.txt && "
    "pip install --no-build-isolation --force-reinstall --no-deps ."
)


@dataclass(frozen=True)
class TorchVersion:
    """A torch: its `__version__`, "2.11.0+cu130", and its CUDA version, "13.0", or None."""

    text: str
    cuda: str | None

    @property
    def minor(self) -> str:
        """For example "2.11"; the whole text if it does not begin with two numbers."""
        found = re.match(r"\d+\.\d+", self.text)
        return found.group() if found else self.text

    @property
    def cuda_key(self) -> str:
        """Names the library for GPU memory, "2.11-cu13"."""
        return f"{self.minor}-cu{(self.cuda or '').split('.')[0]}"


def running(torch: Any) -> TorchVersion:
    """The version of an imported torch."""
    return TorchVersion(str(torch.__version__), torch.version.cuda)


def installed() -> TorchVersion | None:
    """The torch that `import torch` would load, or None; imports nothing.

    Executes only the file torch/version.py: the package's metadata lacks the local part of the
    version ("+cu130") that tells builds apart.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    version_file = Path(spec.submodule_search_locations[0]) / "version.py"
    try:
        namespace: dict[str, Any] = {}
        exec(compile(version_file.read_bytes(), str(version_file), "exec"), namespace)
    except OSError:
        return None
    version, cuda = namespace.get("__version__"), namespace.get("cuda")
    if version is None:
        return None
    return TorchVersion(str(version), None if cuda is None else str(cuda))


def supported() -> list[str]:
    """The minor versions of torch that this build has libraries for, oldest first."""
    from tencache._build_info import TORCH_SHIMS

    return sorted(TORCH_SHIMS, key=_numbers)


def why_no_shim(torch: TorchVersion) -> str | None:
    """The message for a user for whose torch there is no library here; None if there is one."""
    from tencache._build_info import KNOWN_TORCH, TORCH_SHIMS

    if torch.minor in TORCH_SHIMS:
        return None
    oldest, newest = KNOWN_TORCH
    here = supported()
    text = f"This tencache supports torch {_listed(here)}, but torch {torch.text} is installed here"
    install = f"install a torch that is supported: `pip install 'torch=={here[-1]}.*'`"
    if _numbers(torch.minor) < _numbers(oldest):
        return f"{text}, which is too old. Please {install}."
    if _numbers(torch.minor) > _numbers(newest):
        return f"{text}, which is too new. Either {install}; or look for a newer tencache."
    # This tencache was built from source against another torch.
    return (
        f"{text}: it was built from source against torch {_listed(list(TORCH_SHIMS.values()))} "
        f"alone. Either build it against this torch, in tencache's source folder: "
        f"`{REBUILD_COMMAND}`; or install tencache's wheel, which supports torch {oldest} to "
        f"{newest}; or {install}."
    )


def why_no_cuda_shim(torch: TorchVersion) -> str | None:
    """Why there is no library for the GPU memory of that torch, as a clause; None if there is.

    The clause presumes a library for that torch's other memory (why_no_shim).
    """
    from tencache._build_info import CUDA_SHIMS

    if torch.cuda is None:
        return f"torch {torch.text} is built without CUDA"
    if torch.cuda_key in CUDA_SHIMS:
        return None
    majors = [key.split("-cu")[1] for key in CUDA_SHIMS if key.startswith(f"{torch.minor}-cu")]
    if not majors:
        return (
            "tencache was built without the library for GPU memory, because CUDA's headers or "
            f"libraries were missing beside torch; build it again: `{REBUILD_COMMAND}`"
        )
    return (
        f"torch {torch.text} is built for CUDA {torch.cuda}, and this tencache serves torch "
        f"{torch.minor} with CUDA {_listed(majors)} only. Either install that build of torch "
        f"(PyPI's: `pip install --force-reinstall 'torch=={torch.minor}.*'`), or build tencache "
        f"against this one, in its source folder: `{REBUILD_COMMAND}`"
    )


def _numbers(minor: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", minor))


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
