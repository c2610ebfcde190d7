# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on a lying disk: a bit of the spill file changes before each.

Then the checkpoint has the right bytes, because the bit was of no use to it, or the program ends
with a message that names the file and the offset. No wrong byte is written without a word.
"""

from __future__ import annotations

import random
from collections import Counter

from folders import Folder
from names import WRITER_NAMES
from rounds import FAILED, MESSAGE, RIGHT, Outcome, Size, Soak, failure, judge, tells_where
from zygote import Job

ROUNDS_FOR_A_HIT = 20


class Checkpoints(Soak):
    name = "checkpoints"
    about = "a bit of the spill file changes before a checkpoint is written"
    cpu = Size(24, 1000, parts=2)
    cuda = None

    def __enter__(self) -> Checkpoints:
        self._folder = Folder(self.work / "disk")
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.__exit__()

    def play(self, number: int, chance: random.Random, is_long: bool) -> Outcome:
        del number, is_long
        arguments = {
            "writer": chance.choice(WRITER_NAMES),
            "in_child": chance.random() < 0.3,
            "place": chance.random(),
            "bit": chance.randrange(8),
            "seed": chance.randrange(1 << 32),
        }
        environment = self.environment(self._folder.path, TENCACHE_DEVICE_MEMORY="8MiB")
        done = self.zygote.run(Job("checkpoint", arguments, environment))
        outcome = judge(done, "right")
        if outcome.verdict == MESSAGE and not tells_where(done):
            outcome = failure("the message does not tell where bytes were lost", done)
        if outcome.verdict == FAILED:
            outcome.detail = f"{arguments}: {outcome.detail}"
        outcome.counts = Counter(flips=1)
        return outcome

    def finish(self, rounds: int, counts: Counter[str]) -> Outcome | None:
        if rounds >= ROUNDS_FOR_A_HIT and not counts[MESSAGE]:
            return failure(f"{counts[RIGHT]} checkpoints are right and no flip was noticed")
        return None
