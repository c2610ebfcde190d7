#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the sources of a compile database, one process for each core.

Most of the time goes into headers, so clang-tidy reads up to sixteen sources of a folder in one
piece, as the build does (TENCACHE_UNITY). The static analyzer follows calls from one of them into
another, so the pieces do not depend on which sources are given.

A clean piece is skipped until a file of it, a project header that it includes, its compile command,
.clang-tidy, or clang-tidy's version or arguments change. A file beside the database remembers which
files are clean.

Usage: run_clang_tidy.py <build folder> <source or folder of sources>...
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE_ROOTS = (ROOT / "allocator", ROOT / "guard", ROOT / "preload", ROOT / "tests")
MEMORY_NAME = "clang-tidy-clean.json"
# The static analyzer gives up on a function after this many steps. Its own limit, 225000, takes
# more than half of the whole time, for a few long functions.
ANALYZER_STEPS = 20_000
# clang-tidy reads this many sources at once: enough to share headers, few enough for every core.
SOURCES_AT_ONCE = 16
# The file that includes those sources. The static analyzer looks into them only if the file has
# this name.
WHOLE_NAME = "UnifiedSource.cpp"
# A source that has one of these is read alone: a pragma would reach into the others, and
# misc-unused-using-decls does not look into what a source includes.
ALONE = re.compile(r"^(\s*#\s*pragma\b|using [\w:]+;)", re.MULTILINE)
ARGUMENTS = (
    "--quiet",
    # gcc flags that clang does not know must not count as findings.
    "--extra-arg=-Wno-unknown-warning-option",
    "--extra-arg=-Xclang",
    "--extra-arg=-analyzer-config",
    "--extra-arg=-Xclang",
    f"--extra-arg=max-nodes={ANALYZER_STEPS}",
)


def selected(database: list[dict[str, str]], folders: list[Path]) -> list[dict[str, str]]:
    """The entries whose file is in one of the folders, one for each file, in order."""
    chosen: dict[Path, dict[str, str]] = {}
    for entry in database:
        file = (Path(entry["directory"]) / entry["file"]).resolve()
        if any(file.is_relative_to(folder.resolve()) for folder in folders):
            chosen.setdefault(file, entry)
    return [chosen[file] for file in sorted(chosen)]


def configuration_of(clang_tidy: Path) -> bytes:
    """What decides, besides a file itself, what clang-tidy finds in it."""
    version = subprocess.run([clang_tidy, "--version"], capture_output=True, check=True).stdout
    return version + " ".join(ARGUMENTS).encode() + (ROOT / ".clang-tidy").read_bytes()


def fingerprint(entry: dict[str, str], configuration: bytes) -> str:
    """A digest of all that clang-tidy sees of this file, except system headers."""
    digest = hashlib.sha256(configuration)
    digest.update(json.dumps(entry, sort_keys=True).encode())
    for path in project_files_of(Path(entry["directory"]) / entry["file"]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def project_files_of(source: Path) -> list[Path]:
    """The file and all it includes in quotes, directly or not, from its folder or a root."""
    found = {source.resolve()}
    pending = list(found)
    while pending:
        file = pending.pop()
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', file.read_text(), re.MULTILINE):
            for folder in (file.parent, *INCLUDE_ROOTS):
                included = (folder / name).resolve()
                if included.is_file() and included not in found:
                    found.add(included)
                    pending.append(included)
    return sorted(found)


def flags_of(entry: dict[str, str]) -> tuple[str, ...]:
    """The options with which a source is compiled, without the compiler, source and object."""
    words = iter(shlex.split(entry["command"])[1:])
    flags = []
    for word in words:
        if word == "-o":
            next(words)
        elif word not in ("-c", entry["file"]):
            flags.append(word)
    return tuple(flags)


def units(entries: list[dict[str, str]]) -> list[list[dict[str, str]]]:
    """Groups what clang-tidy may read in one piece: a folder's sources with equal options."""
    groups: dict[tuple[object, ...], list[dict[str, str]]] = {}
    for entry in entries:
        file = Path(entry["directory"]) / entry["file"]
        key: tuple[object, ...] = (flags_of(entry), file.parent)
        if ALONE.search(file.read_text()):
            key = (*key, file)
        groups.setdefault(key, []).append(entry)
    return [
        group[start : start + SOURCES_AT_ONCE]
        for group in groups.values()
        for start in range(0, len(group), SOURCES_AT_ONCE)
    ]


def check(clang_tidy: Path, unit: list[dict[str, str]]) -> tuple[bool, str]:
    """Whether all files of a unit are clean, and clang-tidy's output.

    The compile database knows nothing of the unit, so clang-tidy gets the options themselves.
    """
    files = [Path(entry["directory"]) / entry["file"] for entry in unit]
    with tempfile.TemporaryDirectory() as folder:
        source = files[0]
        if len(files) > 1:
            source = Path(folder) / WHOLE_NAME
            source.write_text(
                "".join(
                    f'#include "{file}"  // NOLINT(bugprone-suspicious-include)\n' for file in files
                )
            )
        configuration = f"--config-file={ROOT / '.clang-tidy'}"
        done = subprocess.run(
            [clang_tidy, configuration, *ARGUMENTS, source, "--", *flags_of(unit[0])],
            cwd=unit[0]["directory"],
            capture_output=True,
            text=True,
        )
    # stderr counts suppressed warnings. It says more only if clang-tidy itself failed; then stdout
    # is empty.
    return done.returncode == 0, done.stdout + (done.stderr if not done.stdout else "")


def main(build: Path, folders: list[Path]) -> int:
    # Use the version of requirements/lint.txt, which lies beside this Python: others find other
    # things.
    clang_tidy = Path(sys.executable).parent / "clang-tidy"
    if not clang_tidy.exists():
        sys.exit(f"{clang_tidy} is missing; `make lint` installs it, or: pip install clang-tidy")
    database_path = build / "compile_commands.json"
    if not database_path.exists():
        sys.exit(f"{database_path} is missing; configure first: cmake --preset {build.name}")
    database = json.loads(database_path.read_text())
    entries = selected(database, folders)
    if not entries:
        sys.exit(f"{database_path} names no source in {', '.join(map(str, folders))}")
    memory_path = build / MEMORY_NAME
    clean = set(json.loads(memory_path.read_text())) if memory_path.exists() else set()
    configuration = configuration_of(clang_tidy)
    # The marks are of every file, so that we remember files that this call does not check.
    every_entry = selected(database, [ROOT])
    marks = {entry["file"]: fingerprint(entry, configuration) for entry in every_entry}
    pending = [entry for entry in entries if marks[entry["file"]] not in clean]
    print(f"{len(entries)} files, {len(entries) - len(pending)} of them unchanged", flush=True)

    pieces = [unit for unit in units(every_entry) if any(entry in pending for entry in unit)]
    total = sum(len(unit) for unit in pieces)
    done = failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = pool.map(check, itertools.repeat(clang_tidy), pieces)
        for unit, (is_clean, text) in zip(pieces, results, strict=True):
            done += len(unit)
            names = " ".join(os.path.relpath(entry["file"], ROOT) for entry in unit)
            print(f"[{done}/{total}] {names}", flush=True)
            if is_clean:
                clean.update(marks[entry["file"]] for entry in unit)
            else:
                failed += 1
                print(text, flush=True)
    memory_path.write_text(json.dumps(sorted(clean & set(marks.values()))))
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve(), [Path(name) for name in sys.argv[2:]]))
