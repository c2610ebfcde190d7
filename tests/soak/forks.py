# SPDX-License-Identifier: Apache-2.0
"""Fork storms beside a training, whose children end in nine ways.

Each child reads tensors that have left memory, and ends: by sys.exit, os._exit, an exception, a
signal that asks, one that does not, a fault, os.abort, by becoming another program, or after its
parent. The training has the right bits, and nothing is left on the disk when the last one is gone.
"""

from __future__ import annotations

import random
from collections import Counter

from folders import loop_folder
from names import NINE_WAYS
from rounds import FAILED, Outcome, Size, Soak, failure, judge, ways_to_move
from zygote import Job

# The emulated GPU is slower, so a program takes fewer steps there.
STEPS = {"cpu": 4, "cuda": 2}


class Forks(Soak):
    name = "forks"
    about = "children that end in nine ways, while a thread trains"
    cpu = Size(2, 300)
    cuda = Size(1, 100)

    def __enter__(self) -> Forks:
        self._folder, self.note = loop_folder(self.work / "disk")
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.__exit__()

    def play(self, number: int, chance: random.Random, is_long: bool) -> Outcome:
        del number
        ways = [*NINE_WAYS] * (4 if is_long else 1)
        chance.shuffle(ways)
        environment = self.environment(self._folder.path, **ways_to_move(chance))
        arguments = {"device": self.backend, "steps": STEPS[self.backend]}
        done = self.zygote.run(Job("fork_storm", {**arguments, "ways": ways}, environment))
        digest = self.zygote.digest(Job("fork_storm", {**arguments, "ways": []}))
        outcome = judge(done, digest, must_be_right=True)
        # The program itself has a child that outlives it.
        looked = len(ways) + 1
        if outcome.verdict != FAILED and done.marks.count("+") != looked:
            outcome = failure(f"not all of {looked} children found the right bytes", done)
        if outcome.verdict != FAILED and (left := self._folder.trace_left()):
            outcome = failure(left, done)
        outcome.counts = Counter(forks=looked)
        return outcome
