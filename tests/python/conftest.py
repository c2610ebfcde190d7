# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: fixtures that run programs in processes of their own.

tencache is enabled once a process and for good, so a test that needs a runtime starts a process:
a fresh Python (`run_python`) where the start matters, else a forked child of one that has imported
torch (`run_forked`, `run_cold`). Its environment is that of the tests without any TENCACHE
variable, so that the outcome does not depend on the user's shell.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from preforked import TIMEOUT_S, Job, PreforkedServer

Finished = subprocess.CompletedProcess[str]
FAULTS = Path(__file__).resolve().parents[1] / "soak" / "faults.cpp"
# Variables that a forked child takes as a fresh process does, besides TENCACHE_*.
LATE_VARIABLES = frozenset({"TENCACHE", "HF_HUB_OFFLINE", "PYTHONPATH"})


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without TENCACHE variables, plus `extra`.

    OpenMP's threads sleep while they wait: if they spun, they would take the cores from each other
    and from tests that run beside. This changes no bit. Inductor takes the processor's word for its
    vector instructions; otherwise each process would try them out for 20 seconds.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENCACHE")}
    ours = {"OMP_WAIT_POLICY": "PASSIVE", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    return {**kept, **ours, **(extra or {})}


def run_command(
    command: Sequence[str], *, cwd: Path | None, env: Mapping[str, str] | None = None
) -> Finished:
    """Runs a command to its end; .stdout and .stderr hold its output."""
    with subprocess.Popen(
        list(command),
        cwd=cwd,
        env=clean_environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Children that hang hold the pipes open; then we end the whole group.
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Finished(list(command), process.returncode, stdout, stderr)


def output_of(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """What a command prints on stdout; the command must end with status 0."""
    done = run_command(command, cwd=cwd, env=env)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def pytest_configure(config: pytest.Config) -> None:
    markers = (
        "slow: part of the full matrix, which runs on one version of torch",
        "any_torch: what it tests does not depend on the torch that is installed",
        "repeated: the comparison of another test at a further budget; `make test` leaves it out",
    )
    for marker in markers:
        config.addinivalue_line("markers", marker)


def write_program(path: Path, code: Sequence[str]) -> None:
    pieces = [textwrap.dedent(piece).strip("\n") for piece in code]
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")


def expect_status(done: Finished, status: int | None) -> None:
    """Asserts the exit status; None stands for any."""
    if status is not None:
        assert done.returncode == status, f"status {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., Finished]:
    """`run_python(*code, env={...})`: runs pieces of code in a fresh Python, in an empty directory.

    The program must end with `status` (None accepts any).
    """

    def run(*code: str, env: Mapping[str, str] | None = None, status: int | None = 0) -> Finished:
        program = tmp_path / "program.py"
        write_program(program, code)
        done = run_command([sys.executable, str(program)], cwd=tmp_path, env=env)
        expect_status(done, status)
        return done

    return run


@pytest.fixture(scope="session")
def preforked() -> Iterator[PreforkedServer]:
    """A server that has imported torch."""
    server = PreforkedServer("torch", clean_environment())
    yield server
    server.close()


@pytest.fixture
def run_forked(
    tmp_path: Path, preforked: PreforkedServer, run_python: Callable[..., Finished]
) -> Callable[..., Finished]:
    """Runs code as `run_python` does, without the two seconds that it takes to import torch.

    The program runs in a forked child of a process that has imported it. tencache is enabled there
    as at the end of `import torch`. Where a variable counts only when a process starts, the program
    gets a fresh Python.
    """

    def run(*code: str, env: Mapping[str, str] | None = None, status: int | None = 0) -> Finished:
        variables = dict(env or {})
        if not all(name.startswith("TENCACHE_") or name in LATE_VARIABLES for name in variables):
            return run_python(*code, env=env, status=status)
        program, output, errors = (tmp_path / name for name in ("program.py", "stdout", "stderr"))
        write_program(program, code)
        job = Job(str(program), str(tmp_path), str(output), str(errors), environment=variables)
        answer = preforked.run(job)
        stdout, stderr = (path.read_text(errors="replace") for path in (output, errors))
        output.unlink()
        errors.unlink()
        assert answer != "timeout", stdout + stderr
        done = Finished([str(program)], int(answer), stdout, stderr)
        expect_status(done, status)
        return done

    return run


# With these variables tencache is armed from the start, and roomy: tensors go cold only when the
# program asks for it, and nothing comes back that no op names.
COLD_VARIABLES = {
    "TENCACHE": "1",
    "TENCACHE_DEVICE_MEMORY": "256MiB",
    "TENCACHE_EXTENT_MIN": "64KiB",
    "TENCACHE_ARM_AT": "0.0001",
    "TENCACHE_PLAN": "off",
    "TENCACHE_QUIET": "1",
    "HF_HUB_OFFLINE": "1",
}
COLD_PRELUDE = """
    import io, os, sys
    import numpy as np
    from cold import chill, counted, is_cold, make, same, unannounced
    import tencache, torch
"""


@pytest.fixture
def run_cold(run_forked: Callable[..., Finished]) -> Callable[..., Finished]:
    """`run_cold(*code, VARIABLE=...)`: runs code under tencache with the helpers of cold.py.

    The program must end with `status`, as for `run_forked`.
    """

    def run(*code: str, status: int | None = 0, **variables: str) -> Finished:
        tests = str(Path(__file__).resolve().parent)
        path = os.pathsep.join(p for p in (tests, os.environ.get("PYTHONPATH")) if p)
        return run_forked(
            COLD_PRELUDE,
            *code,
            env={**COLD_VARIABLES, "PYTHONPATH": path, **variables},
            status=status,
        )

    return run


@pytest.fixture
def run_tencache(tmp_path: Path) -> Callable[..., Finished]:
    """`run_tencache("doctor", "--json", env={...})`: runs the command, in an empty directory."""

    def run(*arguments: str, env: Mapping[str, str] | None = None) -> Finished:
        return run_command([sys.executable, "-m", "tencache", *arguments], cwd=tmp_path, env=env)

    return run


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes a disk fail when a program asks for it (LD_PRELOAD)."""
    compiler = shutil.which("g++-12") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on this machine")
    library = tmp_path_factory.mktemp("faults") / "libfaults.so"
    options = ["-std=c++20", "-O2", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", library, FAULTS], check=True)
    return library
