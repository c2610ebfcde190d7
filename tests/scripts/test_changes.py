# SPDX-License-Identifier: Apache-2.0
"""changes.py: the tests that `make check` finds for a change."""

from pathlib import PurePosixPath as Path

import pytest

import changes
import repository

SUITES = {
    Path("tests/allocator/disk_tier_test.cpp"): '#include "tier/disk_tier.h"\n',
    Path("tests/allocator/cuda/host_spill_test.cpp"): '#include "tier/disk_tier.h"\n',
    Path("tests/allocator/engine_fuzz_test.cpp"): '#include "tier/disk_tier.h"\n',
    Path("tests/allocator/units_test.cpp"): '#include "base/units.h"\n',
    Path("tests/allocator/plan_engine_test.cpp"): "",
    Path("tests/allocator/gate_test.cpp"): '#include "support/test_engine.h"\n',
    Path("tests/guard/guard_test.cpp"): '#include "guard/fake_driver.h"\n',
}
PYTEST = [Path(f"tests/python/test_{name}.py") for name in ("enable", "plan", "shim_gate")]


def names(*paths: str) -> list[str]:
    found, left_out = changes.suites_of([Path(path) for path in paths], SUITES)
    assert left_out == 0
    return found


def test_suites_are_those_of_the_name_and_those_that_include_the_header() -> None:
    assert names("allocator/tier/disk_tier.cpp") == ["disk_tier_test", "host_spill_test"]
    assert names("allocator/base/units.h", "docs/a.svg") == ["units_test"]
    assert names("tests/support/test_engine.cpp") == ["gate_test"]
    assert names("allocator/engine/plan/learner.cpp") == ["plan_engine_test"]
    assert names("shim/library.cpp", "README.md") == []


def test_the_guard_has_one_suite_and_one_pytest_file() -> None:
    for name in ("guard/hooks.cpp", "tests/guard/next_in_line.cpp", "tests/guard/guard_test.cpp"):
        assert names(name) == ["guard_test"], name
    launch_guard = Path("tests/python/test_launch_guard.py")
    assert changes.pytest_files_of([Path("guard/hooks.h")], [*PYTEST, launch_guard]) == [
        launch_guard
    ]


@pytest.mark.parametrize(
    ("source", "stem"),
    [
        ("tests/shim/cuda_allocator_test.cpp", "shim_cuda_allocator"),
        ("tests/shim/cuda_allocator_fixture.h", "shim_cuda_allocator"),
        ("tests/shim/pinned_allocator_test.cpp", "shim_cuda_allocator"),
        ("tests/shim/cuda_gate_test.cpp", "shim_cuda_gate"),
        ("tests/shim/self_test_entry.cpp", "self_test"),
        ("shim/cuda_pools.h", "shim_cuda_allocator"),
        ("shim/cuda_self_test.cpp", "self_test"),
    ],
)
def test_a_suite_of_the_shim_runs_in_its_pytest_file(source: str, stem: str) -> None:
    files = [path for path in repository.source_files((".py",)) if path.parts[0] == "tests"]
    assert changes.pytest_files_of([Path(source)], files) == [Path(f"tests/python/test_{stem}.py")]


def test_a_suite_that_changed_runs_however_long_it_takes() -> None:
    assert names("tests/allocator/engine_fuzz_test.cpp") == ["engine_fuzz_test"]


def test_more_suites_than_an_inner_loop_holds_are_counted() -> None:
    suites = {
        Path(f"tests/allocator/s{number:02}_test.cpp"): '#include "base/units.h"\n'
        for number in range(changes.SUITES_MAX + 5)
    }
    suites[Path("tests/allocator/units_test.cpp")] = ""
    found, left_out = changes.suites_of([Path("allocator/base/units.h")], suites)
    assert found[0] == "units_test"
    assert len(found) == changes.SUITES_MAX
    assert left_out == 6


def test_pytest_files_bear_the_name_of_what_changed() -> None:
    changed = [Path("python/tencache/_plan.py"), Path("python/tencache/_runtime.py")]
    assert changes.pytest_files_of(changed, PYTEST) == [PYTEST[1], PYTEST[0]]
    assert changes.pytest_files_of([Path("shim/gate_hooks.h")], PYTEST) == [PYTEST[2]]
    assert changes.pytest_files_of([PYTEST[1], Path("Makefile")], PYTEST) == [PYTEST[1]]


def test_what_is_named_is_there() -> None:
    for name in (*changes.ALWAYS, *changes._PYTEST_FILES):
        assert (changes.ROOT / name).exists(), name
    stems = (*changes._PYTEST_FILES.values(), *changes._PYTEST_FILES_OF_FOLDERS.values())
    for stem in stems:
        assert (changes.ROOT / f"tests/python/test_{stem}.py").exists(), stem
    sources = {path.stem for path in repository.source_files((".cpp",))}
    for stem, suite in changes._SUITES.items():
        assert {stem, suite} <= sources, (stem, suite)
    assert changes.is_suite(Path("tests/allocator/cuda/host_spill_test.cpp"))
    assert not changes.is_suite(Path("tests/shim/cuda_gate_test.cpp"))


def test_clang_tidy_reads_the_source_of_a_changed_header() -> None:
    changed = [Path("allocator/base/units.h"), Path("allocator/base/check.cpp"), Path("tests/a.h")]
    assert changes.sources_to_tidy(changed) == [
        Path("allocator/base/check.cpp"),
        Path("allocator/base/units.cpp"),
    ]
