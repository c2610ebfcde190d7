# SPDX-License-Identifier: Apache-2.0
"""The runner's end of the zygote: starts it, hands it programs, and knows what stock prints."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
EMULATED_GPU = ROOT / "tests" / "emulated_gpu" / "run"
TIMEOUT_S = 120  # nothing here takes a tenth of it; what exceeds it hangs


@dataclass(frozen=True)
class Kill:
    """SIGKILL, this long after this many steps."""

    steps: int
    pause_us: int


@dataclass(frozen=True)
class Faults:
    """Which calls of the disk fail: `chance` in 10,000, after `skip` that go well."""

    kind: str
    seed: int
    chance: int
    skip: int
    most: int
    delay_us: int = 0


@dataclass(frozen=True)
class Job:
    """One run of a program of programs.py."""

    program: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    kill: Kill | None = None
    faults: Faults | None = None
    timeout_s: float = TIMEOUT_S


@dataclass(frozen=True)
class Done:
    """How a program ended. `status` is negative if a signal ended it."""

    status: int
    in_time: bool
    marks: str
    descriptors: int  # open in the zygote
    output: str

    def lines(self, word: str) -> list[str]:
        """What follows this word in the lines that begin with it."""
        found = [line.partition(" ") for line in self.output.splitlines()]
        return [rest for first, _, rest in found if first == word]


class Zygote:
    """One process with torch in it; `backend` decides whether it sees an emulated GPU."""

    def __init__(self, backend: str, faults_library: Path, work: Path) -> None:
        self.backend = backend
        self._work = work
        self._digests: dict[str, str] = {}
        kept = {name: value for name, value in os.environ.items() if "TENCACHE" not in name}
        preloaded = [str(faults_library), *filter(None, [os.environ.get("LD_PRELOAD")])]
        environment = kept | {
            "LD_PRELOAD": " ".join(preloaded),
            "SOAK_FAULTS": str(faults_library),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, str(HERE / "zygote_server.py")]
        if backend == "cuda":
            command = [str(EMULATED_GPU), "--", *command]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        first_line = self._answer()
        if first_line != "ready":
            raise RuntimeError(f"the zygote for {backend} cannot fork programs: {first_line}")

    def run(self, job: Job) -> Done:
        with tempfile.TemporaryDirectory(dir=self._work) as name:
            output = Path(name) / "output"
            asked = dataclasses.asdict(job) | {"folder": name, "output": str(output)}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._answer())
            text = output.read_text(errors="replace") if output.exists() else ""
            return Done(**answer, output=text)

    def digest(self, job: Job) -> str:
        """What stock prints for the program: its digest."""
        key = json.dumps([job.program, dict(job.arguments)])
        if key not in self._digests:
            done = self.run(Job(job.program, job.arguments, timeout_s=job.timeout_s))
            digests = done.lines("DIGEST")
            if done.status != 0 or len(digests) != 1:
                raise RuntimeError(f"{job.program} fails on stock PyTorch:\n{done.output}")
            self._digests[key] = digests[0]
        return self._digests[key]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the zygote ended with status {self._process.wait()}")
        return line.strip()
