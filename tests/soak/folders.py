# SPDX-License-Identifier: Apache-2.0
"""Folders for spill files: on a loop-mounted ext4, on a disk that lies, or just a folder.

Each is a context. A loop file system can be asked whether it is as it was before the first run:
empty, with all blocks free, and in order for e2fsck.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rounds import Unavailable
from zygote import HERE, Faults

IMAGE_BYTES = 512 << 20
# The kernel closes a ring's files a moment after its process has ended.
PATIENCE_S = 20.0


class Folder:
    """A folder on whatever disk it lies; `trace_left` says what a run has left in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def trace_left(self) -> str:
        """Waits for a while until nothing is left; returns "" then, else what is left."""
        end_s = time.monotonic() + PATIENCE_S
        while (left := self._left()) and time.monotonic() < end_s:
            time.sleep(0.01)
        return left

    def check(self) -> str:
        """ "" if the file system is in order, as far as this kind of folder can tell."""
        return ""

    def _left(self) -> str:
        names = sorted(set(os.listdir(self.path)) - {"lost+found"})
        return f"files left: {names}" if names else ""


class LoopFolder(Folder):
    """The root of an ext4 in an image file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._image = path.with_suffix(".image")
        with self._image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _command("mkfs.ext4", "-q", "-m", "0", str(self._image))
        self._mount()
        self._used = self._used_blocks()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Unavailable):
            self._unmount()
        self._image.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def check(self) -> str:
        """Unmounts the disk, which only works while no file is open; asks e2fsck; mounts again."""
        try:
            self._unmount()
            _command("e2fsck", "-f", "-n", str(self._image))
            self._mount()
        except Unavailable as error:
            return str(error)
        return ""

    def _left(self) -> str:
        left = super()._left()
        more = self._used_blocks() - self._used
        return left or (f"{more} blocks are not free again" if more > 0 else "")

    def _used_blocks(self) -> int:
        found = os.statvfs(self.path)
        return found.f_blocks - found.f_bfree

    def _mount(self) -> None:
        _command("mount", "-o", "loop", str(self._image), str(self.path))

    def _unmount(self) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                _command("umount", str(self.path))
                return
            except Unavailable:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.05)


def loop_folder(path: Path) -> tuple[Folder, str]:
    """A loop-mounted folder where that is possible, else a plain one and why."""
    try:
        return LoopFolder(path), ""
    except Unavailable as error:
        path.with_suffix(".image").unlink(missing_ok=True)
        return Folder(path), f"in a plain folder, since no file system can be mounted here: {error}"


class LyingFolder:
    """Mounts disks that lie (lying_disk.py), one for each run."""

    def __init__(self, path: Path) -> None:
        if os.geteuid() != 0:
            raise Unavailable("only root can mount a FUSE file system")
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise Unavailable("/dev/fuse is missing, or not to be opened")
        self.path = path
        self.made = 0  # faults, in the last mount
        path.mkdir(parents=True, exist_ok=True)
        with self.mounted(Faults("none-", 0, 0, 0, 0)):
            pass

    @contextlib.contextmanager
    def mounted(self, faults: Faults) -> Iterator[Path]:
        command = [sys.executable, str(HERE / "lying_disk.py"), str(self.path)]
        command.append(json.dumps(dataclasses.asdict(faults)))
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        if process.stdout.readline().strip() != "mounted":
            _, errors = process.communicate()
            raise Unavailable((errors.strip().splitlines() or ["no FUSE file system"])[-1])
        try:
            yield self.path
        finally:
            # The unmount is lazy: a ring may hold the file for a moment.
            subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True)
            try:
                output, errors = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
                errors += "somebody still has a file of it open"
        if process.returncode != 0:
            raise RuntimeError(f"the lying disk ended with {process.returncode}: {errors}")
        self.made = int(output)

    def close(self) -> None:
        self.path.rmdir()


def _command(*words: str) -> None:
    if shutil.which(words[0]) is None:
        raise Unavailable(f"{words[0]} is not installed")
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        text = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unavailable(f"{words[0]} fails: {' '.join(text[-3:])}")
