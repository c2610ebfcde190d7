# SPDX-License-Identifier: Apache-2.0
"""A memory cgroup and a swap file for a benchmark, both gone afterwards.

`MemoryCgroup` makes a group below the one of this process (v1) or below the root (v2), limits it,
and tells how much its processes used. `SwapFile` makes a file and swaps to it before all other
swap. Both are context managers and need root. If the machine does not allow it they raise
`Unavailable`, whose message says why, and the caller skips. Leaving a context kills what still runs
in the group.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import support

_V1_MOUNT = Path("/sys/fs/cgroup/memory")
_V2_MOUNT = Path("/sys/fs/cgroup")
_SWAP_PRIORITY = "32767"


class Unavailable(Exception):
    """This machine does not allow what the benchmark needs; the message says why."""


@dataclass(frozen=True)
class _Files:
    """The file names of one version of the memory controller."""

    limit: str
    swap_limit: str
    usage: str
    peak: str
    unlimited: str


_V1 = _Files(
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "-1",
)
_V2 = _Files("memory.max", "memory.swap.max", "memory.current", "memory.peak", "max")


class MemoryCgroup:
    """A group that exists while entered. Without `may_swap` none of its pages goes to swap."""

    def __init__(self, limit_bytes: int | None = None, *, may_swap: bool = True) -> None:
        if os.geteuid() != 0:
            raise Unavailable("only root can make a memory cgroup")
        name = f"tencache-benchmark-{os.getpid()}"
        self._is_v1 = (_V1_MOUNT / _V1.limit.replace("limit", "usage")).exists()
        self._files = _V1 if self._is_v1 else _V2
        self.folder = (_own_v1_folder() if self._is_v1 else _v2_root()) / name
        self._limit_bytes = limit_bytes
        self._may_swap = may_swap

    def __enter__(self) -> MemoryCgroup:
        try:
            self.folder.mkdir()
        except OSError as error:
            raise Unavailable(f"no memory cgroup can be made here: {error.strerror}") from error
        try:
            self._set_limits()
        except BaseException:
            self.folder.rmdir()
            raise
        return self

    def _set_limits(self) -> None:
        files, limit = self._files, self._limit_bytes
        if limit is not None:
            self._write(files.limit, str(limit))
        # v1 limits memory and swap together; v2 limits swap alone.
        swap_path = self.folder / files.swap_limit
        if not swap_path.exists():
            raise Unavailable("this kernel does not account swap to cgroups (swapaccount=1)")
        if not self._may_swap:
            self._write(files.swap_limit, str(limit) if self._is_v1 else "0")

    def _write(self, name: str, text: str) -> None:
        try:
            (self.folder / name).write_text(text)
        except OSError as error:
            raise Unavailable(f"the memory cgroup takes no limit: {error.strerror}") from error

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + 60
        while True:
            for pid in (self.folder / "cgroup.procs").read_text().split():
                # The process may have ended since the list was read.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                self.folder.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def prefix(self) -> list[str]:
        """A command that enters the group and becomes the command that follows it."""
        procs = self.folder / "cgroup.procs"
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs)]

    @property
    def usage_file(self) -> Path:
        return self.folder / self._files.usage

    def peak_bytes(self) -> int:
        try:
            return int((self.folder / self._files.peak).read_text())
        except OSError as error:
            raise Unavailable(f"the kernel tells no peak of a cgroup: {error.strerror}") from error


def _own_v1_folder() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder = _V1_MOUNT / path.lstrip("/")
            # In a container the path may be the host's, and the mount the group itself.
            return folder if folder.is_dir() else _V1_MOUNT
    raise Unavailable("no memory cgroup is mounted")


def _v2_root() -> Path:
    try:
        controllers = (_V2_MOUNT / "cgroup.subtree_control").read_text().split()
    except OSError as error:
        raise Unavailable(f"no memory cgroup is mounted: {error.strerror}") from error
    if "memory" not in controllers:
        raise Unavailable("the memory controller is not enabled below the root cgroup")
    return _V2_MOUNT


class SwapFile:
    """A swap file in the directory; while entered it is used before any other swap."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        if os.geteuid() != 0:
            raise Unavailable("only root can add swap")
        for tool in ("mkswap", "swapon", "swapoff"):
            if shutil.which(tool) is None:
                raise Unavailable(f"{tool} is not installed")
        free_bytes = shutil.disk_usage(directory).free
        if free_bytes < size_bytes:
            raise Unavailable(
                f"a swap file of {support.format_bytes(size_bytes)} does not fit: "
                f"{support.format_bytes(free_bytes)} are free"
            )
        self._directory = directory
        self._size_bytes = size_bytes

    def __enter__(self) -> SwapFile:
        handle, name = tempfile.mkstemp(prefix="tencache-swap-", dir=self._directory)
        self._path = Path(name)
        try:
            os.posix_fallocate(handle, 0, self._size_bytes)
            for command in (["mkswap", name], ["swapon", "-p", _SWAP_PRIORITY, name]):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise Unavailable(f"{command[0]} was refused: {done.stderr.strip()}")
        except OSError as error:
            self._path.unlink()
            raise Unavailable(f"no swap file can be made: {error.strerror}") from error
        except BaseException:
            # This covers a Ctrl-C between swapon and here.
            subprocess.run(["swapoff", name], capture_output=True, check=False)
            self._path.unlink()
            raise
        finally:
            os.close(handle)
        return self

    def __exit__(self, *_: object) -> None:
        done = subprocess.run(["swapoff", self._path], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            # The kernel still uses the file; deleting it would hide that the user must end this by
            # hand.
            raise RuntimeError(f"swapoff {self._path} failed: {done.stderr.strip()}")
        self._path.unlink()
