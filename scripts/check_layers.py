#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that each layer includes only what is below it.

    base < platform < tier < memory < learn < engine < abi          (allocator/)
    move < move/cpu, move/cuda;  move < plan, gate < what stands in engine/ itself

allocator/ includes no header of torch or Python. Only platform/cuda/ includes <cuda.h>, for its
types: nothing links the functions. shim/ includes no header of Python, and reaches the core only
through the headers of the core's C ABI: abi/tencache.h, abi/tencache_gpu.h and
abi/tencache_pinned.h. Of this project's headers guard/ includes only its own and
abi/tencache_guard.h, and preload/ only its own and abi/tencache.h; guard/ may include <cuda.h>,
too. Suites and benchmarks of the core may include every layer, and no header of torch or Python.

Usage: check_layers.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from repository import CPP_SUFFIXES, Problem, report, source_files, without_comments

LAYERS = ("base", "platform", "tier", "memory", "learn", "engine", "abi")
CORE_HEADERS = ("abi/tencache.h", "abi/tencache_gpu.h", "abi/tencache_pinned.h")
GUARD_HEADER = "abi/tencache_guard.h"
PRELOAD_HEADER = "abi/tencache.h"
CUDA_PLATFORM = PurePosixPath("allocator/platform/cuda")

# Each room of engine/ with the rooms it includes. plan and gate know each other, because they share
# the parts of one engine by reference. PARTS is the header with these references.
ROOMS = {
    "move": ("move",),
    "move/cpu": ("move", "move/cpu"),
    "move/cuda": ("move", "move/cuda"),
    "plan": ("move", "plan", "gate"),
    "gate": ("move", "plan", "gate"),
}
PARTS = "engine/parts.h"

_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*(?P<open>["<])(?P<path>[^">]+)[">]', re.MULTILINE
)
_TORCH = re.compile(r"(ATen|c10|caffe2|torch)/")
_PYTHON = re.compile(r"(Python\.h|pybind11/|python3)")
_CUDA = re.compile(r"(cuda[\w]*\.h|cuda/|cub/|thrust/|nccl\.h)")


def includes(text: str) -> Iterator[tuple[int, bool, str]]:
    """(line, whether in quotes, path) of each include outside comments."""
    code = without_comments(text, keep_strings=True)
    for match in _INCLUDE.finditer(code):
        yield code.count("\n", 0, match.start()) + 1, match["open"] == '"', match["path"]


def check_layers(path: PurePosixPath, text: str) -> Iterable[Problem]:
    """The forbidden includes of one file."""
    top = path.parts[0]
    rules = {
        "allocator": _core_problem,
        "shim": _shim_problem,
        "guard": _guard_problem,
        "preload": _preload_problem,
        "tests": _core_test_problem,
        "benchmarks": _core_test_problem,
    }
    if path.suffix not in CPP_SUFFIXES or top not in rules:
        return
    if top == "allocator" and (len(path.parts) < 3 or path.parts[1] not in LAYERS):
        yield Problem(str(path), 1, f"stands in no layer; move it into one of {', '.join(LAYERS)}")
        return
    for line, quoted, included in includes(text):
        problem = rules[top](path, quoted, included)
        if problem:
            yield Problem(str(path), line, problem)


def _foreign(included: str, *patterns: tuple[re.Pattern[str], str]) -> str | None:
    for pattern, owner in patterns:
        if pattern.match(included):
            return f"includes {included}, a header of {owner}, which the core does without"
    return None


def _core_problem(path: PurePosixPath, quoted: bool, included: str) -> str | None:
    if not quoted:
        if included == "cuda.h" and path.parent == CUDA_PLATFORM:
            return None
        return _foreign(included, (_TORCH, "torch"), (_PYTHON, "Python"), (_CUDA, "CUDA"))
    own, other = path.parts[1], included.split("/")[0]
    if other not in LAYERS:
        return f'includes "{included}"; name it from allocator/, as in "base/status.h"'
    if LAYERS.index(other) > LAYERS.index(own):
        return f"layer {own} includes {included} of layer {other}, which stands above it"
    return _room_problem(path, included) if (own, other) == ("engine", "engine") else None


def _room_problem(path: PurePosixPath, included: str) -> str | None:
    own = "/".join(path.parts[2:-1])
    other = "/".join(included.split("/")[1:-1])
    if own == "":
        return None
    if own not in ROOMS:
        return f"stands in no room of engine/; move it into one of {', '.join(ROOMS)}"
    if other in ROOMS[own] or (included == PARTS and "plan" in ROOMS[own]):
        return None
    return f"room engine/{own} includes {included}, which is not below it"


def _shim_problem(_path: PurePosixPath, quoted: bool, included: str) -> str | None:
    if _PYTHON.match(included):
        return (
            f"includes {included}; the shim holds C functions only, so that it serves every Python"
        )
    if quoted and included.split("/")[0] in LAYERS and included not in CORE_HEADERS:
        allowed = ", ".join(CORE_HEADERS)
        return f"includes {included}; the shim reaches the core through {allowed} alone"
    return None


def _guard_problem(_path: PurePosixPath, quoted: bool, included: str) -> str | None:
    if quoted and "/" in included and included != GUARD_HEADER:
        return f"includes {included}; the guard knows nothing of the core but {GUARD_HEADER}"
    if not quoted and included != "cuda.h":
        return _foreign(included, (_TORCH, "torch"), (_PYTHON, "Python"), (_CUDA, "CUDA"))
    return None


def _preload_problem(_path: PurePosixPath, quoted: bool, included: str) -> str | None:
    if not quoted:
        return _foreign(included, (_TORCH, "torch"), (_PYTHON, "Python"), (_CUDA, "CUDA"))
    if "/" in included and included != PRELOAD_HEADER:
        return f"includes {included}; preload/ knows nothing of the core but {PRELOAD_HEADER}"
    return None


def _core_test_problem(path: PurePosixPath, _quoted: bool, included: str) -> str | None:
    if path.parts[:2] in (("tests", "shim"), ("tests", "python")):
        return None
    if path.parts[:3] == ("tests", "emulated_gpu", "operators"):  # kernels of torch's operators
        return None
    return _foreign(included, (_TORCH, "torch"), (_PYTHON, "Python"))


if __name__ == "__main__":
    sys.exit(report([check_layers], source_files(CPP_SUFFIXES)))
