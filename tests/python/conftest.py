# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: programs run in processes of their own.

tencache is enabled once a process and for good, so a test that needs a runtime starts a fresh
Python. Its environment is that of the tests without any TENCACHE variable, so that the outcome does
not depend on the shell that runs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

Finished = subprocess.CompletedProcess[str]
TIMEOUT_S = 300


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without TENCACHE variables, and with `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENCACHE")}
    return {**kept, **(extra or {})}


def run_command(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> Finished:
    """Runs a command to its end; its output is in .stdout and .stderr."""
    return subprocess.run(
        list(command),
        cwd=cwd,
        env=clean_environment(env),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", 'slow: part of the full matrix; -m "not slow" is the smaller selection'
    )


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., Finished]:
    """`run_python(code, env={...})`: runs code in a fresh Python, in an empty directory."""

    def run(code: str, env: Mapping[str, str] | None = None, status: int | None = 0) -> Finished:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(code), encoding="utf-8")
        done = run_command([sys.executable, str(program)], cwd=tmp_path, env=env)
        if status is not None:
            assert done.returncode == status, (
                f"status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    return run


@pytest.fixture
def run_tencache(tmp_path: Path) -> Callable[..., Finished]:
    """`run_tencache("doctor", "--json", env={...})`: runs the command, in an empty directory."""

    def run(*arguments: str, env: Mapping[str, str] | None = None) -> Finished:
        return run_command([sys.executable, "-m", "tencache", *arguments], cwd=tmp_path, env=env)

    return run
