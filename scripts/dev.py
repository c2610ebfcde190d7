#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tasks of `make`: from a fresh clone to a built, tested or demonstrated tencache.

Each task first installs and builds what it needs (system packages, virtual environment, build),
which takes a moment if it is there already. `test` goes on after a part that failed, so that one
run shows all failures, and ends with a table of its steps.

Usage: dev.py TASK [arguments: of pytest, for test-gpu and test-python, and for both with -2.15; of
tests/soak/run.py, for soak]
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aarch64
import changes
import steps
import wheels
from environment import (
    BENCHMARK_PACKAGES,
    BUILD_PACKAGES,
    MAIN,
    NEWEST_TORCH,
    SUITE_BYTES,
    TEST_BYTES,
    TEST_PACKAGES,
    VirtualEnvironment,
    build_cpp_example,
    build_emulated_gpu,
    build_environment,
    build_shim_suites,
    clean_variables,
    configure_shim_for_tidy,
    install_package,
    install_system_packages,
    jobs,
    prepare,
)
from repository import CPP_SUFFIXES, source_files
from steps import ROOT, StepFailed, run, say

SCRIPTS = ROOT / "scripts"
EMULATED_GPU = ROOT / "tests" / "emulated_gpu" / "run"  # runs a command there
SHORT = "not slow and not any_torch"  # selects from tests/python
ONCE = "not repeated"  # selects from all tests, for the oldest torch
# This selects two of the seven runs of each program (50-plain and 25-chaos), and all other tests
# named here. All seven runs take five minutes on two cores.
SHORT_ON_EMULATED_GPU = (
    "emulated_gpu or frameworks or gpu_run or memory_functions or pinned or announces "
    "or 50-plain or 25-chaos"
)
# The folders of sources that clang-tidy reads, by the build that compiles them.
EVERY_SOURCE = {"core": ("allocator", "guard", "preload"), "shim": ("shim",)}
# What may depend on the version, for the newest torch: its memory interfaces, the doors, operators
# in small programs, graphs, NCCL's process groups, and one program that trains.
NEWEST_ON_EMULATED_GPU = (
    "memory_functions or doors or operator_programs or nobody_keeps or fsdp2 or trees_of_graphs "
    "or decoder_gpt2-50-plain"
)
SOAK_SEED = "2026"  # of the short round, so that a change is compared with what was there before
SLOWEST = ("--durations", "15")  # shown at the end of a whole run
BUILD_SITE: tuple[str, Sequence[str | Path]] = (
    "Build the site of documents",
    [MAIN.python, SCRIPTS / "docs_site.py"],
)
CTEST = ("ctest", "--progress") if sys.stdout.isatty() else ("ctest",)


def ready(environment: VirtualEnvironment, packages: tuple[str, ...] = ()) -> None:
    """Installs the system packages and the virtual environment; builds nothing."""
    install_system_packages((*BUILD_PACKAGES, *packages))
    prepare(MAIN)
    if environment is not MAIN:
        prepare(environment)


def docs() -> None:
    """Builds the site of documents; `make lint` does the same."""
    install_system_packages(())
    prepare(MAIN)
    title, command = BUILD_SITE
    run(title, command)
    say(
        "open build/docs/site/index.html; for the search: python3 -m http.server -d build/docs/site"
    )


def build() -> None:
    ready(MAIN)
    install_package(MAIN)
    say("tencache is built: .venv/bin/tencache --help")


def demo() -> None:
    ready(MAIN)
    install_package(MAIN)
    run(
        "Demonstration", [MAIN.python, "examples/demo.py"], environment=clean_variables(), live=True
    )


def demo_cuda() -> None:
    ready(MAIN)
    install_package(MAIN)
    say("An emulated GPU runs on the CPU: the bits of this demonstration count, its times do not.")
    command: list[str | Path] = [EMULATED_GPU, "--", MAIN.python, "examples/demo.py", "--cuda"]
    run("Demonstration on an emulated GPU", command, environment=clean_variables(), live=True)


def test_aarch64() -> None:
    """Compiles the core for aarch64, and runs the suites that can run under qemu."""
    aarch64.expect_usable_machine()
    ready(MAIN, (*TEST_PACKAGES, *aarch64.PACKAGES))
    aarch64.unpack_libraries()
    core_preset("aarch64", variables={"GTEST_FILTER": aarch64.filter_of_tests()})


def whole_wheel() -> None:
    ready(MAIN)
    path = wheels.build()
    say(f"pip install {path.relative_to(ROOT)}")


