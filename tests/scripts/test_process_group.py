# SPDX-License-Identifier: Apache-2.0
"""Process groups: a program ends by itself, says last words, or its child ignores interrupts."""

import signal
import sys

import pytest

from process_group import Ended, run_group


def test_a_program_that_ends() -> None:
    command = [sys.executable, "-c", "import os; os.write(2, b'why\\n'); raise SystemExit(3)"]
    assert run_group(command, 60) == Ended(3, "why\n")


@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_program_that_is_late_may_say_what_it_knows(inherited: signal.Handlers) -> None:
    before = signal.signal(signal.SIGINT, inherited)
    try:
        # Five seconds are long enough for a busy machine to start the shell.
        ended = run_group(["sh", "-c", "trap 'echo so far; exit' INT; sleep 600"], 5)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == Ended(None, "so far\n")


def test_what_ignores_an_interrupt_is_killed_with_its_children() -> None:
    # The child holds the output open: this test ends only if the child does.
    ended = run_group(["sh", "-c", "trap '' INT; sleep 600 & wait"], 1, patience_s=2)
    assert ended == Ended(None, "")
