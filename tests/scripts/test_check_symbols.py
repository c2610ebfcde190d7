# SPDX-License-Identifier: Apache-2.0
"""check_symbols on made-up symbol lists and on a library that is compiled here."""

import shutil
import subprocess
from pathlib import Path

import pytest

import check_symbols

DECLARED = {"tencache_start", "tencache_free"}


def test_the_real_headers_are_understood() -> None:
    texts = [header.read_text() for header in check_symbols.HEADERS]
    declared = check_symbols.declared_functions(*texts)
    assert {"tencache_start", "tencache_get_arena", "tencache_hold_accesses"} <= declared
    assert {"tencache_open_gpu", "tencache_gpu_arena", "tencache_gpu_walk"} <= declared
    assert {"tencache_pinned_open", "tencache_pinned_walk"} <= declared
    assert all(name.startswith("tencache_") for name in declared)
    # Each use of the macro declares one function. The macro occurs once more, in its own
    # definition.
    assert len(declared) == sum(text.count("TENCACHE_API") for text in texts) - 1


def test_the_guard_exports_what_it_stands_in_for() -> None:
    exports = check_symbols.exports_of("build/libtencache_guard.so")
    assert {"tencache_guard_install", "tencache_guard_find", "dlsym", "cuLaunchKernel"} <= exports
    assert "cuMemCreate" not in exports
    assert "dlsym" not in check_symbols.exports_of("build/libtencache.so")


def test_the_preload_library_exports_one_function() -> None:
    assert check_symbols.exports_of("build/libtencache_preload.so") == {"__libc_start_main"}


def test_a_good_library_passes() -> None:
    needed = {"libc.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
    assert check_symbols.problems_in(DECLARED, {"mmap", "_ZSt9terminatev"}, needed, DECLARED) == []


@pytest.mark.parametrize(
    "symbol",
    [
        "PyErr_Occurred",
        "_Py_NoneStruct",
        "_ZN3c105ErrorC1Ev",
        "_ZNK2at6Tensor3dimEv",
        "cuMemCreate",
    ],
)
def test_foreign_symbols_are_found(symbol: str) -> None:
    found = check_symbols.problems_in(DECLARED, {symbol}, set(), DECLARED)
    assert found == [f"needs {symbol}, a symbol of torch, Python or CUDA"]


def test_exports_are_the_headers_exactly() -> None:
    found = check_symbols.problems_in({"tencache_start", "inner"}, set(), set(), DECLARED)
    assert found == [
        "exports inner, which no header declares",
        "does not export tencache_free, which a header declares",
    ]


def test_libraries_that_a_user_may_lack_are_found() -> None:
    found = check_symbols.problems_in(DECLARED, set(), {"liburing.so.2"}, DECLARED)
    assert len(found) == 1
    assert "liburing.so.2" in found[0]


def test_thread_locals_in_the_static_block_are_few() -> None:
    most = check_symbols.STATIC_THREAD_LOCALS_MAX
    assert check_symbols.problems_in(DECLARED, set(), set(), DECLARED, most) == []
    found = check_symbols.problems_in(DECLARED, set(), set(), DECLARED, most + 8)
    assert len(found) == 1
    assert str(most + 8) in found[0]


@pytest.mark.parametrize(("model", "size"), [("initial-exec", 0x2000), ("global-dynamic", 0)])
def test_thread_locals_count_where_they_take_static_room(
    tmp_path: Path, model: str, size: int
) -> None:
    headers = _headers_of(
        tmp_path,
        f'thread_local char bytes[0x2000] __attribute__((tls_model("{model}")));\n'
        "char* first() { return bytes; }\n",
    )
    assert check_symbols.static_thread_locals(headers) == size


def _headers_of(folder: Path, source_text: str) -> str:
    return subprocess.check_output(
        ["readelf", "--dynamic", "--program-headers", "--wide", _compile(folder, source_text)],
        text=True,
    )


def _compile(folder: Path, source_text: str) -> Path:
    compiler = shutil.which("g++-12") or shutil.which("g++")
    if compiler is None or shutil.which("nm") is None:
        pytest.skip("no g++ or no binutils on this machine")
    source, library = folder / "a.cpp", folder / "a.so"
    source.write_text(source_text)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def test_a_real_library_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = _compile(
        tmp_path,
        'extern "C" {\nint PyErr_CheckSignals();\n'
        "int stray() { return PyErr_CheckSignals(); }\n}\n",
    )
    assert check_symbols.main(str(library)) == 1
    printed = capsys.readouterr().out
    assert "exports stray" in printed
    assert "needs PyErr_CheckSignals" in printed
    assert "does not export tencache_start" in printed
