# SPDX-License-Identifier: Apache-2.0
"""run_clang_tidy: which files it takes, and when it takes one again."""

from pathlib import Path

import run_clang_tidy


def entry(root: Path, name: str) -> dict[str, str]:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("int x;\n")
    return {"directory": str(root), "file": str(file), "command": "g++"}


def test_files_below_the_folders_are_taken_once(tmp_path: Path) -> None:
    inside = entry(tmp_path, "core/base/a.cpp")
    outside = entry(tmp_path, "other/b.cpp")
    # Compiled twice, into two targets.
    database = [outside, inside, dict(inside)]
    assert run_clang_tidy.selected(database, [tmp_path / "core"]) == [inside]


def test_a_change_anywhere_it_looks_makes_a_file_due(tmp_path: Path) -> None:
    (tmp_path / ".clang-tidy").write_text("Checks: '*'")
    one = entry(tmp_path, "allocator/base/a.cpp")
    header = tmp_path / "allocator/base/a.h"
    header.write_text("int a;")

    def mark() -> str:
        return run_clang_tidy.fingerprint(one, run_clang_tidy.shared_fingerprint(tmp_path))

    marks = [mark(), mark()]
    assert marks[0] == marks[1]
    (tmp_path / "allocator/base/a.cpp").write_text("int y;\n")
    marks.append(mark())
    header.write_text("int b;")
    marks.append(mark())
    (tmp_path / ".clang-tidy").write_text("Checks: '-*'")
    marks.append(mark())
    one["command"] = "clang++"
    marks.append(mark())
    assert len(set(marks)) == 5
