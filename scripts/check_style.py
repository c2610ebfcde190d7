#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the house rules that no formatter knows.

  - every source begins with its SPDX line
  - a line of C++ has at most 100 columns, also where clang-format cannot break it; a line of a
    document too, unless it is a row of a table, or one link, picture or word that cannot be broken;
    documents that programs write may be wider
  - a source has at most 600 lines, a function at most 60
  - no line says that something is left for later
  - no source has an absolute path of somebody's machine
  - a comment or document names only what exists, in today's words (check_names.py)

Functions of C++ are found by their braces, which is rough: each one found is a function, but some
may be missed. Functions of Python are found by Python's own parser.

Usage: check_style.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import PurePosixPath

import check_names
from repository import CPP_SUFFIXES, Problem, report, source_files, without_comments

LINE_COLUMNS_MAX = 100
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
SPDX = "SPDX-License-Identifier: Apache-2.0"
SOURCE_SUFFIXES = (*CPP_SUFFIXES, ".py", ".pyi", ".cmake", ".map", ".sh")
SOURCE_NAMES = ("CMakeLists.txt", "Makefile", "run", "pyproject.toml")

# Documents that may be wider: programs write them.
_WIDER_DOCUMENTS = ("benchmarks/results/", "benchmarks/gpu/experiments/", "benchmarks/gpu/results/")

# Words that mark what was left for later. They are split so that this file does not match itself.
_LEFT_FOR_LATER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
_MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|work)/\w")
# A line of a document that is only a link, a picture or a single word, also in a list.
_UNBREAKABLE = re.compile(r"\s*([-*] |\d+\. )?(!?\[[^\]]*\]\([^)\s]*\)[.,;:]?|\S+)")
# Text before the brace of a class or namespace, whose members follow at this level. A function that
# returns a struct ends in its parameters instead.
_CONTAINER = re.compile(
    r"^\s*(template\s*<[^{]*>\s*)?(inline\s+)?(namespace|class|struct|union|enum|extern)\b"
    r"(?![^{]*\)\s*(const|noexcept|override|\s)*$)"
)


def is_source(path: PurePosixPath) -> bool:
    return path.suffix in SOURCE_SUFFIXES or path.name in SOURCE_NAMES


def check_spdx(path: PurePosixPath, text: str) -> Iterable[Problem]:
    if is_source(path) and text and SPDX not in "\n".join(text.splitlines()[:2]):
        yield Problem(str(path), 1, f"begins without the line `{SPDX}`")


def check_lengths(path: PurePosixPath, text: str) -> Iterable[Problem]:
    lines = text.splitlines()
    if is_source(path) and len(lines) > FILE_LINES_MAX:
        yield Problem(
            str(path),
            FILE_LINES_MAX,
            f"has {len(lines)} lines; split it ({FILE_LINES_MAX} at most)",
        )
    is_document = path.suffix == ".md" and not str(path).startswith(_WIDER_DOCUMENTS)
    if path.suffix not in CPP_SUFFIXES and not is_document:
        return
    for number, line in enumerate(lines, start=1):
        if is_document and (line.startswith("|") or _UNBREAKABLE.fullmatch(line)):
            continue
        if len(line) > LINE_COLUMNS_MAX:
            yield Problem(str(path), number, f"has {len(line)} columns; {LINE_COLUMNS_MAX} at most")


def check_words(path: PurePosixPath, text: str) -> Iterable[Problem]:
    if not is_source(path):
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _LEFT_FOR_LATER.search(line):
            yield Problem(str(path), number, f"says {match.group()}; do it, or drop it")
        if match := _MACHINE_PATH.search(line):
            yield Problem(str(path), number, f"names a path of one machine: {match.group()}...")


def check_functions(path: PurePosixPath, text: str) -> Iterable[Problem]:
    if path.suffix in CPP_SUFFIXES:
        functions = cpp_functions(text)
    elif path.suffix == ".py":
        functions = python_functions(text)
    else:
        return
    for name, first, last in functions:
        count = last - first + 1
        if count > FUNCTION_LINES_MAX:
            yield Problem(
                str(path), first, f"{name} has {count} lines; {FUNCTION_LINES_MAX} at most"
            )


def python_functions(text: str) -> list[tuple[str, int, int]]:
    """(name, first line, last line) of each function."""
    return [
        (node.name, node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def cpp_functions(text: str) -> list[tuple[str, int, int]]:
    """(name, first line, last line) of each function body, from the braces."""
    code = re.sub(
        r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
        lambda match: re.sub(r"[^\n]", " ", match.group()),
        without_comments(text),
        flags=re.MULTILINE,
    )
    functions: list[tuple[str, int, int]] = []
    depth = 0  # of braces inside a function or an initialiser
    opened: tuple[str, int] | None = None  # the function that is open: its head and where it began
    head_begin = 0  # after the last thing that ended at this level
    for match in re.finditer(r"[{};]", code):
        symbol, at = match.group(), match.start()
        if depth > 0:
            depth += {"{": 1, "}": -1, ";": 0}[symbol]
            if depth > 0 or symbol != "}":
                continue
            if opened is not None:
                head, begin = opened
                functions.append((_name(head), _line(code, begin), _line(code, at)))
                head_begin = at + 1
            opened = None
        elif symbol == "{":
            head = code[head_begin:at]
            if _CONTAINER.match(head):
                head_begin = at + 1  # its members follow at this level
                continue
            depth = 1
            if _is_function_head(head):
                opened = (head, head_begin + len(head) - len(head.lstrip()))
        else:
            head_begin = at + 1
    return functions


def _is_function_head(head: str) -> bool:
    """Whether a brace after this text opens a function; not so in `: a_{1}` and `= {`."""
    if "(" not in head or re.search(r"(?<![=!<>])=(?!=)\s*$", head):
        return False
    return not (re.search(r"\)\s*(noexcept\s*)?:[^:]", head) and re.search(r"[\w>]\s*$", head))


def _name(head: str) -> str:
    match = re.search(r"([~\w:]+)\s*\(([^()]*)", head)
    if match is None:
        return "a function"
    if match[1].startswith("TEST"):
        return f"{match[1]}({' '.join(match[2].split())})"
    return match[1]


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


CHECKS = (check_spdx, check_lengths, check_words, check_functions)

if __name__ == "__main__":
    sys.exit(report((*CHECKS, *check_names.checks()), source_files()))
