# SPDX-License-Identifier: Apache-2.0
"""Runs the ranks of a program of several processes, which find each other by themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_processes(
    arguments: Sequence[Sequence[str | Path]],
    cwd: Path,
    environment: Mapping[str, str],
    timeout_s: float,
) -> tuple[list[int], list[str]]:
    """Runs Python with each rank's arguments, all at once; returns exit statuses and outputs.

    No rank is left running.
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, *of_rank],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for of_rank in arguments
    ]
    try:
        outputs = [rank.communicate(timeout=timeout_s)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [rank.returncode for rank in ranks], outputs
