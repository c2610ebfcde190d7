# SPDX-License-Identifier: Apache-2.0
"""Finds the processes that run under tencache, and reads their counters while they run.

Each process publishes a page of memory a few times a second (allocator/abi/live_page.h). The page
is a memfd, which the process's descriptors in /proc show to its user and to root. Nothing is asked
of the process, and no page is left when the process is gone. A page is read until its sequence says
that nobody wrote meanwhile. The page belongs to the process that has the page's start time: forked
children inherit the descriptor. Threads: any; nothing here keeps state.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tencache._autoload import what_runs
from tencache._library import TencacheError

_NAME = "/memfd:tencache-live"
_MAGIC, _VERSION = int.from_bytes(b"tencache", "little"), 1
_ENGINES_MAX = 16
_READ_TRIES = 1000
_PROC = Path("/proc")
# The code that multiprocessing has a worker run, or the server that forks workers.
_WORKER = re.compile(r"from multiprocessing\.(spawn|forkserver) import \w+; ")

_COUNTERS = (
    "ordinal",
    "device_budget",
    "device_used",
    "live",
    "cached",
    "host_budget",
    "host_used",
    "disk_budget",
    "disk_used",
    "evicted",
    "fetched",
    "clean_dropped",
    "disk_written",
    "disk_read",
    "early_fetches",
    "late_fetches",
    "wasted_fetches",
    "stall_ns",
    "thread_wait_ns",
    "over_budget_events",
    "ops",
    "steps",
)


class _EngineStruct(ctypes.Structure):
    """LiveEngine of allocator/abi/live_page.h."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in _COUNTERS)


class _PageStruct(ctypes.Structure):
    """LivePage of allocator/abi/live_page.h."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint64),
        ("sequence", ctypes.c_uint64),
        ("start_ticks", ctypes.c_uint64),
        ("rank_plus_1", ctypes.c_uint64),
        ("started_ns", ctypes.c_uint64),
        ("sampled_ns", ctypes.c_uint64),
        ("is_armed", ctypes.c_uint64),
        ("engine_count", ctypes.c_uint64),
        ("engines", _EngineStruct * _ENGINES_MAX),
    )


@dataclass(frozen=True)
class LiveEngine:
    """One engine's counters, by the names of the page; `gpu` is None on the cpu backend."""

    gpu: int | None
    counters: dict[str, int]


@dataclass(frozen=True)
class LiveProcess:
    """What one process published last."""

    pid: int
    rank: int | None
    user: str
    program: str  # a short name of what it runs
    command: str
    age_s: float  # since tencache started, when this was published
    is_armed: bool
    engines: tuple[LiveEngine, ...]


def processes(pid: int | None = None) -> list[LiveProcess]:
    """All processes that may be looked at, by rank and pid; or the one with that pid.

    Raises TencacheError if that one does not exist, may not be looked at, or does not run under
    tencache.
    """
    if pid is not None:
        return [_the_one(pid)]
    found = []
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                found += _read(int(folder.name))
            except OSError:
                continue  # It is another user's, or has just ended.
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def _the_one(pid: int) -> LiveProcess:
    try:
        found = _read(pid)
    except FileNotFoundError as error:
        raise TencacheError(
            f"there is no process {pid}. `tencache top` without a number shows all that run under "
            "tencache."
        ) from error
    except OSError as error:
        raise TencacheError(
            f"process {pid} may not be looked at: {error.strerror}. Run `tencache top` as its user."
        ) from error
    if not found:
        raise TencacheError(
            f"process {pid} does not run under tencache, or has ended, or does not publish its "
            "counters. Start it with `tencache run -- …`; `tencache top` without a number shows "
            "all that do."
        )
    return found[0]


def _read(pid: int) -> list[LiveProcess]:
    """The process if it has a page of its own; raises OSError if it may not be looked at."""
    start_ticks = int(_stat(pid)[19])
    for path in _pages(pid):
        page = _whole_page(path)
        if page is not None and page.start_ticks == start_ticks:
            return [_describe(pid, page)]
    return []


def _pages(pid: int) -> Iterator[Path]:
    for entry in os.scandir(_PROC / str(pid) / "fd"):
        try:
            if os.readlink(entry.path).startswith(_NAME):
                yield Path(entry.path)
        except FileNotFoundError:
            continue  # It was closed meanwhile.


def _whole_page(path: Path) -> _PageStruct | None:
    """A page that was not being written while it was read; None if it is of another kind."""
    with path.open("rb", buffering=0) as file:
        for _ in range(_READ_TRIES):
            content = os.pread(file.fileno(), ctypes.sizeof(_PageStruct), 0)
            again = os.pread(file.fileno(), ctypes.sizeof(_PageStruct), 0)
            if len(content) != ctypes.sizeof(_PageStruct):
                return None
            page = _PageStruct.from_buffer_copy(content)
            if page.magic != _MAGIC or page.version != _VERSION:
                return None
            sequence = _PageStruct.from_buffer_copy(again).sequence
            if page.sequence % 2 == 0 and page.sequence == sequence:
                return page
    return None


def _describe(pid: int, page: _PageStruct) -> LiveProcess:
    words = _command(pid)
    engines = []
    for engine in page.engines[: min(page.engine_count, _ENGINES_MAX)]:
        counters = {name: int(getattr(engine, name)) for name in _COUNTERS}
        ordinal = counters.pop("ordinal")
        engines.append(LiveEngine(None if ordinal >> 63 else ordinal, counters))
    return LiveProcess(
        pid=pid,
        rank=page.rank_plus_1 - 1 if page.rank_plus_1 else None,
        user=_user(pid),
        program=program_name(words, _parent_of_worker(pid, words)),
        command=" ".join(words),
        age_s=(page.sampled_ns - page.started_ns) * 1e-9 if page.sampled_ns else 0.0,
        is_armed=bool(page.is_armed),
        engines=tuple(engines),
    )


def _parent_of_worker(pid: int, words: Sequence[str]) -> int:
    """Whose worker of multiprocessing this is; 0 if it is none, or nobody can tell."""
    if not any(map(_WORKER.match, words)):
        return 0
    try:
        parent = int(_stat(pid)[1])
        # The server that forks workers has the same command; it is no worker itself.
        return int(_stat(parent)[1]) if _command(parent) == words else parent
    except OSError:
        return 0


def _command(pid: int) -> list[str]:
    content = (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0")
    return [os.fsdecode(word) for word in content.split(b"\0")]


def _user(pid: int) -> str:
    number = (_PROC / str(pid)).stat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)  # of a container, for instance


def program_name(words: Sequence[str], parent_pid: int) -> str:
    """The script or module of a Python's command line; of others, the name of the executable.

    A worker of multiprocessing is named by its parent: "worker of 4711".
    """
    executable = os.path.basename(words[0])
    if not executable.startswith("python"):
        return executable
    kind, text = what_runs(words[1:])
    if kind == "c":
        return f"worker of {parent_pid}" if _WORKER.match(text) else f"{executable} -c"
    return (text if kind == "m" else os.path.basename(text)) or executable


def _stat(pid: int) -> list[str]:
    """The fields after the name, which stands in parentheses.

    The first is the state, the second the parent; the 20th tells when the kernel started the
    process.
    """
    text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()
