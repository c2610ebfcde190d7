#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that comments and documents name only what exists, in today's words.

  - a `Class::member` is defined by a source; if the class is a library's, a source names it
  - the name with which a header introduces what it holds ("// Name: ...") occurs in code
  - a file or folder that a document names or links to exists, and so does a source of the core that
    a comment names
  - no retired word stands in code, comments or documents (RETIRED has today's words)
  - no sentence of a comment begins with "So many", "So much" or "So often", meaning "this many"
  - no comment and no document has "begin" for a noun ("the begin of a step")

Names are indexed from the text of all sources, which is rough: every word in the body of a class
counts as a member of it. So a stale name passes while the word is still used in that class; a name
that is refused is surely gone. check_style.py runs this with its own checks.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import PurePosixPath

from check_layers import LAYERS
from repository import CPP_SUFFIXES, ROOT, Check, Problem, source_files, without_comments

# Maps a retired word to today's. A retired word counts only as a whole word; one that ends in "("
# is retired only as a function.
RETIRED: Mapping[str, str] = {
    "CpuBackend": "CpuDevice",
    "CpuEngine": "Engine",
    "CudaBackend": "CudaDevice",
    "CudaEngine": "Engine",
    "IdlePeriod": "Gap",
    "KeptEviction": "ParkedEvictions",
    "MigrationGate": "ForkLatch",
    "HomeMarks": "FreeMarks",
    "Migrator": "Evictor",
    "OrderSource": "RequestSource",
    "SlotMigrations": "SlotMover",
    "SlotTimeline": "BinTimeline",
    "SmallBlocks": "MallocUse",
    "StreamAccess": "LoggedAccess",
    "StreamMigrations": "StreamMover",
    "StreamTick": "LoggedTick",
    "TickConverter": "TimestampConverter",
    "TickStream": "TickLog",
    "VictimRow": "UsesByTick",
    "claim_for_demotion": "claim_cold",
    "end_demotion": "release_cold",
    "keeper": "parking extent",
    "last_period_plan": "last_period_kind",
    "last_use_ticks": "last_use_at",
    "migrator": "evictor",
    "plan_number": "kind",
    "slot_is_written": "has_copy_below",
    "split_runs": "split_chunks",
}

# The files that may say a retired word: the table itself, its tests, and the changelog.
_MAY_SAY_RETIRED = (
    "scripts/check_names.py",
    "tests/scripts/test_check_names.py",
    "CHANGELOG.md",
)
_HASH_COMMENT_SUFFIXES = (".py", ".pyi", ".cmake", ".sh")
_BODY = re.compile(
    r"\b(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+"
    r"(?:[A-Z_]+\([^()]*\)\s*|alignas\([^()]*\)\s*)*(?P<name>[A-Z]\w*)"
    r"(?P<bases>[^;{}()=]*)\{"
)
_ALIAS = re.compile(r"\busing\s+(?P<name>[A-Z]\w*)\s*=\s*(?P<target>[^;]*);")
_QUALIFIED = re.compile(r"\b([A-Z]\w*)::(~?\w+)")
_NAMED = re.compile(r"(?<![\w:])(?:tencache::)?([A-Z]\w*[a-z]\w*(?:::~?\w+)+)")
_WORD = re.compile(r"\w+")
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)")
_CORE_SOURCE = re.compile(rf"(?<![\w/.-])((?:{'|'.join(LAYERS)})/(?:\w+/)*\w+\.(?:h|cpp))\b")
_INTRODUCED = re.compile(r"// SPDX[^\n]*\n//\n// (?P<names>\w+(?:, \w+)*): ")
_SO_MANY = re.compile(r"\bSo (?P<what>many|much|often)\b")
_BEGIN = re.compile(r"\b(?:the begins?|(?:its|their|a|any|each|this) begin)\b", re.IGNORECASE)
_LEFT_OUT_SUFFIXES = ("", ".h", ".cpp", ".py")  # documents may leave these out


class Names:
    """The classes of the sources with the words of their bodies, and all words of code."""

    def __init__(self, sources: Iterable[tuple[PurePosixPath, str]]) -> None:
        self._members: defaultdict[str, set[str]] = defaultdict(set)
        self._relatives: defaultdict[str, set[str]] = defaultdict(set)  # bases, targets of aliases
        self._own: set[str] = set()
        self._words: set[str] = set()
        for path, text in sources:
            if path.suffix in CPP_SUFFIXES:
                self._read(without_comments(text))

    def _read(self, code: str) -> None:
        self._words.update(_WORD.findall(code))
        for match in _BODY.finditer(code):
            self._own.add(match["name"])
            body = code[match.end() : _end_of_body(code, match.end())]
            self._members[match["name"]].update(_WORD.findall(body))
            self._relatives[match["name"]].update(_WORD.findall(match["bases"]))
        for match in _ALIAS.finditer(code):
            self._own.add(match["name"])
            self._relatives[match["name"]].update(_WORD.findall(match["target"]))
        for name, member in _QUALIFIED.findall(code):
            self._members[name].add(member.removeprefix("~"))

    def occurs(self, word: str) -> bool:
        """Whether any code has the word."""
        return word in self._words

    def problem(self, name: str) -> str | None:
        """The problem with a name like `Class::member`, or None."""
        parts = name.split("::")
        for owner, member in pairwise(parts):
            if owner not in self._own:
                if owner not in self._words:
                    return f"names {name}, and no source has a {owner}"
                return None  # a library's
            if member.removeprefix("~") not in self._members_of(owner, set()):
                return f"names {name}, and {owner} has no {member}"
        return None

    def _members_of(self, owner: str, seen: set[str]) -> set[str]:
        if owner in seen:
            return set()
        seen.add(owner)
        members = set(self._members[owner]) if owner in self._members else set()
        members.add(owner)  # the constructor
        for relative in self._relatives.get(owner, ()):
            members |= self._members_of(relative, seen)
        return members


