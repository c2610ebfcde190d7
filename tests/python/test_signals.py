# SPDX-License-Identifier: Apache-2.0
"""Programs that handle faults themselves behave as on stock PyTorch, with tencache beside them.

Some probe addresses with a handler that leaves by siglongjmp, some ignore the signals, some block
them in a thread that works on a view. And a page that the disk does not give ends the program with
a line that says where it was.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# These tests do not depend on the installed torch.
pytestmark = pytest.mark.any_torch

Run = Callable[..., Any]

PROBE = """
#include <csetjmp>
#include <csignal>
static sigjmp_buf way_out;
static void leave(int, siginfo_t*, void*) { siglongjmp(way_out, 1); }
extern "C" void install(int number, int flags) {
  struct sigaction action = {};
  action.sa_sigaction = leave;
  action.sa_flags = SA_SIGINFO | flags;
  sigaction(number, &action, nullptr);
}
extern "C" int can_read(const volatile char* address) {
  if (sigsetjmp(way_out, 1) != 0) return 0;
  (void)*address;
  return 1;
}
"""


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    """A library that probes addresses with a handler that leaves by siglongjmp."""
    compiler = shutil.which("g++-12") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on this machine")
    source, library = tmp_path / "probe.cpp", tmp_path / "probe.so"
    source.write_text(PROBE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    ctypes.CDLL(str(library))
    return library


@pytest.mark.parametrize("when", ["before", "after"])
def test_handler_that_leaves_by_siglongjmp_serves_for_ever(
    run_cold: Run, probe: Path, when: str
) -> None:
    done = run_cold(
        f"""
        import ctypes
        probe = ctypes.CDLL({str(probe)!r})
        install = lambda: probe.install({int(signal.SIGSEGV)}, 0)
        if {when == "before"}: install()
        tensor, truth = make(1)
        chill(tensor)
        if {when == "after"}: install()
        for number in range(10):
            assert probe.can_read(None) == 0
            tensor.add_(0)
            chill(tensor)
            assert same(tensor, truth)
        print("survived")
        """
    )
    assert done.stdout == "survived\n"


def test_signals_that_are_ignored_stay_so(run_cold: Run) -> None:
    done = run_cold(
        """
        import signal
        for number in (signal.SIGSEGV, signal.SIGBUS):
            signal.signal(number, signal.SIG_IGN)
        tensor, truth = make(1)
        chill(tensor)
        assert same(tensor, truth)
        for number in (signal.SIGSEGV, signal.SIGBUS):
            os.kill(os.getpid(), number)
        chill(tensor)
        assert same(tensor, truth)
        print("survived")
        """
    )
    assert done.stdout == "survived\n"


# The thread writes one element that only it touches, as a library's helper would.
BLOCKED_WRITER = """
    import signal, threading
    from cold import _library
    pairs = [make(seed, 1 << 20) for seed in range(8)]
    views = [tensor.numpy() for tensor, _ in pairs]
    for view in views: view[:] = 0
    counts, stop = [0] * len(views), threading.Event()

    def write():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not stop.is_set():
            for place, view in enumerate(views):
                view[7] += 1
                counts[place] += 1

    writer = threading.Thread(target=write)
    writer.start()
    ROUNDS = 40
    for _ in range(ROUNDS):
        _library.tencache_evict_all()
        # The thread writes each view while it is cold, so that the fetch has something to merge.
        before = list(counts)
        while any(now <= then for now, then in zip(counts, before, strict=True)): pass
        for tensor, _ in pairs: tensor[1024:].add_(1)
    stop.set()
    writer.join()
    for view, count in zip(views, counts, strict=True):
        assert view[7] == min(count, 1 << 24), (view[7], count)
        assert (view[1024:] == ROUNDS).all()
    print("all there")
"""


def test_thread_that_blocks_every_signal_writes_through_a_view(run_cold: Run) -> None:
    done = run_cold(BLOCKED_WRITER)
    assert done.stdout == "all there\n"


# ---- Pages that the disk does not give ----------------------------------------------------------

CUT = """
    import stat
    tensor, truth = make(1)
    view = tensor.numpy()
    chill(tensor)
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        link = os.readlink(path) if os.path.lexists(path) else ""
        if link.endswith("(deleted)") and not link.startswith("/memfd:"):
            if stat.S_ISREG(os.stat(path).st_mode) and os.stat(path).st_size > 0:
                os.ftruncate(os.open(path, os.O_RDWR), 8192)
    assert view[0] == truth[0]
    print("first page", flush=True)
"""


@pytest.mark.parametrize("has_faulthandler", [False, True])
def test_lost_page_ends_the_program_with_a_line_that_says_where(
    run_cold: Run, has_faulthandler: bool
) -> None:
    done = run_cold(
        f"""
        if {has_faulthandler}:
            import faulthandler
            faulthandler.enable()
        """,
        CUT,
        "print(view[4096])",
        status=None,
    )
    assert done.returncode == -signal.SIGBUS, done
    assert done.stdout == "first page\n"
    lines = done.stderr.splitlines()
    assert "tencache: error: the spill file in /" in lines[0], done.stderr
    assert "cannot be read at file offset" in lines[0] and "--spill-dir" in lines[0]
    assert ("Fatal Python error: Bus error" in done.stderr) == has_faulthandler


def test_system_call_on_a_lost_page_raises(run_cold: Run) -> None:
    done = run_cold(
        CUT,
        """
        try:
            view.tofile("copy")
        except OSError as error:
            print(error)
        """,
    )
    assert "requested and" in done.stdout and "written" in done.stdout, done
