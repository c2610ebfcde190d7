# SPDX-License-Identifier: Apache-2.0
"""The tests' end of the preforked server (prefork.py): starts it and hands it programs.

Threads: a server runs one program at a time, so each pytest process has its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

TIMEOUT_S = 600
SERVER = Path(__file__).resolve().with_name("prefork.py")
# Variables that keep libraries from starting threads when they are imported: forked children would
# lack those threads.
NO_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's and SciPy's
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's
}


@dataclass(frozen=True)
class Job:
    """One run of a program."""

    program: str
    folder: str  # where it runs
    output: str  # the file that gets what it prints
    errors: str | None = None  # the file for its errors; None: they go to `output`
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # besides the server's
    timeout_s: int = TIMEOUT_S
    profile: str | None = None  # the file that gets the peak of its tensors


class PreforkedServer:
    """A server process, which the first program starts and close() ends."""

    def __init__(self, imports: str, environment: Mapping[str, str]) -> None:
        self._imports = imports  # which of prefork.IMPORTS it does
        self._environment = {**environment, **NO_THREADS}
        self._process: subprocess.Popen[str] | None = None
        self._can_fork = True  # known once it has started

    def run(self, job: Job) -> str:
        """The program's exit status, negative if a signal ended it, or "timeout"."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asdict(job)) + "\n")
        process.stdin.flush()
        if not self._can_fork:
            self._process = None
            return self._status_of(process)
        answer = process.stdout.readline().strip()
        if not answer:
            self._process = None
            raise RuntimeError(f"the preforked server ended with status {process.wait()}")
        return answer

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=30)
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), self._imports],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
                text=True,
            )
            assert self._process.stdout is not None
            first_line = self._process.stdout.readline().strip()
            if first_line not in ("ready", "once"):
                raise RuntimeError("the preforked server did not start")
            self._can_fork = first_line == "ready"
        return self._process

    @staticmethod
    def _status_of(process: subprocess.Popen[str]) -> str:
        """The exit status of a server that became its program."""
        with process:
            try:
                return str(process.wait(TIMEOUT_S))
            except subprocess.TimeoutExpired:
                process.kill()
                return "timeout"
