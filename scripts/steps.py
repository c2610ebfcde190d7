# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of a build or test; shows what each does and how long it took.

A step is one command with a title. The output of a quiet step goes to a log file under build/logs.
On a terminal its last line is shown while it runs; elsewhere a line every 20 seconds says that it
still runs. A step with `live=True` writes to this terminal itself. If a quiet step fails, the end
of its log is printed. StepFailed says that a step failed; `summary` prints what ran.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "logs"
STILL_RUNNING_S = 20.0
TAIL_LINES = 60
# Our benchmarks end with this status where they cannot run. Tests under automake do the same.
SKIPPED_STATUS = 77

_finished: list[tuple[str, float, str]] = []


class StepFailed(Exception):
    """A step ended with a status that is not 0; the message is one line for the user."""


def say(text: str) -> None:
    print(text, flush=True)


def duration(seconds: float) -> str:
    """A duration as text, e.g. "0.4 s", "12 s" or "3 min 20 s"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


class _Progress(threading.Thread):
    """Shows that a quiet step is alive, by its last line of output, until stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.last_line = ""
        self._begin = time.monotonic()
        self._on_terminal = sys.stdout.isatty()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.5 if self._on_terminal else STILL_RUNNING_S):
            elapsed = duration(time.monotonic() - self._begin)
            text = f"    {elapsed}  {self.last_line}"
            if self._on_terminal:
                width = shutil.get_terminal_size().columns - 1
                print(f"\r\033[K{text[:width]}", end="", flush=True)
            else:
                say(text[:160])

    def stop(self) -> None:
        self._over.set()
        self.join()
        if self._on_terminal:
            print("\r\033[K", end="", flush=True)


def run(
    title: str,
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    live: bool = False,
) -> None:
    """Runs one step from the root of the repository. Raises StepFailed if its status is not 0.

    A live step may end with status 77: it has said why it cannot run here, and is skipped.
    """
    say(f"==> {title}")
    begin = time.monotonic()
    words = [str(word) for word in command]
    full_environment = {**os.environ, **(environment or {})}
    try:
        if live:
            status = subprocess.run(words, cwd=ROOT, env=full_environment).returncode
        else:
            status = _run_quiet(title, words, full_environment)
    except OSError as error:
        raise StepFailed(f"{title}: {words[0]} cannot be run: {error}") from error
    seconds = time.monotonic() - begin
    skipped = live and status == SKIPPED_STATUS
    _finished.append((title, seconds, "skipped" if skipped else "FAILED" if status else "ok"))
    if skipped:
        say("    skipped")
        return
    if status != 0:
        raise StepFailed(f"{title}: status {status} from `{' '.join(words)}`")
    say(f"    done in {duration(seconds)}")


def run_all(
    chosen: Iterable[tuple[str, Sequence[str | Path]]],
    *,
    environment: Mapping[str, str] | None = None,
    live: bool = False,
) -> None:
    """Runs each step, also after one that failed; then raises StepFailed, which names those."""
    failed = []
    for title, command in chosen:
        try:
            run(title, command, environment=environment, live=live)
        except StepFailed as failure:
            say(f"FAILED: {failure}")
            failed.append(title)
    if failed:
        raise StepFailed(f"these steps failed: {'; '.join(failed)}")


def _run_quiet(title: str, words: list[str], environment: dict[str, str]) -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    log_path = LOGS / (re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-") + ".log")
    progress = _Progress()
    with (
        log_path.open("w") as log,
        subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        progress.start()
        try:
            for line in process.stdout:
                log.write(line)
                progress.last_line = line.strip() or progress.last_line
            status = process.wait()
        finally:
            progress.stop()
    if status != 0:
        lines = log_path.read_text().splitlines()
        say("\n".join(lines[-TAIL_LINES:]))
        say(f"    (whole output: {log_path.relative_to(ROOT)})")
    return status


def summary() -> None:
    """Prints what ran, how long each step took, and which failed."""
    say("")
    for title, seconds, outcome in _finished:
        say(f"  {outcome:7}  {duration(seconds):>13}  {title}")
    say(f"  total    {duration(sum(seconds for _, seconds, _ in _finished)):>13}")
