# SPDX-License-Identifier: Apache-2.0
"""A disk that fails or lies, by a seeded matrix of faults, on both ways to the disk.

On the threads channel a preloaded library makes the calls fail (faults.cpp). On io_uring a file
system in user space does (lying_disk.py). What tencache must get over gives the right bits. What it
cannot get over gives the right bits or a clear message, which names the place where bytes were
lost.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from folders import Folder, LyingFolder
from rounds import (
    FAILED,
    MESSAGE,
    Outcome,
    Size,
    Soak,
    failure,
    judge,
    tells_where,
    train_job,
    ways_to_move,
)
from zygote import Done, Faults, Job

STEPS = 3
STRIDE = 5  # through the rows, so that a few rounds play different ones; no divisor of their number
ALWAYS = 10_000
ENDLESS = 1 << 60


@dataclass(frozen=True)
class Case:
    """A row of the matrix: a fault, how often, and what may come of it."""

    kind: str
    chances: tuple[int, ...]  # of 10,000 calls; the seed chooses one
    most: int = ENDLESS
    must_be_right: bool = False  # tencache gets over it
    is_lie: bool = False  # a message must say where bytes were lost
    delay_us: int = 0


OFTEN = (100, 1000, 5000, ALWAYS)
SELDOM = (20, 100, 1000)
# The cases of both ways to the disk: the threads channel and io_uring.
COMMON = (
    Case("read-eio", (20, 100, 1000, ALWAYS)),
    Case("read-short", OFTEN),
    Case("read-delayed", (1000, ALWAYS), must_be_right=True, delay_us=2000),
    Case("read-flip", SELDOM, most=1, is_lie=True),
    Case("read-misplaced", SELDOM, most=1, is_lie=True),
    Case("write-eio", OFTEN),
    Case("write-enospc", OFTEN),
    Case("write-edquot", OFTEN),
    Case("write-erofs", (ALWAYS,)),
    Case("write-short", OFTEN),
    Case("write-delayed", (1000, ALWAYS), must_be_right=True, delay_us=2000),
    Case("write-lost", SELDOM, most=1, is_lie=True),
    Case("write-torn", SELDOM, most=1, is_lie=True),
    Case("grow-enospc", (5000, ALWAYS)),
    Case("grow-eio", (5000, ALWAYS)),
    Case("grow-eopnotsupp", (ALWAYS,), must_be_right=True),
)
THREADS = (
    *COMMON,
    Case("read-eintr", (1000, 5000), must_be_right=True),
    Case("read-eagain", (100, 1000)),
    Case("read-nothing", SELDOM),
    Case("read-odd", OFTEN),
    Case("write-eintr", (1000, 5000), must_be_right=True),
    Case("write-eagain", (100, 1000)),
    Case("write-nothing", SELDOM),
    Case("write-odd", OFTEN),
    Case("write-misplaced", SELDOM, most=1, is_lie=True),
    Case("map-enomem", (1000, ALWAYS)),
)


class DiskFaults(Soak):
    """Plays every row of the matrix in as many rounds as there are rows."""

    cases: tuple[Case, ...] = ()

    def play(self, number: int, chance: random.Random, is_long: bool) -> Outcome:
        del is_long
        case = self.cases[number * STRIDE % len(self.cases)]
        faults = Faults(
            case.kind,
            seed=chance.randrange(1 << 32),
            chance=chance.choice(case.chances),
            skip=chance.choice((0, 10, 50)),
            most=case.most,
            delay_us=case.delay_us,
        )
        options = ways_to_move(chance)
        # Where every call has the fault, waiting does not help.
        options["TENCACHE_DISK_WAIT"] = "0" if faults.chance == ALWAYS else "1s"
        done, made = self.run(faults, options)
        digest = self.zygote.digest(train_job(self, STEPS, {}))
        outcome = judge(done, digest, must_be_right=case.must_be_right)
        if case.is_lie and outcome.verdict == MESSAGE and not tells_where(done):
            outcome = failure("the message does not tell where bytes were lost", done)
        if outcome.verdict == FAILED:
            outcome.detail = f"{faults} with {options}: {outcome.detail}"
        outcome.counts = Counter(faults=made)
        return outcome

    def finish(self, rounds: int, counts: Counter[str]) -> Outcome | None:
        if rounds >= len(self.cases) and not counts["faults"]:
            return failure("no fault was made at all")
        return None

    def run(self, faults: Faults, options: dict[str, str]) -> tuple[Done, int]:
        """Trains on a disk with these faults; returns how that ended, and how many were made."""
        raise NotImplementedError


class ThreadFaults(DiskFaults):
    name = "disk faults, threads"
    about = "a preloaded library makes calls of the threads channel fail or lie"
    cases = THREADS
    cpu = Size(26, 2000)
    cuda = Size(4, 500)

    def __enter__(self) -> ThreadFaults:
        self._folder = Folder(self.work / "disk")
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.__exit__()

    def run(self, faults: Faults, options: dict[str, str]) -> tuple[Done, int]:
        environment = self.environment(self._folder.path, TENCACHE_IO_URING="off", **options)
        job = Job("train", {"device": self.backend, "steps": STEPS}, environment, faults=faults)
        done = self.zygote.run(job)
        return done, done.marks.count("!")


class RingFaults(DiskFaults):
    name = "disk faults, io_uring"
    about = "a FUSE file system makes requests of io_uring and of mappings fail or lie"
    cases = COMMON
    cpu = Size(16, 2000)
    cuda = Size(3, 500)

    def __enter__(self) -> RingFaults:
        self._folder = LyingFolder(self.work / "disk")
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.close()

    def run(self, faults: Faults, options: dict[str, str]) -> tuple[Done, int]:
        with self._folder.mounted(faults) as path:
            environment = self.environment(path, **options)
            done = self.zygote.run(train_job(self, STEPS, environment))
        return done, self._folder.made
