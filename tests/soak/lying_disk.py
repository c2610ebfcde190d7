# SPDX-License-Identifier: Apache-2.0
"""A file system in user space whose disk fails or lies, by the kernel's FUSE protocol.

The file system stands where a preloaded library cannot: under io_uring, O_DIRECT and mappings. It
has one flat directory; a file's bytes lie in a memfd of this process. It answers one request after
the other, so that which of them fail follows from the seed and the order of requests. It ends when
it is unmounted.

Usage (root): lying_disk.py FOLDER JSON, where the object has kind, seed, chance (of 10,000 calls),
skip (how many calls go well first), most (faults) and delay_us. "mounted" on stdout says that it is
ready. At the end, it prints how many faults it made.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import stat
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

REQUEST = struct.Struct("<IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid, …
REPLY = struct.Struct("<IiQ")  # length, -errno, unique
ATTRIBUTES = struct.Struct("<6Q10I")
ENTRY = struct.Struct("<4Q2I")
OPENED = struct.Struct("<QIi")
TRANSFER = struct.Struct("<QQIIQII")  # handle, offset, size, …
RESIZE = struct.Struct("<IIQQ")  # which attributes, padding, handle, size
GROW = struct.Struct("<QQQII")  # handle, offset, length, mode, padding
INITIAL = struct.Struct("<IIII")  # major, minor, readahead, flags
INITIALISED = struct.Struct("<4IHHIIHHIIH22x")
STATISTICS = struct.Struct("<5Q4I24x")

(LOOKUP, FORGET, GETATTR, SETATTR, UNLINK, OPEN, READ, WRITE) = (1, 2, 3, 4, 10, 14, 15, 16)
(STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR) = (17, 18, 20, 25, 26, 27, 28)
(RELEASEDIR, ACCESS, CREATE, INTERRUPT, DESTROY, BATCH_FORGET) = (29, 34, 35, 36, 38, 42)
(FALLOCATE, TMPFILE) = (43, 51)
NO_REPLY = (FORGET, BATCH_FORGET, INTERRUPT)
EMPTY_REPLY = (RELEASE, FSYNC, FLUSH, READDIR, RELEASEDIR, ACCESS)

ROOT_NODE = 1
PAGE_BYTES = 4096
MAX_WRITE_BYTES = 1 << 20
FREE_BLOCKS = 1 << 20  # 4 GiB
FLAGS = 1 << 0 | 1 << 5 | 1 << 15 | 1 << 22  # asynchronous reads, large writes, direct I/O, pages
MS_NOSUID_NODEV = 2 | 4
SIZE_IS_SET = 1 << 3

ERRORS = {
    "eio": errno.EIO,
    "enospc": errno.ENOSPC,
    "edquot": errno.EDQUOT,
    "erofs": errno.EROFS,
    "eopnotsupp": errno.EOPNOTSUPP,
}


class Failed(Exception):
    """A request that is answered with an error number."""

    def __init__(self, error_number: int) -> None:
        super().__init__(error_number)
        self.error_number = error_number


@dataclass
class Faults:
    """Decides which requests fail. `kind` is "read-eio", "write-erofs", "grow-enospc", …"""

    kind: str
    seed: int
    chance: int
    skip: int
    most: int
    delay_us: int
    made: int = 0
    calls: int = 0
    random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.random.seed(self.seed)

    def effect(self, call: str) -> str:
        """What this call does instead of what it should; "" if nothing."""
        name, _, effect = self.kind.partition("-")
        if name != call:
            return ""
        self.calls += 1
        if self.calls <= self.skip or self.random.randrange(10_000) >= self.chance:
            return ""
        if self.made >= self.most:
            return ""
        self.made += 1
        if effect in ERRORS:
            raise Failed(ERRORS[effect])
        if effect == "delayed":
            time.sleep(self.delay_us / 1e6)
        return effect


@dataclass
class File:
    name: str  # "" once it has none
    descriptor: int


class LyingDisk:
    """The file system: one method for each request that carries something."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self._files: dict[int, File] = {}
        self._next_node = ROOT_NODE + 1
        self.handlers: dict[int, Callable[[int, memoryview], bytes]] = {
            INIT: self.initialise,
            LOOKUP: self.look_up,
            GETATTR: lambda node, _: self._attributes_reply(node),
            SETATTR: self.resize,
            STATFS: lambda *_: STATISTICS.pack(
                FREE_BLOCKS, FREE_BLOCKS, FREE_BLOCKS, 0, 0, PAGE_BYTES, 255, PAGE_BYTES, 0
            ),
            OPEN: lambda *_: OPENED.pack(0, 0, 0),
            OPENDIR: lambda *_: OPENED.pack(0, 0, 0),
            CREATE: lambda _, body: self.create(_text(body[16:])),
            TMPFILE: lambda *_: self.create(""),
            UNLINK: self.unlink,
            READ: self.read,
            WRITE: self.write,
            FALLOCATE: self.grow,
        }

    @staticmethod
    def initialise(_: int, body: memoryview) -> bytes:
        _, minor, readahead, flags = INITIAL.unpack_from(body)
        size = MAX_WRITE_BYTES
        version = (7, min(minor, 38), readahead, flags & FLAGS)
        return INITIALISED.pack(*version, 64, 48, size, 1, size // PAGE_BYTES, 0, 0, 0, 0)

    def look_up(self, _: int, body: memoryview) -> bytes:
        return self._entry(self._node_named(_text(body)))

    def create(self, name: str) -> bytes:
        node, self._next_node = self._next_node, self._next_node + 1
        self._files[node] = File(name, os.memfd_create("file", os.MFD_CLOEXEC))
        return self._entry(node) + OPENED.pack(0, 0, 0)

    def unlink(self, _: int, body: memoryview) -> bytes:
        self._files[self._node_named(_text(body))].name = ""
        return b""

    def resize(self, node: int, body: memoryview) -> bytes:
        valid, _, _, size = RESIZE.unpack_from(body)
        if valid & SIZE_IS_SET:
            os.ftruncate(self._files[node].descriptor, size)
        return self._attributes_reply(node)

    def read(self, node: int, body: memoryview) -> bytes:
        _, offset, size, *_ = TRANSFER.unpack_from(body)
        effect = self.faults.effect("read")
        if effect == "misplaced":
            offset = max(0, offset - MAX_WRITE_BYTES)
        data = os.pread(self._files[node].descriptor, size, offset)
        if effect == "short":
            return data[: len(data) // 2 // PAGE_BYTES * PAGE_BYTES]
        if effect == "flip" and data:
            flipped = bytearray(data)
            flipped[self.faults.random.randrange(len(data))] ^= 1 << self.faults.random.randrange(8)
            return bytes(flipped)
        return data

    def write(self, node: int, body: memoryview) -> bytes:
        _, offset, size, *_ = TRANSFER.unpack_from(body)
        effect = self.faults.effect("write")
        data = body[TRANSFER.size : TRANSFER.size + size]
        if effect in ("torn", "short"):
            data = data[: max(PAGE_BYTES, size // 2 // PAGE_BYTES * PAGE_BYTES)]
        if effect != "lost":
            os.pwrite(self._files[node].descriptor, data, offset)
        return struct.pack("<II", len(data) if effect == "short" else size, 0)

    def grow(self, node: int, body: memoryview) -> bytes:
        _, offset, length, *_ = GROW.unpack_from(body)
        self.faults.effect("grow")
        descriptor = self._files[node].descriptor
        if offset + length > os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, offset + length)
        return b""

    def forget(self, node: int) -> None:
        file = self._files.get(node)
        if file is not None and not file.name:
            os.close(self._files.pop(node).descriptor)

    def _node_named(self, name: str) -> int:
        for node, file in self._files.items():
            if file.name == name:
                return node
        raise Failed(errno.ENOENT)

    def _entry(self, node: int) -> bytes:
        return ENTRY.pack(node, 0, 0, 0, 0, 0) + self._attributes(node)

    def _attributes_reply(self, node: int) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(node)

    def _attributes(self, node: int) -> bytes:
        size, links, mode = 0, 2, stat.S_IFDIR | 0o700
        if node != ROOT_NODE:
            file = self._files[node]
            size, links = os.fstat(file.descriptor).st_size, 1 if file.name else 0
            mode = stat.S_IFREG | 0o600
        times = (0,) * 6
        return ATTRIBUTES.pack(node, size, size // 512, *times, mode, links, 0, 0, 0, PAGE_BYTES, 0)


def _text(body: memoryview) -> str:
    return bytes(body).split(b"\0")[0].decode()


def mount(folder: str) -> int:
    """Mounts the file system; returns the descriptor on which the kernel sends its requests."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40700,user_id=0,group_id=0,allow_other"
    library = ctypes.CDLL(None, use_errno=True)
    names = (b"lying_disk", folder.encode(), b"fuse")
    if library.mount(*names, ctypes.c_ulong(MS_NOSUID_NODEV), options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mounting a FUSE file system: {os.strerror(number)}")
    return device


def serve(device: int, disk: LyingDisk) -> None:
    """Answers requests until the file system is unmounted."""
    while True:
        try:
            request = memoryview(os.read(device, MAX_WRITE_BYTES + PAGE_BYTES))
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                continue
            raise
        _, opcode, unique, node, *_ = REQUEST.unpack_from(request)
        if opcode == FORGET:
            disk.forget(node)
        if opcode in NO_REPLY:
            continue
        error_number, answer = answer_to(disk, opcode, node, request[REQUEST.size :])
        length = REPLY.size + len(answer)
        try:
            os.write(device, REPLY.pack(length, -error_number, unique) + answer)
        except OSError as error:
            if error.errno != errno.ENOENT:  # whoever asked is gone
                raise


def answer_to(disk: LyingDisk, opcode: int, node: int, body: memoryview) -> tuple[int, bytes]:
    handler = disk.handlers.get(opcode)
    if handler is None:
        return (0 if opcode in (*EMPTY_REPLY, DESTROY) else errno.ENOSYS), b""
    try:
        return 0, handler(node, body)
    except Failed as failed:
        return failed.error_number, b""


def main() -> None:
    disk = LyingDisk(Faults(**json.loads(sys.argv[2])))
    device = mount(sys.argv[1])
    print("mounted", flush=True)
    serve(device, disk)
    print(disk.faults.made, flush=True)


if __name__ == "__main__":
    main()
