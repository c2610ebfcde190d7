# SPDX-License-Identifier: Apache-2.0
"""check_layers on made-up sources: what it finds and what it accepts."""

from pathlib import PurePosixPath

import pytest

from check_layers import LAYERS, ROOMS, check_layers


def problems(path: str, text: str) -> list[str]:
    return [str(problem) for problem in check_layers(PurePosixPath(path), text)]


@pytest.mark.parametrize("own", LAYERS)
@pytest.mark.parametrize("other", LAYERS)
def test_a_layer_includes_itself_and_what_stands_below(own: str, other: str) -> None:
    found = problems(f"allocator/{own}/a.cpp", f'#include "{other}/b.h"\n')
    if LAYERS.index(other) <= LAYERS.index(own):
        assert found == []
    else:
        assert found == [
            f"allocator/{own}/a.cpp:1: layer {own} includes {other}/b.h of layer {other}, which "
            "stands above it"
        ]


@pytest.mark.parametrize(
    ("include", "owner"),
    [
        ("<ATen/ATen.h>", "torch"),
        ("<c10/core/Allocator.h>", "torch"),
        ("<torch/library.h>", "torch"),
        ("<Python.h>", "Python"),
        ("<pybind11/pybind11.h>", "Python"),
        ("<cuda.h>", "CUDA"),
        ("<cuda_runtime_api.h>", "CUDA"),
    ],
)
def test_the_core_includes_no_foreign_header(include: str, owner: str) -> None:
    found = problems("allocator/abi/a.cpp", f"\n  #  include {include}\n")
    assert len(found) == 1
    assert found[0].startswith("allocator/abi/a.cpp:2:")
    assert owner in found[0]


def test_the_cuda_platform_alone_includes_the_header_of_the_driver() -> None:
    assert problems("allocator/platform/cuda/a.h", "#include <cuda.h>\n") == []
    assert "CUDA" in problems("allocator/platform/cuda/a.h", "#include <cuda_runtime_api.h>\n")[0]
    assert "CUDA" in problems("allocator/platform/a.h", "#include <cuda.h>\n")[0]


def test_the_core_names_headers_from_its_root() -> None:
    assert "name it from allocator/" in problems("allocator/base/a.cpp", '#include "b.h"')[0]


def test_a_core_source_stands_in_a_layer() -> None:
    assert "stands in no layer" in problems("allocator/a.cpp", "")[0]
    assert "stands in no layer" in problems("allocator/other/a.cpp", "")[0]


def test_comments_and_system_headers_pass() -> None:
    text = (
        '// #include "engine/engine.h"\n/* #include <torch/all.h>\n#include "abi/tencache.h" */\n'
        '#include <vector>\n#include <sys/mman.h>\n#include "base/status.h"  // "engine/x.h"\n'
    )
    assert problems("allocator/base/a.cpp", text) == []


def test_the_shim_reaches_the_core_through_its_abi() -> None:
    text = '#include "abi/tencache.h"\n#include "abi/tencache_gpu.h"\n'
    text += '#include "abi/tencache_pinned.h"\n#include "gate_hooks.h"\n'
    text += "#include <ATen/ATen.h>\n"
    assert problems("shim/a.cpp", text) == []
    assert "alone" in problems("shim/a.cpp", '#include "base/log.h"')[0]
    assert "serves every Python" in problems("shim/a.cpp", "#include <Python.h>")[0]


def test_the_guard_knows_one_header_of_the_core() -> None:
    text = '#include "abi/tencache_guard.h"\n#include "hooks.h"\n#include <cuda.h>\n'
    assert problems("guard/a.cpp", text) == []
    assert "nothing of the core" in problems("guard/a.cpp", '#include "base/log.h"')[0]
    assert "torch" in problems("guard/a.cpp", "#include <torch/all.h>")[0]
    assert "CUDA" in problems("guard/a.cpp", "#include <cuda_runtime_api.h>")[0]


def test_the_preload_library_knows_one_header_of_the_core() -> None:
    text = '#include "abi/tencache.h"\n#include "python.h"\n#include <dlfcn.h>\n'
    assert problems("preload/a.cpp", text) == []
    assert "nothing of the core" in problems("preload/a.cpp", '#include "base/log.h"')[0]
    assert "torch" in problems("preload/a.cpp", "#include <torch/all.h>")[0]
    assert "Python" in problems("preload/a.cpp", "#include <Python.h>")[0]


def test_suites_of_the_core_do_without_torch() -> None:
    assert problems("tests/allocator/a_test.cpp", '#include "engine/engine.h"') == []
    assert "torch" in problems("tests/allocator/a_test.cpp", "#include <torch/all.h>")[0]
    assert problems("tests/shim/a_test.cpp", "#include <torch/all.h>") == []
    assert problems("tests/emulated_gpu/operators/a.cpp", "#include <ATen/ATen.h>") == []
    assert "torch" in problems("tests/emulated_gpu/driver/a.cpp", "#include <ATen/ATen.h>")[0]
    assert "torch" in problems("benchmarks/a.cpp", "#include <c10/util/Half.h>")[0]


@pytest.mark.parametrize("own", [*ROOMS, ""])
@pytest.mark.parametrize("other", [*ROOMS, ""])
def test_a_room_of_the_engine_includes_what_is_below_it(own: str, other: str) -> None:
    path = "/".join(part for part in ("allocator/engine", own, "a.cpp") if part)
    included = "/".join(part for part in ("engine", other, "b.h") if part)
    found = problems(path, f'#include "{included}"\n')
    if own == "" or other in ROOMS[own]:
        assert found == []
    else:
        assert found == [f"{path}:1: room engine/{own} includes {included}, which is not below it"]


def test_planning_and_the_gate_know_the_parts_of_their_engine() -> None:
    assert problems("allocator/engine/plan/a.h", '#include "engine/parts.h"\n') == []
    assert problems("allocator/engine/gate/a.h", '#include "engine/parts.h"\n') == []
    assert "below" in problems("allocator/engine/move/a.h", '#include "engine/parts.h"\n')[0]


def test_a_source_in_a_folder_of_the_engine_stands_in_a_room() -> None:
    found = problems("allocator/engine/other/a.h", '#include "engine/engine.h"\n')
    assert "stands in no room" in found[0]
