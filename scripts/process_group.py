# SPDX-License-Identifier: Apache-2.0
"""Runs a program that may hang, with all that it starts, under a time limit.

The program gets a process group of its own. When its time is up, the group is first interrupted, so
that a program can say what it knows, as pytest does; then whatever is left is killed. That closes
everything that the group holds open, so the caller never waits for a grandchild. An exception in
the caller, including an interrupt from the keyboard, also ends the group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 10.0


@dataclass(frozen=True)
class Ended:
    """How the program ended; `output` holds its stdout and stderr."""

    status: int | None  # None: it exceeded its time
    output: str


def run_group(
    command: Sequence[str | Path],
    limit_s: float,
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
) -> Ended:
    """Runs the command to its end, or until its time is up.

    In the latter case the program gets an interrupt, and `patience_s` to end before it is killed.
    """
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        return Ended(process.returncode, output)
    except subprocess.TimeoutExpired:
        return Ended(None, _end(process, patience_s))
    except BaseException:
        _signal(process, signal.SIGKILL)
        raise


def _heed_interrupts() -> None:
    """Runs in the child. Shells start what runs in the background with interrupts ignored, and a
    program that inherits that may never hear of one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end(process: subprocess.Popen[str], patience_s: float) -> str:
    for number in (signal.SIGINT, signal.SIGKILL):
        _signal(process, number)
        try:
            output, _ = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            continue
        _signal(process, signal.SIGKILL)  # what closed its output may still run
        return output
    return "(it could not be ended)\n"  # a program that hangs in a driver call


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