def wheel_of_environments() -> None:
    """Builds and checks a wheel for the torches of both virtual environments.

    These torches are here already, and ccache has most of the objects. `make test-wheel` takes
    every torch.
    """
    ready(NEWEST_TORCH)
    minors = [each.torch.removeprefix("torch-") for each in (MAIN, NEWEST_TORCH)]
    wheels.build(minors, wheels.PARTIAL)


def test_wheel() -> None:
    """Builds the whole wheel, and tries it with the oldest, a middle and the newest torch."""
    ready(NEWEST_TORCH)
    minors = wheels.MINORS
    wheels.try_out(wheels.build(), (minors[0], minors[len(minors) // 2], minors[-1]))
    steps.summary()


def variables_of_suites() -> dict[str, str]:
    """The variables of programs under test, and how many suites ctest runs at once."""
    count = jobs(SUITE_BYTES, more_than_cores=1)
    return clean_variables() | {"CTEST_PARALLEL_LEVEL": str(count)}


def core_preset(
    preset: str,
    targets: Sequence[str] = ("all",),
    selection: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> None:
    """Configures a preset of the core, builds the targets and runs the suites.

    `selection` holds arguments of ctest that choose suites; without any, ctest runs them all. The
    suites get `variables` in their environment.
    """
    ready(MAIN, TEST_PACKAGES)
    environment = build_environment()
    run(f"Configure the core ({preset})", ["cmake", "--preset", preset], environment=environment)
    run(
        f"Build the core ({preset})",
        ["cmake", "--build", "--preset", preset, "--target", *targets],
        environment=environment,
    )
    run(
        f"Suites of the core ({preset})",
        [*CTEST, "--preset", preset, *selection],
        environment=environment | variables_of_suites() | dict(variables or {}),
        live=True,
    )


def optimised_core() -> None:
    """Runs the suites that tell more without a sanitizer, and builds the benchmarks.

    `make test-core` runs all suites.
    """
    core_preset(
        "release", ("optimised_suites", "benchmark_programs"), ("--label-regex", "optimised")
    )


def test_python(
    environment: VirtualEnvironment, *arguments: str, variables: Mapping[str, str] | None = None
) -> None:
    ready(environment, TEST_PACKAGES)
    install_package(environment)
    build_shim_suites(environment)
    if environment is MAIN:  # what the example tests does not depend on the version
        build_cpp_example(environment)
    run(
        f"Tests of the package and the scripts on {environment.torch}",
        [environment.python, "-m", "pytest", *arguments],
        environment=clean_variables() | dict(variables or {}),
        live=True,
    )


def test_gpu(environment: VirtualEnvironment, *arguments: str) -> None:
    """Runs the tests that need a GPU on an emulated one, so that no machine needs a GPU."""
    ready(environment, TEST_PACKAGES)
    install_package(environment)
    if environment is MAIN:
        build_cpp_example(environment)
    version = environment.torch.removeprefix("torch-")
    pytest = (environment.python, "-m", "pytest", "tests/emulated_gpu", "tests/gpu")
    run(
        f"Tests on an emulated GPU on {environment.torch}",
        [EMULATED_GPU, "--torch", version, "--", *pytest, *arguments],
        environment=clean_variables(),
        live=True,
    )


def short_gpu_tests() -> None:
    """Runs the GPU tests that every change must pass; `make test-gpu` has more runs a program."""
    test_gpu(MAIN, "-k", SHORT_ON_EMULATED_GPU, *in_processes(), *SLOWEST)


def gpu_tests_of_the_version() -> None:
    """Runs a part of the GPU tests on the newest torch; `make test-gpu-2.15` runs everything."""
    test_gpu(NEWEST_TORCH, "-k", NEWEST_ON_EMULATED_GPU, *in_processes(), *SLOWEST)


def in_processes() -> tuple[str, ...]:
    """Arguments of pytest that run as many tests at once as fit.

    Most of a test's time is a single thread that imports torch.
    """
    count = jobs(TEST_BYTES, more_than_cores=1)
    return ("--numprocesses", str(count), "--dist", "loadgroup") if count > 1 else ()


def every_python_test() -> None:
    """Runs the tests on the oldest torch, without repeated ones, with one OpenMP thread a process.

    More threads would only take cores from each other. The newest torch runs its tests with one a
    core.
    """
    test_python(MAIN, "-m", ONCE, *in_processes(), *SLOWEST, variables={"OMP_NUM_THREADS": "1"})


def python_tests_of_the_version() -> None:
    """Runs on the newest torch only what may depend on the version, without the slow tests."""
    test_python(NEWEST_TORCH, "tests/python", "-m", SHORT, *in_processes(), *SLOWEST)


def chosen_tests(environment: VirtualEnvironment, arguments: Sequence[str]) -> None:
    """Runs the Python tests: with a developer's arguments in one process, else in several.

    The arguments may ask for output or a debugger.
    """
    test_python(environment, *(arguments or in_processes()))


def cpp_files() -> list[str]:
    return [str(path) for path in source_files(CPP_SUFFIXES)]


def github_checks() -> list[tuple[str, Sequence[str | Path]]]:
    """Checks of the files that GitHub reads: against its schemas, and for risky workflows."""
    github, programs = ROOT / ".github", MAIN.folder / "bin"
    forms = sorted(path for path in (github / "ISSUE_TEMPLATE").iterdir() if path.stem != "config")
    files = {
        "workflows": sorted((github / "workflows").iterdir()),
        "issue-forms": forms,
        "issue-config": [github / "ISSUE_TEMPLATE" / "config.yml"],
    }
    checks: list[tuple[str, Sequence[str | Path]]] = [
        (
            f"Check GitHub's files ({name})",
            [programs / "check-jsonschema", "--builtin-schema", f"vendor.github-{name}", *paths],
        )
        for name, paths in files.items()
    ]
    zizmor: list[str | Path] = [programs / "zizmor", "--offline", "--no-progress", github]
    return [*checks, ("Check GitHub's files (zizmor)", zizmor)]


def packaging_checks() -> list[tuple[str, Sequence[str | Path]]]:
    """Checks of the files that make a container's image and a conda package from the wheel."""
    hadolint = MAIN.folder / "bin" / "hadolint"
    return [
        ("Check the Dockerfile (hadolint)", [hadolint, ROOT / "Dockerfile"]),
        ("Check the conda recipe", [MAIN.python, SCRIPTS / "check_recipe.py"]),
    ]


def lint(sources: Mapping[str, Sequence[str]] = EVERY_SOURCE) -> None:
    """Runs every check, even after one has found something.

    clang-tidy reads `sources`: lists of paths by the build that compiles them.
    """
    ready(MAIN, TEST_PACKAGES)
    python, ruff, tidy = MAIN.python, MAIN.folder / "bin" / "ruff", SCRIPTS / "run_clang_tidy.py"
    variables = build_environment()
    run("Configure the core (clang)", ["cmake", "--preset", "clang"], environment=variables)
    database = {"core": ROOT / "build" / "clang", "shim": configure_shim_for_tidy()}
    checks: list[tuple[str, Sequence[str | Path]]] = [
        ("Check the layers", [python, SCRIPTS / "check_layers.py"]),
        ("Check the rules of the house", [python, SCRIPTS / "check_style.py"]),
        ("Check the format of C++", ["clang-format-14", "--dry-run", "-Werror", *cpp_files()]),
        ("Check Python (ruff)", [ruff, "check", "--no-fix", "--output-format", "concise", "."]),
        ("Check the format of Python (ruff)", [ruff, "format", "--check", "."]),
        ("Check the types of Python (mypy)", [MAIN.folder / "bin" / "mypy"]),
        *github_checks(),
        *packaging_checks(),
        BUILD_SITE,
    ]
    for name, paths in sources.items():
        if paths:
            checks.append(
                (f"Check the {name} (clang-tidy)", [python, tidy, database[name], *paths])
            )
    steps.run_all(checks, environment=variables)


def check() -> None:
    """Runs the lints, and the fast tests of what changed."""
    changed = changes.changed_files()
    say("changed: " + (" ".join(map(str, changed)) or "nothing"))
    tidied = changes.sources_to_tidy(changed)
    lint(
        {
            "core": [str(path) for path in tidied if path.parts[0] != "shim"],
            "shim": [str(path) for path in tidied if path.parts[0] == "shim"],
        }
    )
    texts = {path: (ROOT / path).read_text() for path in source_files() if changes.is_suite(path)}
    suites, left_out = changes.suites_of(changed, texts)
    if suites:
        build_and_run_suites(suites)
    if left_out:
        say(f"    {left_out} more suites include what changed: make test-core")
    install_package(MAIN)
    files = [str(path) for path in changes.pytest_files_of(changed, source_files((".py",)))]
    if any("shim_cuda" in name or "self_test" in name for name in files):
        build_shim_suites(MAIN)
    if any("test_cpp" in name for name in files):
        build_cpp_example(MAIN)
    run(
        "Quick tests of the package and the scripts",
        [MAIN.python, "-m", "pytest", *in_processes(), *changes.ALWAYS, *files, "-m", "not slow"],
        environment=clean_variables() | {"OMP_NUM_THREADS": "1"},
        live=True,
    )
    steps.summary()


def build_and_run_suites(suites: Sequence[str]) -> None:
    """Builds and runs these suites of the core, optimised."""
    variables = build_environment()
    build = ["cmake", "--build", "--preset", "release", "--target", *suites]
    run("Configure the core (release)", ["cmake", "--preset", "release"], environment=variables)
    run(f"Build {len(suites)} suites of the core", build, environment=variables)
    run(
        "Suites of what changed",
        [*CTEST, "--preset", "release", "--tests-regex", f"^({'|'.join(suites)})$"],
        environment=variables | variables_of_suites(),
        live=True,
    )


def format_sources() -> None:
    """Formats the sources with clang-format and ruff."""
    ready(MAIN, TEST_PACKAGES)
    ruff = MAIN.folder / "bin" / "ruff"
    run("Format C++", ["clang-format-14", "-i", *cpp_files()])
    run("Sort imports and mend what ruff can", [ruff, "check", "--fix-only", "--quiet", "."])
    run("Format Python", [ruff, "format", "--quiet", "."])


def bench() -> None:
    """Runs every benchmark: each program in benchmarks/ whose text says how to run it."""
    ready(MAIN, BENCHMARK_PACKAGES)
    install_package(MAIN)
    benchmarks: list[tuple[str, Sequence[str | Path]]] = [
        (f"Benchmark {program.stem}", [MAIN.python, program])
        for program in sorted((ROOT / "benchmarks").glob("*.py"))
        if f"python benchmarks/{program.name}" in program.read_text()
    ]
    try:
        steps.run_all(benchmarks, environment=build_environment() | clean_variables(), live=True)
    finally:
        steps.summary()


def mutations() -> None:
    """Breaks one line of tencache at a time, and checks that a program notices."""
    ready(MAIN)
    program = ROOT / "tests" / "emulated_gpu" / "mutations" / "run.py"
    run("Mutations", [MAIN.python, program], environment=clean_variables(), live=True)


def soak(*arguments: str) -> None:
    """Runs the soaks: a short round of each with one seed, or what the arguments ask for."""
    ready(MAIN)
    install_package(MAIN)
    build_emulated_gpu(MAIN)
    run(
        "Soaks",
        [MAIN.python, "tests/soak/run.py", *(arguments or ("--seed", SOAK_SEED))],
        environment=build_environment() | clean_variables(),
        live=True,
    )


def clean() -> None:
    """Removes what was built; the virtual environments stay."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    say("build/ is removed; .venv and .venv-2.15 stay (rm -r them to start anew)")


TEST_PARTS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("lint", lint),
    ("test-core", optimised_core),
    ("test-asan-ubsan", lambda: core_preset("asan-ubsan")),
    ("test-tsan", lambda: core_preset("tsan")),
    ("test-gpu", short_gpu_tests),
    ("check-wheel", wheel_of_environments),
    ("test-python-2.15", python_tests_of_the_version),
    ("test-gpu-2.15", gpu_tests_of_the_version),
    ("test-python", every_python_test),
    ("soak", soak),
)


def test() -> None:
    """Runs every part of TEST_PARTS; raises StepFailed at the end if one of them failed."""
    # All parts need this: a failure here ends the run.
    ready(NEWEST_TORCH, TEST_PACKAGES)
    failed = []
    for name, part in TEST_PARTS:
        try:
            part()
        except StepFailed as failure:
            say(f"FAILED: {failure}")
            failed.append(name)
    steps.summary()
    if failed:
        raise StepFailed(f"these parts failed; run each alone with make: {' '.join(failed)}")
    say("all parts passed")


def main(arguments: list[str]) -> int:
    tasks: dict[str, Callable[[], None]] = {
        "build": build,
        "check": check,
        "demo": demo,
        "demo-cuda": demo_cuda,
        "docs": docs,
        "test": test,
        "format": format_sources,
        "bench": bench,
        "mutations": mutations,
        "clean": clean,
        **dict(TEST_PARTS),
        "wheel": whole_wheel,
        "test-wheel": test_wheel,
        "soak": lambda: soak(*arguments[1:]),
        "test-aarch64": test_aarch64,
        "test-core": lambda: core_preset("release"),
        "test-gpu": lambda: test_gpu(MAIN, *(arguments[1:] or in_processes())),
        "test-gpu-2.15": lambda: test_gpu(NEWEST_TORCH, *(arguments[1:] or in_processes())),
        "test-python": lambda: chosen_tests(MAIN, arguments[1:]),
        "test-python-2.15": lambda: chosen_tests(NEWEST_TORCH, arguments[1:]),
    }
    if not arguments or arguments[0] not in tasks:
        print(__doc__, f"Tasks: {', '.join(tasks)}", sep="\n")
        return 2
    try:
        tasks[arguments[0]]()
    except StepFailed as failure:
        print(f"\nmake {arguments[0]}: {failure}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent.parent)
    sys.exit(main(sys.argv[1:]))
