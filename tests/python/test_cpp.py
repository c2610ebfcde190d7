# SPDX-License-Identifier: Apache-2.0
"""C++ programs that link libtorch: examples/cpp, which `scripts/dev.py` builds as a user does, and
programs whose torch is a stand-in.

The training loop gives the bits that it gives without tencache, whether the program asks for it,
is started by the launcher or is preloaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Finished, run_command

from environment import MAIN, cpp_example_folder
from tencache import _library

pytestmark = [
    pytest.mark.any_torch,
    pytest.mark.skipif(
        Path(sys.prefix).resolve() != MAIN.folder.resolve(),
        reason="the example is built for the torch of .venv",
    ),
]

FOLDER = cpp_example_folder(MAIN)
PLAIN, ASKS = FOLDER / "plain", FOLDER / "asks"
PRELOADED = {"LD_PRELOAD": str(_library.preload_path())}
# The loop's tensors take 128 MiB.
FITS_MIB, HALF_MIB = 512, 72
HALF = {"TENCACHE_DEVICE_MEMORY": f"{HALF_MIB}MiB"}


def run_example(folder: Path, *command: str | Path, status: int = 0, **variables: str) -> Finished:
    assert ASKS.exists(), f"{ASKS} is not built; run `make test-python`, which builds it"
    environment = {"OMP_NUM_THREADS": "1", **variables}
    done = run_command([str(word) for word in command], cwd=folder, env=environment)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = run_example(tmp_path_factory.mktemp("stock"), PLAIN)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("budget_mib", [FITS_MIB, HALF_MIB], ids=["fits", "half"])
@pytest.mark.parametrize("way", ["preload", "launcher", "asks"])
def test_the_loop_trains_under_its_budget(
    stock: str, tmp_path: Path, way: str, budget_mib: int
) -> None:
    budget = f"{budget_mib}MiB"
    launcher = [sys.executable, "-m", "tencache", "run", "--device-memory", budget, "--"]
    command, variables = {
        "preload": ([PLAIN], {**PRELOADED, "TENCACHE_DEVICE_MEMORY": budget}),
        "launcher": ([*launcher, PLAIN], {}),
        "asks": ([ASKS, budget], {}),
    }[way]
    done = run_example(tmp_path, *command, TENCACHE_STATS="stats.json", **variables)
    assert done.stdout == stock
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["over_budget"]["events"] == 0
    assert stats["peak"]["device"] <= budget_mib << 20
    assert (stats["bytes"]["fetched"] > 0) == (budget_mib == HALF_MIB)
    assert f"of a budget of {budget_mib}" in done.stderr


def test_the_files_of_a_run_are_those_that_python_programs_write(
    tmp_path: Path, run_tencache: Callable[..., Finished]
) -> None:
    files = {f"TENCACHE_{name.upper()}": f"{name}.json" for name in ("stats", "trace", "record")}
    ranks = {"RANK": "1", "WORLD_SIZE": "2"}
    run_example(tmp_path, ASKS, f"{HALF_MIB}MiB", **files, **ranks)
    stats = json.loads((tmp_path / "stats.rank1.json").read_text())
    assert stats["rank"] == 1
    assert stats["program"] == str(ASKS)
    assert stats["versions"].keys() == {"tencache", "torch"}
    assert stats["options"]["device_memory"] == f"{HALF_MIB}MiB"
    assert stats["files"] == {
        name: str(tmp_path / f"{name}.rank1.json") for name in ("trace", "record")
    }
    assert stats["history"]
    for command in (
        ["stats", "stats.rank1.json"],
        ["trace", "dump", "--limit", "1", "trace.rank1.json"],
        ["plan", "record.rank1.json"],
        ["report", "stats.rank1.json"],
    ):
        done = run_tencache(*command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"TENCACHE_STATS": "/nowhere/run.json"}, ["stats", "/nowhere/run.json"]),
        (
            {"TENCACHE_STATS": "out", "TENCACHE_RECORD": "./out"},
            ["Option record", "/out is also the file of the option stats"],
        ),
        ({"TENCACHE_LEARN_FROM": "period.jsonl"}, ["learn_from", "period.jsonl"]),
        ({"TENCACHE_BACKEND": "cuda"}, ["backend=cuda", "torch sees no GPU"]),
        ({"TENCACHE_DEVICE_MEMORY": "much"}, ["device_memory", "much"]),
        ({"TENCACHE": "perhaps"}, ["neither yes nor no"]),
    ],
)
def test_what_cannot_be_served_ends_the_program(
    tmp_path: Path, variables: dict[str, str], told: list[str]
) -> None:
    done = run_example(tmp_path, PLAIN, status=2, **PRELOADED, **{**HALF, **variables})
    assert done.stdout == ""
    assert "TENCACHE=0" in done.stderr
    for text in told:
        assert text in done.stderr


def test_a_program_that_asks_may_be_preloaded_too(tmp_path: Path, stock: str) -> None:
    done = run_example(tmp_path, ASKS, f"{HALF_MIB}MiB", **PRELOADED, **HALF)
    assert done.stdout == stock
    other = run_example(tmp_path, ASKS, "80MiB", status=2, **PRELOADED, **HALF)
    assert "already enabled with device_memory" in other.stderr


# ---- other libtorches --------------------------------------------------------------------------


def build(folder: Path, name: str, code: str, *flags: str | Path) -> Path:
    source, made = folder / f"{name}.cpp", folder / name
    source.write_text(code, encoding="utf-8")
    subprocess.run(["g++", "-o", made, source, *flags], check=True)
    return made


def test_a_libtorch_of_another_layout_is_refused(tmp_path: Path) -> None:
    answer = build(
        tmp_path,
        "answer.so",
        'extern "C" int aoti_torch_get_data_ptr(void*, void** address) {\n'
        "  *address = nullptr;\n  return 0;\n}\n",
        "-shared",
        "-fPIC",
    )
    preloaded = {"LD_PRELOAD": f"{answer}:{PRELOADED['LD_PRELOAD']}"}
    done = run_example(tmp_path, PLAIN, status=2, **preloaded, **HALF)
    assert done.stdout == ""
    assert "members of c10::StorageImpl lie elsewhere" in done.stderr


def program_with_libtorch(folder: Path, code: str) -> Path:
    """A program that prints "main", linked with a libtorch that has only this code."""
    soname = "libtorch_cpu.so"
    functions = f'extern "C" {{\n{code}\n}}\n'
    torch = build(folder, soname, functions, "-shared", "-fPIC", f"-Wl,-soname,{soname}")
    main = '#include <cstdio>\nint main() { std::puts("main"); }\n'
    return build(folder, "program", main, "-Wl,--no-as-needed", torch, f"-Wl,-rpath,{folder}")


def test_a_program_that_cannot_be_served_runs_when_tencache_is_switched_off(tmp_path: Path) -> None:
    program = program_with_libtorch(tmp_path, "")
    done = run_command([str(program)], cwd=tmp_path, env=PRELOADED)
    assert (done.returncode, done.stdout) == (2, "")
    assert "too old" in done.stderr
    off = run_command([str(program)], cwd=tmp_path, env={**PRELOADED, "TENCACHE": "0"})
    assert (off.returncode, off.stdout, off.stderr) == (0, "main\n", "")


def test_cmake_is_told_where_the_package_is(run_tencache: Callable[..., Finished]) -> None:
    done = run_tencache("cmake-dir")
    assert done.returncode == 0
    folder = Path(done.stdout.strip())
    assert (folder / "tencacheConfig.cmake").exists()
    assert (folder.parent / "include" / "tencache.h").exists()
