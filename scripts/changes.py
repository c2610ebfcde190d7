# SPDX-License-Identifier: Apache-2.0
"""Finds what changed, and which fast tests `make check` runs for it.

Changed means: not in a commit yet, or if everything is, part of the last commit. For a change of
the core we run the suites of the same name and those that include the changed header themselves;
suites that run for minutes are left to `make test-core`. For a change of the package, the shim,
guard/ or preload/ we run the pytest files of the same name, and a few that always run. Everything
but `changed_files` and `sources_to_tidy` is a pure function of names and texts.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from repository import ROOT

# More suites than this would take too long while one works. Half of all suites include a header of
# the lowest layers.
SUITES_MAX = 24
_RUNS_FOR_MINUTES = re.compile(r"_(fuzz|faults)_test$")
_SUITE = re.compile(r"tests/(allocator|gpu|guard)/.*_test\.cpp")
# Each of these takes a few seconds. They cover the scripts, the options and their refusals, and the
# backend that a program gets.
ALWAYS = ("tests/scripts", "tests/python/test_options.py", "tests/python/test_backend.py")
# The suites and test files that have another name than their source.
_SUITES = {
    "plan_cursor": "queued_ops_test",
    "learner": "plan_engine_test",
    "learned_plan": "plan_engine_test",
    "machine_meter": "plan_engine_test",
    "stream_evictions": "cuda_ahead_test",
    "stream_evictions_end": "cuda_ahead_test",
    "evictor_victims": "evictor_test",
    "stream_fetches": "cuda_ahead_test",
    "stream_mover": "cuda_engine_test",
    "moments": "cuda_ahead_test",
    "flights": "cuda_ahead_test",
    "link_copies": "staged_copies_test",
    "host_blocks": "host_spill_test",
    "direct_reads": "direct_storage_test",
    "slot_evictions": "slot_mover_test",
    "slot_fetches": "slot_mover_test",
    "parked_evictions": "slot_mover_test",
    "cpu_heap_frames": "cpu_heap_cache_test",
    "cuda_heap": "cuda_engine_test",
    "cuda_heap_cache": "cuda_engine_test",
    "cuda_heap_copies": "host_spill_test",
    "cuda_heap_view": "gpu_abi_test",
}
_PYTEST_FILES = {
    "python/tencache/_runtime.py": "enable",
    "python/tencache/_library.py": "enable",
    "python/tencache/_autoload.py": "enable",
    "python/tencache/_doctor.py": "cli",
    "python/tencache/_trace.py": "report",
    "python/tencache/_cli_plan.py": "plan",
    "python/tencache/_cli_cpp.py": "preload",
    "python/tencache/_period_file.py": "plan",
    "python/tencache/_pipe.py": "plan_gpus",
    "shim/cpu_allocator.cpp": "shim_allocator",
    "shim/cuda_self_test.cpp": "self_test",
    "shim/layout_refusal.cpp": "self_test",
    "shim/self_test.cpp": "self_test",
    "shim/vtables.cpp": "self_test",
    "shim/operator_table.cpp": "shim_gate",
    "shim/tensor_walk.cpp": "shim_gate",
    "shim/gate_hooks.cpp": "shim_gate",
    "tests/shim/cuda_gate_test.cpp": "shim_cuda_gate",
    "tests/shim/self_test_entry.cpp": "self_test",
}
_PYTEST_FILES_OF_FOLDERS = {"guard": "launch_guard", "preload": "preload"}


def changed_files() -> list[PurePosixPath]:
    """Files that differ from the last commit, else those that it changed.

    Deleted files are left out.
    """

    def names(*command: str) -> list[str]:
        output = subprocess.check_output(["git", *command, "-z"], cwd=ROOT, text=True)
        return [name for name in output.split("\0") if name]

    found = names("diff", "--name-only", "HEAD")
    found += names("ls-files", "--others", "--exclude-standard")
    found = found or names("diff", "--name-only", "HEAD~1", "HEAD")
    return [PurePosixPath(name) for name in sorted(found) if (ROOT / name).is_file()]


def suites_of(
    changed: Iterable[PurePosixPath], suites: Mapping[PurePosixPath, str]
) -> tuple[list[str], int]:
    """The suites of the core to run, and how many more there are.

    `suites` holds all suites with their texts. Those with the name of a changed file come first.
    """
    changed = list(changed)
    chosen: dict[str, None] = {}
    including: dict[str, None] = {}
    for path in changed:
        if path in suites:
            chosen[path.stem] = None
        folder = path.parts[0]
        if path.suffix not in (".h", ".cpp") or folder not in ("allocator", "guard", "tests"):
            continue
        # The guard has one suite for all its files.
        other_name = "guard_test" if "guard" in path.parts[:2] else _SUITES.get(path.stem)
        header = path.with_suffix(".h").relative_to(folder)
        for suite, text in suites.items():
            if _RUNS_FOR_MINUTES.search(suite.stem):
                continue
            if suite.stem in (f"{path.stem}_test", other_name):
                chosen[suite.stem] = None
            elif f'#include "{header}"' in text:
                including[suite.stem] = None
    every = list({**chosen, **including})
    return every[:SUITES_MAX], len(every[SUITES_MAX:])


def is_suite(path: PurePosixPath) -> bool:
    return _SUITE.fullmatch(str(path)) is not None


def pytest_files_of(
    changed: Iterable[PurePosixPath], files: Iterable[PurePosixPath]
) -> list[PurePosixPath]:
    """The pytest files to run besides ALWAYS; `files` holds all."""
    files = set(files)
    chosen: dict[PurePosixPath, None] = {}
    for path in changed:
        if path in files:
            chosen[path] = None
        test = PurePosixPath(f"tests/python/test_{_pytest_stem(path)}.py")
        if test in files:
            chosen[test] = None
    return list(chosen)


def _pytest_stem(path: PurePosixPath) -> str | None:
    """The name in tests/python of what tests this source; there need not be such a file."""
    folder = path.parts[0]
    if folder in _PYTEST_FILES_OF_FOLDERS:
        return _PYTEST_FILES_OF_FOLDERS[folder]
    if folder == "python":
        return _PYTEST_FILES.get(str(path), path.stem.strip("_"))
    if folder != "shim" and path.parts[:2] != ("tests", "shim"):
        return None
    # One suite covers the shim's files for GPU memory; _PYTEST_FILES has the exceptions.
    is_for_gpus = path.stem.startswith(("cuda_", "pinned_"))
    own = "shim_cuda_allocator" if is_for_gpus else f"shim_{path.stem}"
    return _PYTEST_FILES.get(str(path.with_suffix(".cpp")), own)


def sources_to_tidy(changed: Iterable[PurePosixPath]) -> list[PurePosixPath]:
    """The sources for clang-tidy: changed ones, and those with the name of a changed header."""
    found = {
        path.with_suffix(".cpp")
        for path in changed
        if path.suffix in (".h", ".cpp")
        and path.parts[0] in ("allocator", "guard", "preload", "shim")
    }
    return sorted(path for path in found if (ROOT / path).is_file())
