# SPDX-License-Identifier: Apache-2.0
"""What the checks share: the files of the repository, C++ text without comments, and reports.

A check is a function that takes a path (relative to the root) and the file's text, and returns
Problems. It reads nothing itself, so its tests need no files.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
CPP_SUFFIXES = (".h", ".cpp")

_COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"'
    r"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)


@dataclass(frozen=True)
class Problem:
    """One finding: where, and what to change."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


Check = Callable[[PurePosixPath, str], Iterable[Problem]]


def source_files(suffixes: tuple[str, ...] = ()) -> list[PurePosixPath]:
    """The files that git tracks or would track, relative to the root, sorted by name."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.check_output(command, cwd=ROOT, text=True)
    paths = {PurePosixPath(name) for name in output.split("\0") if name}
    return sorted(
        path
        for path in paths
        if (not suffixes or path.suffix in suffixes) and (ROOT / path).is_file()
    )


def without_comments(text: str, *, keep_strings: bool = False) -> str:
    """C++ text with comments (and strings, unless kept) as blanks; lines and columns stay."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        if keep_strings and not found.startswith("/"):
            return found
        return re.sub(r"[^\n]", " ", found)

    return _COMMENT_OR_STRING.sub(blank, text)


def report(checks: Iterable[Check], paths: Iterable[PurePosixPath]) -> int:
    """Prints the problems of all files and returns the exit status."""
    problems: list[Problem] = []
    checks = list(checks)
    for path in paths:
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue  # not text
        for check in checks:
            problems.extend(check(path, text))
    for problem in sorted(problems, key=lambda found: (found.path, found.line)):
        print(problem)
    return 1 if problems else 0
