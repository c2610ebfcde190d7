# SPDX-License-Identifier: Apache-2.0
"""What all soaks share: rounds, their outcomes, and who judges them.

A soak plays rounds. A round is one or a few runs of a program while something disturbs them; all
that is random in it follows from the round's seed. Its outcome is one of: right bits, a clear
message, or a run that the soak itself cut short and that left nothing behind. Anything else is a
failure, with the line that repeats it.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zygote import Done, Job, Zygote

RIGHT, MESSAGE, CUT, FAILED = "right bits", "clear message", "cut short", "FAILED"

# Budgets that the programs exceed: their parameters, gradients and optimizer state take 24 MiB and
# 54 MiB, and the results of list operators come on top.
BUDGETS = {
    "cpu": {"TENCACHE_DEVICE_MEMORY": "12MiB", "TENCACHE_EXTENT_MIN": "256KiB"},
    "cuda": {"TENCACHE_DEVICE_MEMORY": "64MiB", "TENCACHE_HOST_MEMORY": "16MiB"},
}
# A message of tencache's own, as an error of the program or as its last line.
_MESSAGE = re.compile(
    r"(tencache: (fatal|error): |OutOfMemoryError: (CUDA out of memory\. .*)?tencache "
    r"|RuntimeError: tencache ).{20,}"
)
_LOST_BYTES = re.compile(r"tencache: (fatal|error): .*spill file in /.*offset")


@dataclass
class Outcome:
    """How a round ended. `detail` says what was wrong; `counts` go into the table."""

    verdict: str
    detail: str = ""
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Size:
    """How many rounds a soak plays in CI, and how many it plays at most if it has the time.

    Of a long run's time it gets `parts`, where the others get one each.
    """

    short: int
    long: int
    parts: int = 1


class Soak:
    """One soak on one backend. Use as a context: it makes its folders, and removes them."""

    name = ""
    about = ""
    # None if the soak does not run on this backend.
    cpu: Size | None = None
    cuda: Size | None = None

    def __init__(self, zygote: Zygote, work: Path) -> None:
        self.zygote = zygote
        self.backend = zygote.backend
        self.work = work
        self.note = ""  # what is less than it should be, for the table

    @classmethod
    def size_on(cls, backend: str) -> Size | None:
        return cls.cpu if backend == "cpu" else cls.cuda

    def __enter__(self) -> Soak:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def play(self, number: int, chance: random.Random, is_long: bool) -> Outcome:
        """Plays one round; what is random in it comes from `chance`."""
        raise NotImplementedError

    def finish(self, rounds: int, counts: Counter[str]) -> Outcome | None:
        """What can only be judged after the last round."""
        del rounds, counts
        return None

    def environment(self, folder: Path, **more: str) -> dict[str, str]:
        """The variables of a run beyond the budget that spills into this folder."""
        return {
            "TENCACHE": "1",
            "TENCACHE_BACKEND": self.backend,
            "TENCACHE_SPILL_DIR": str(folder),
            **BUDGETS[self.backend],
            **more,
        }


class Unavailable(Exception):
    """The soak cannot run on this machine; the text says what is missing."""


def ways_to_move(chance: random.Random) -> dict[str, str]:
    """Options that change which code moves tensors."""
    return {
        "TENCACHE_PLAN": chance.choice(("on", "on", "off")),
        "TENCACHE_USERFAULTFD": chance.choice(("auto", "auto", "off")),
        "TENCACHE_DIRECT_IO": chance.choice(("auto", "auto", "off")),
    }


def judge(done: Done, digest: str, *, must_be_right: bool = False) -> Outcome:
    """Right bits or a clear message; else a failure that says why."""
    if not done.in_time:
        return failure("it hangs", done)
    digests = done.lines("DIGEST")
    if digests and digests != [digest]:
        return failure("wrong bits", done)
    if "-" in done.marks:
        return failure("a child found wrong bits, or ended otherwise than it should", done)
    if done.status == 0:
        return Outcome(RIGHT) if digests else failure("no result", done)
    if must_be_right:
        return failure(f"status {done.status} where it should get over it", done)
    if not _MESSAGE.search(done.output):
        return failure(f"status {done.status} without a clear message", done)
    return Outcome(MESSAGE)


def tells_where(done: Done) -> bool:
    """Whether a message names the spill file's directory and the offset of the bytes lost."""
    return _LOST_BYTES.search(done.output) is not None


def failure(why: str, done: Done | None = None) -> Outcome:
    text = why
    if done is not None:
        text += f" (status {done.status}, marks {done.marks!r})\n{done.output[-4000:]}"
    return Outcome(FAILED, text)


def train_job(soak: Soak, steps: int, environment: Mapping[str, str]) -> Job:
    return Job("train", {"device": soak.backend, "steps": steps}, environment)
