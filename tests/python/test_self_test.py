# SPDX-License-Identifier: Apache-2.0
"""The shim's self-test: a torch whose layouts differ is refused before anything is installed.

Two kinds of differences are made. Libraries of tests/shim are the self-test compiled against
headers that differ from the loaded torch (`scripts/dev.py` builds them beside the package). And
preloaded functions answer in the place of libtorch's own, for the installed library.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tencache._torch_version import running

ROOT = Path(__file__).resolve().parents[2]
MINOR = running(torch).minor
DOCTORED = ROOT / "build" / f"torch-{MINOR}" / "tests" / "shim"

# What the installed library asks libtorch, answered wrongly.
ANSWERS = {
    "version": (
        "uint64_t aoti_torch_abi_version() { return 2ull << 56 | 10ull << 48 | 3ull << 40; }",
        ("says that it is 2.10.3", "libtorch itself says that it is torch 2.10.3"),
    ),
    "address": (
        "int aoti_torch_get_data_ptr(void*, void** address) { *address = nullptr; return 0; }",
        ("members of c10::StorageImpl lie elsewhere",),
    ),
    "elements": (
        "int aoti_torch_get_numel(void*, int64_t* count) { *count = 7; return 0; }",
        ("members of c10::TensorImpl lie elsewhere",),
    ),
    "event": (
        "size_t inputs(const void*) asm("
        '"_ZNK2at14RecordFunction10num_inputsEv"); size_t inputs(const void*) { return 9; }',
        ("members of at::RecordFunction lie elsewhere",),
    ),
    "refusal": (
        "int aoti_torch_create_tensor_from_blob(void*, int64_t, const int64_t*, const int64_t*, "
        "int64_t, int32_t, int32_t, int32_t, void**) { return 1; }",
        ("libtorch refuses to make a tensor",),
    ),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_a_libtorch_that_tells_another_layout_is_refused(
    run_python: Callable[..., object], tmp_path: Path, what: str
) -> None:
    code, expected = ANSWERS[what]
    source = tmp_path / "answer.cpp"
    source.write_text(
        f'#include <cstddef>\n#include <cstdint>\nextern "C" {{\n{code}\n}}\n', encoding="utf-8"
    )
    library = tmp_path / "answer.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    run_python(
        f"""
        import torch, tencache
        from tencache._library import shim
        from tencache._torch_version import REBUILD_COMMAND, running
        for _ in range(2):  # a second call is refused as the first one
            try:
                tencache.enable(device_memory="32MiB")
            except tencache.TencacheError as error:
                text = str(error)
            else:
                raise AssertionError("it was accepted")
            for part in {expected!r}:
                assert part in text, text
            doors = shim(running(torch))
            for part in (doors.describe()["torch"], f"`{{REBUILD_COMMAND}}`", "installed nothing"):
                assert part in text, text
            assert not doors.describe()["installed"]
        assert not tencache.is_enabled()
        kept = torch.ones(1 << 20)
        assert kept.sum() == 1 << 20
        """,
        env={"LD_PRELOAD": str(library)},
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("same", ""),
        ("virtual_function", "c10::Allocator has 6 virtual functions instead of 7"),
        ("storage_member", "members of c10::StorageImpl lie elsewhere"),
        ("event_member", "members of at::RecordFunction lie elsewhere"),
    ],
)
def test_headers_of_another_torch_are_noticed(name: str, expected: str) -> None:
    library = DOCTORED / f"libshim_self_test_{name}.so"
    assert library.exists(), f"{library} is not built; run `make test-python`, which builds it"
    tell = ctypes.CDLL(str(library)).why_layouts_differ
    tell.restype = ctypes.c_char_p
    found = tell().decode()
    assert expected in found
    assert bool(expected) == bool(found)


@pytest.mark.parametrize(
    "mode", ["torch.inference_mode()", "FakeTensorMode()", "torch.profiler.profile()"]
)
def test_no_mode_of_the_program_hides_the_layout(
    run_python: Callable[..., object], mode: str
) -> None:
    run_python(
        f"""
        import torch, torch.profiler, tencache
        from torch._subclasses import FakeTensorMode
        with {mode}:
            tencache.enable(device_memory="32MiB")
        assert tencache.is_enabled()
        """
    )
