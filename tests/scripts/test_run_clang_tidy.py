# SPDX-License-Identifier: Apache-2.0
"""run_clang_tidy: which files it checks, and when it checks one again."""

import sys
from pathlib import Path

import pytest

import run_clang_tidy


def entry(root: Path, name: str) -> dict[str, str]:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("int x;\n")
    return {"directory": str(root), "file": str(file), "command": "g++"}


def test_files_below_the_folders_are_taken_once(tmp_path: Path) -> None:
    inside = entry(tmp_path, "core/base/a.cpp")
    outside = entry(tmp_path, "other/b.cpp")
    # The file is compiled twice, into two targets.
    database = [outside, inside, dict(inside)]
    assert run_clang_tidy.selected(database, [tmp_path / "core"]) == [inside]


def test_what_a_file_includes_makes_it_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_clang_tidy, "INCLUDE_ROOTS", (tmp_path / "core",))
    one = entry(tmp_path, "core/base/a.cpp")
    source, header, inner, other = (
        tmp_path / "core" / name for name in ("base/a.cpp", "base/a.h", "tier/b.h", "base/c.h")
    )
    inner.parent.mkdir()
    source.write_text('#include "a.h"\n#include <vector>\n')
    header.write_text('  #  include "tier/b.h"\n')
    inner.write_text('#include "base/a.h"\n')  # a circle ends
    other.write_text("int c;\n")

    def mark() -> str:
        return run_clang_tidy.fingerprint(one, b"Checks: '*'")

    before = mark()
    other.write_text("int d;\n")
    assert mark() == before
    for changed in (source, header, inner):
        changed.write_text(changed.read_text() + "int d;\n")
        assert mark() != before
        before = mark()
    one["command"] = "clang++"
    assert mark() != before
    assert run_clang_tidy.fingerprint(one, b"") != mark()


def test_another_clang_tidy_makes_every_file_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clang_tidy = tmp_path / "clang-tidy"

    def configuration(version: str) -> bytes:
        clang_tidy.write_text(f"#!/bin/sh\necho LLVM version {version}\n")
        clang_tidy.chmod(0o755)
        return run_clang_tidy.configuration_of(clang_tidy)

    before = configuration("21.1.0")
    assert configuration("21.1.0") == before
    assert configuration("21.1.1") != before
    monkeypatch.setattr(run_clang_tidy, "ARGUMENTS", ("--quiet",))
    assert configuration("21.1.0") != before


def test_sources_of_a_folder_are_read_in_one_piece(tmp_path: Path) -> None:
    first, second = (entry(tmp_path, f"core/base/{name}.cpp") for name in "ab")
    other_folder = entry(tmp_path, "core/tier/a.cpp")
    other_options = entry(tmp_path, "core/base/c.cpp")
    other_options["command"] = "g++ -O2"
    alone = [entry(tmp_path, f"core/base/{name}.cpp") for name in ("pragma", "using")]
    (tmp_path / "core/base/pragma.cpp").write_text('#pragma GCC target("avx2")\n')
    (tmp_path / "core/base/using.cpp").write_text("using tencache::Status;\n")
    for each in (first, second, other_folder, *alone):
        each["command"] = f"g++ -O1 -o a.o -c {each['file']}"
    assert run_clang_tidy.flags_of(first) == ("-O1",)
    every = [first, alone[0], other_options, second, other_folder, alone[1]]
    assert run_clang_tidy.units(every) == [
        [first, second],
        [alone[0]],
        [other_options],
        [other_folder],
        [alone[1]],
    ]
    many = [entry(tmp_path, f"core/many/{number}.cpp") for number in range(17)]
    assert [len(unit) for unit in run_clang_tidy.units(many)] == [16, 1]


@pytest.mark.skipif(
    not (Path(sys.executable).parent / "clang-tidy").exists(),
    reason="clang-tidy is only in the environment that lints",
)
def test_a_fault_is_found_in_every_source_of_a_piece(tmp_path: Path) -> None:
    # .clang-tidy shows what it finds in folders of this name.
    unit = [
        entry(tmp_path, f"allocator/base/{name}.cpp") for name in ("clean", "analyzed", "named")
    ]
    (tmp_path / "allocator/base/analyzed.cpp").write_text(
        "int divided(int by) {\n  if (by == 0) return 1 / by;\n  return by;\n}\n"
    )
    (tmp_path / "allocator/base/named.cpp").write_text("int Capital() { return 1; }\n")
    clang_tidy = Path(sys.executable).parent / "clang-tidy"
    is_clean, text = run_clang_tidy.check(clang_tidy, unit)
    assert not is_clean
    assert "analyzed.cpp:2:25: error: Division by zero" in text
    assert "named.cpp:1:5: error: invalid case style" in text
    assert run_clang_tidy.check(clang_tidy, unit[:1]) == (True, "")
