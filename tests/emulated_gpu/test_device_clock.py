# SPDX-License-Identifier: Apache-2.0
"""The clock of the emulated device.

Kernels and copies take their given time, streams say how they spent theirs, and late work is
reported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from requirement import needs_emulated_gpu

pytestmark = needs_emulated_gpu


def run(program: str, durations: Path, link: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"EMULATED_GPU_DURATIONS": str(durations), "EMULATED_GPU_LINK": link},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


TIMED_PROGRAM = """
import torch
from emulated_gpu import device_clock

spacer = torch.ones(1, device="cuda")
x = torch.ones(1 << 18, device="cuda")
host = torch.ones(1 << 22, dtype=torch.uint8, pin_memory=True)
target = torch.empty_like(host, device="cuda")
link = torch.cuda.Stream()

def event(stream=None):
    made = torch.cuda.Event(enable_timing=True)
    made.record(stream or torch.cuda.current_stream())
    return made

def step():
    spacer.zero_()
    events = [event()]
    x.add_(1)  # 20 ms
    events += [event()]
    y = x * 2  # 50 ms
    z = -y  # 2 MiB at 64 MB/s
    events += [event()]
    link.wait_event(events[0])
    with torch.cuda.stream(link):
        events += [event(link)]
        target.copy_(host, non_blocking=True)  # 4 MiB at 20 MB/s
        events += [event(link)]
    torch.cuda.current_stream().wait_event(events[-1])
    target.add_(1)
    torch.cuda.synchronize()
    return events, z

step()
device_clock.set_duration("aten::zero_", 0.3)  # until all others are queued
device_clock.reset()
(begin, added, negated, copying, copied), z = step()
times = device_clock.times()
transfer_s = x.numel() * 8 / 64e6
assert times.kernels == 5, times
if not device_clock.late():
    assert abs(times.busy_s - 0.39 - transfer_s) < 1e-6, times
if not device_clock.late() and not times.starved_s:
    assert abs(copying.elapsed_time(copied) - host.numel() / 20e6 * 1e3) < 0.001
    assert abs(begin.elapsed_time(added) - 20) < 0.001
    assert abs(added.elapsed_time(negated) - 50 - transfer_s * 1e3) < 0.001
    assert abs(times.stalled_s - max(negated.elapsed_time(copied), 0) * 1e-3) < 1e-6, times
assert bool((z == -6).all()) and bool((target == 2).all())

device_clock.set_duration("aten::mm", 1e-9)
x.view(512, 512).mm(x.view(512, 512))
torch.cuda.synchronize()
assert device_clock.late() > 0
"""


def test_a_program_takes_the_time_of_its_device(tmp_path: Path) -> None:
    durations = tmp_path / "durations"
    # `x * 2` touches 2 MiB. The first kernel keeps the device until all others are queued.
    durations.write_text("# seconds\n* 0.02\naten::mul.Tensor@2097152 0.05\naten::neg 0 64e6\n")
    done = run(TIMED_PROGRAM, durations, "20MB")
    assert done.returncode == 0, done.stderr
    assert "late works: " in done.stderr


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    durations = tmp_path / "durations"
    durations.write_text("aten::mul soon\n")
    done = run("import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)", durations, "0")
    assert done.returncode == 1
    assert "aten::mul soon" in done.stderr
