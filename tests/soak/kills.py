# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at random moments of a training beyond its budget.

Afterwards the file system on which it spilled is as before: no file, no block in use, nobody who
has a file of it open, in order for e2fsck. The next run has the right bits.
"""

from __future__ import annotations

import dataclasses
import random
import signal
from collections import Counter
from pathlib import Path

from folders import loop_folder
from rounds import (
    CUT,
    FAILED,
    RIGHT,
    Outcome,
    Size,
    Soak,
    failure,
    judge,
    train_job,
    ways_to_move,
)
from zygote import Done, Job, Kill, Zygote

STEPS = 3
PAUSE_US_MAX = 100_000  # about a step
ROUNDS_BETWEEN_CHECKS = 10


class Kills(Soak):
    name = "kills"
    about = "SIGKILL at random moments; then nothing is left, and the next run is right"
    cpu = Size(50, 1000, parts=6)
    cuda = Size(4, 300)

    def __init__(self, zygote: Zygote, work: Path) -> None:
        super().__init__(zygote, work)
        self._rounds = 0
        self._descriptors = 0

    def __enter__(self) -> Kills:
        self._folder, self.note = loop_folder(self.work / "disk")
        self._folder.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.__exit__()

    def play(self, number: int, chance: random.Random, is_long: bool) -> Outcome:
        del number, is_long
        environment = self.environment(self._folder.path, **ways_to_move(chance))
        environment["TENCACHE_IO_URING"] = chance.choice(("auto", "auto", "off"))
        whole = train_job(self, STEPS, environment)
        kill = Kill(chance.randrange(STEPS + 1), chance.randrange(PAUSE_US_MAX))
        done = self.zygote.run(dataclasses.replace(whole, kill=kill))
        outcome = self._judge(done, whole)
        self._rounds += 1
        if outcome.verdict != FAILED and self._rounds % ROUNDS_BETWEEN_CHECKS == 0:
            return self._check(whole, outcome)
        return outcome

    def finish(self, rounds: int, counts: Counter[str]) -> Outcome | None:
        if rounds and not counts["kills"]:
            return failure("no program was killed: each ended before")
        environment = self.environment(self._folder.path)
        return self._check(train_job(self, STEPS, environment), Outcome(RIGHT))

    def _judge(self, done: Done, whole: Job) -> Outcome:
        if left := self._folder.trace_left():
            return failure(left, done)
        is_first = not self._descriptors
        if not is_first and done.descriptors != self._descriptors:
            return failure(f"{done.descriptors} descriptors, not {self._descriptors}", done)
        self._descriptors = done.descriptors
        if done.status == 0:  # it ended before
            return judge(done, self.zygote.digest(whole), must_be_right=True)
        if done.status != -signal.SIGKILL or not done.in_time:
            return failure("a program that was to be killed ended otherwise", done)
        if "tencache: fatal" in done.output or "tencache: error" in done.output:
            return failure("it said that something was wrong before it was killed", done)
        return Outcome(CUT, counts=Counter(kills=1))

    def _check(self, whole: Job, outcome: Outcome) -> Outcome:
        """The file system is in order, and a run on it is right."""
        if problem := self._folder.check():
            return failure(problem)
        done = self.zygote.run(whole)
        after = judge(done, self.zygote.digest(whole), must_be_right=True)
        if after.verdict != FAILED and (left := self._folder.trace_left()):
            return failure(left, done)
        if after.verdict == FAILED:
            return after
        outcome.counts["right runs after"] += 1
        return outcome