def _end_of_body(code: str, begin: int) -> int:
    depth = 1
    for match in re.compile(r"[{}]").finditer(code, begin):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    return len(code)


def prose(path: PurePosixPath, text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of all prose: comments, and the lines of documents."""
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), start=1)
    elif path.suffix in CPP_SUFFIXES:
        code = without_comments(text, keep_strings=True)
        comments = "".join(
            new if new == "\n" or new != old else " " for new, old in zip(text, code, strict=True)
        )
        yield from enumerate(comments.splitlines(), start=1)
    elif path.suffix in _HASH_COMMENT_SUFFIXES or path.name == "CMakeLists.txt":
        for number, line in enumerate(text.splitlines(), start=1):
            if line.lstrip().startswith("#"):
                yield number, line


def check_names(names: Names) -> Check:
    def check(path: PurePosixPath, text: str) -> Iterable[Problem]:
        for number, line in prose(path, text):
            for name in _NAMED.findall(line):
                if problem := names.problem(name):
                    yield Problem(str(path), number, problem)

    return check


def check_introductions(names: Names) -> Check:
    """Checks the names in the first sentence of a header, such as `// Door: opens and closes`."""

    def check(path: PurePosixPath, text: str) -> Iterable[Problem]:
        found = _INTRODUCED.match(text) if path.suffix == ".h" else None
        for name in found["names"].split(", ") if found else ():
            if not names.occurs(name):
                yield Problem(str(path), 3, f"introduces {name}, and no source has that")

    return check


def check_paths(files: Iterable[PurePosixPath]) -> Check:
    """Checks paths and links.

    A path leads from the root, or from allocator/ if it begins with a layer; a link leads from its
    document.
    """
    there = {path for file in files for path in (file, *file.parents)}
    tops = {path.parts[0] for path in there if path.parts}
    nowhere = ("build",)  # built, so not in the repository

    def is_there(named: PurePosixPath) -> bool:
        return any(named.with_name(named.name + suffix) in there for suffix in _LEFT_OUT_SUFFIXES)

    def check(path: PurePosixPath, text: str) -> Iterable[Problem]:
        if path.name == "CHANGELOG.md":
            return
        for number, line in prose(path, text):
            for name in _CORE_SOURCE.findall(line):
                if "allocator" / PurePosixPath(name) not in there:
                    yield Problem(str(path), number, f"names {name}, which is not there")
            if path.suffix != ".md":
                continue
            for name in _PATH.findall(line):
                named = PurePosixPath(name)
                if _CORE_SOURCE.fullmatch(name):
                    continue
                if named.parts[0] in LAYERS:
                    named = "allocator" / named
                elif named.parts[0] not in tops or named.parts[0] in nowhere:
                    continue  # not a path of ours
                if not is_there(named):
                    yield Problem(str(path), number, f"names {name}, which is not there")
            for target in _LINK.findall(line):
                if PurePosixPath(os.path.normpath(path.parent / target)) not in there:
                    yield Problem(str(path), number, f"links to {target}, which is not there")

    return check


def check_retired(words: Mapping[str, str]) -> Check:
    retired = "|".join(re.escape(word) + ("" if word[-1] == "(" else r"\b") for word in words)
    pattern = re.compile(rf"\b(?:{retired})" if words else r"(?!)")

    def check(path: PurePosixPath, text: str) -> Iterable[Problem]:
        if str(path) in _MAY_SAY_RETIRED:
            return
        for number, line in enumerate(text.splitlines(), start=1):
            for match in pattern.finditer(line):
                word = match.group()
                yield Problem(str(path), number, f"says {word}; today's word is {words[word]}")

    return check


def check_so_many(path: PurePosixPath, text: str) -> Iterable[Problem]:
    """Refuses "So many", "So much" and "So often" for what the next line of code counts.

    That is "this many".
    """
    if path.suffix == ".md":
        return
    for number, line in prose(path, text):
        for match in _SO_MANY.finditer(line):
            problem = f"says {match.group()}; say what is counted, or: this {match['what']}"
            yield Problem(str(path), number, problem)


def check_begin(path: PurePosixPath, text: str) -> Iterator[Problem]:
    for number, line in prose(path, text):
        if match := _BEGIN.search(line):
            yield Problem(str(path), number, f"says {match.group()}: a begin is a start")


def checks() -> list[Check]:
    """All checks of this file, over the names of all sources."""
    paths = source_files(CPP_SUFFIXES)
    names = Names((path, (ROOT / path).read_text()) for path in paths)
    return [
        check_names(names),
        check_introductions(names),
        check_paths(source_files()),
        check_retired(RETIRED),
        check_so_many,
        check_begin,
    ]
