# SPDX-License-Identifier: Apache-2.0
"""The zygote: a process that has imported torch once, and forks a child for each program.

Importing torch takes seconds; a program here takes less than one. The zygote makes no tensor, runs
no op and starts no thread, and tencache is not enabled in it. A child sets its variables and calls
the entry points of torch.backends, which `import torch` calls last. From there on it is what a
fresh process would be.

Protocol: each line on stdin is a JSON object, a `Job` of zygote.py; the answer on stdout is a
`Done`. The end of stdin ends the zygote. One program runs at a time.

A program writes marks into a pipe: '.' after a step, '+' or '-' from a forked child that found
right or wrong bytes, '!' for a fault that was made. The end of the pipe says that the last process
of the program has ended, orphans included. The zygote kills the program if it is told to: after a
number of steps and a pause.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import select
import signal
import sys
import time
from typing import Any

import programs

DUMP_S = 1.0  # time to write the stacks before a program that hangs is killed
FAULTS_LIBRARY = "SOAK_FAULTS"  # the variable that names the preloaded library


def become(job: dict[str, Any], marks: int) -> None:
    """Turns this forked child into the program; returns when the program has ended."""
    os.setsid()
    log = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    faulthandler.register(signal.SIGUSR1, file=2)
    os.chdir(job["folder"])
    os.environ.update(job["environment"])

    import torch

    torch._import_device_backends()
    if job["faults"] is not None:
        make_faults(job["faults"], marks)
    programs.PROGRAMS[job["program"]](programs.Marks(marks), **job["arguments"])


def make_faults(faults: dict[str, Any], marks: int) -> None:
    library = ctypes.CDLL(os.environ[FAULTS_LIBRARY])
    numbers = [ctypes.c_uint64(faults[name]) for name in ("seed", "chance")]
    numbers += [ctypes.c_uint64(faults[name]) for name in ("skip", "most", "delay_us")]
    if library.soak_fail_disk(faults["kind"].encode(), *numbers, marks) != 0:
        raise SystemExit(f"faults.cpp knows no fault {faults['kind']}")


class Watch:
    """Reads a program's marks until its last process has ended, or its time is over."""

    def __init__(self, reader: int, timeout_s: float) -> None:
        self._reader = reader
        self._end_s = time.monotonic() + timeout_s
        self._poll = select.poll()
        self._poll.register(reader, select.POLLIN)
        self.seen = ""

    def read(self, steps: int | None = None) -> bool:
        """Reads up to this many steps, or to the end. Returns whether it came that far in time."""
        while steps is None or self.seen.count(".") < steps:
            left_s = self._end_s - time.monotonic()
            if left_s <= 0 or not self._poll.poll(1000 * left_s):
                return False
            marks = os.read(self._reader, 4096).decode()
            if not marks:
                return True
            self.seen += marks
        return True


def play(job: dict[str, Any]) -> dict[str, Any]:
    """Runs one program, in the zygote; returns what `Done` holds."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        become(job, writer)
        sys.stdout.flush()
        raise SystemExit(0)
    os.close(writer)
    watch = Watch(reader, job["timeout_s"])
    kill = job["kill"]
    in_time = True
    if kill is not None:
        in_time = watch.read(kill["steps"])
        time.sleep(kill["pause_us"] / 1e6)
        os.kill(child, signal.SIGKILL)
    in_time = watch.read() and in_time
    if not in_time:
        end_group(child)
    _, status = os.waitpid(child, 0)
    os.close(reader)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "in_time": in_time,
        "marks": watch.seen,
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def end_group(child: int) -> None:
    """Ends a program that hangs, and all that it has started; its stacks go to its output."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGUSR1)
        time.sleep(DUMP_S)
        os.killpg(child, signal.SIGKILL)


def main() -> None:
    # Without this call, a child that ends would look at all that was imported, and so copy it.
    gc.freeze()
    threads = len(os.listdir("/proc/self/task"))
    print("ready" if threads == 1 else f"{threads} threads", flush=True)
    for line in sys.stdin:
        print(json.dumps(play(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
