#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the sources of a compile database, one process for each core.

A clean file is skipped until it, a project header that it includes, its compile command,
.clang-tidy, or clang-tidy's version or arguments change. A file beside the database remembers which
files are clean.

Usage: run_clang_tidy.py <build folder> <source or folder of sources>...
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE_ROOTS = (ROOT / "allocator", ROOT / "guard", ROOT / "preload", ROOT / "tests")
MEMORY_NAME = "clang-tidy-clean.json"
# The static analyzer gives up on a function after this many steps. Its own limit, 225000, takes
# more than half of the whole time, for a few long functions.
ANALYZER_STEPS = 20_000
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


def check(clang_tidy: Path, build: Path, entry: dict[str, str]) -> tuple[bool, str]:
    """Whether one file is clean, and clang-tidy's output."""
    file = Path(entry["directory"]) / entry["file"]
    done = subprocess.run(
        [clang_tidy, "-p", build, *ARGUMENTS, file],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    # stderr counts suppressed warnings; it matters only if clang-tidy itself failed.
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
    marks = {
        entry["file"]: fingerprint(entry, configuration) for entry in selected(database, [ROOT])
    }
    pending = [entry for entry in entries if marks[entry["file"]] not in clean]
    print(f"{len(entries)} files, {len(entries) - len(pending)} of them unchanged", flush=True)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = pool.map(lambda entry: check(clang_tidy, build, entry), pending)
        for number, (entry, (is_clean, text)) in enumerate(
            zip(pending, results, strict=True), start=1
        ):
            print(f"[{number}/{len(pending)}] {os.path.relpath(entry['file'], ROOT)}", flush=True)
            if is_clean:
                clean.add(marks[entry["file"]])
            else:
                failed += 1
                print(text, flush=True)
    memory_path.write_text(json.dumps(sorted(clean & set(marks.values()))))
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve(), [Path(name) for name in sys.argv[2:]]))
