# SPDX-License-Identifier: Apache-2.0
"""Thousands of steps of changing sizes: nothing grows with time.

The program looks now and then at its resident memory, its mappings, its descriptors and the length
of its spill file. From the second quarter of the run to the last, their means may grow by little.
The spill file stays within a few times of what the disk tier has held at once.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from statistics import mean

from folders import Folder
from rounds import FAILED, Outcome, Size, Soak, failure, judge
from zygote import Done, Job

# The emulated GPU is slower, so a program takes fewer steps there.
STEPS, STEPS_LONG = {"cpu": 80, "cuda": 24}, {"cpu": 10_000, "cuda": 500}
SAMPLES = 24
TIMEOUT_S = 3600
# Half of what the program takes at once.
BUDGETS = {
    "cpu": {"TENCACHE_DEVICE_MEMORY": "24MiB"},
    "cuda": {"TENCACHE_DEVICE_MEMORY": "64MiB"},
}
FILE_STEP_BYTES = 64 << 20  # by which the spill file grows
# How much the mean may grow: a share of it, and this much besides. Where a few bytes more go to
# disk, the file may need a step.
LIMITS = {
    "rss": (0.05, 16 << 20),
    "mappings": (0.05, 100),
    "descriptors": (0.0, 2),
    "file": (0.10, FILE_STEP_BYTES),
}
# The spill file against what the disk tier has held at once: a share of it, and a step of growth.
FILE_LIMIT = (2.0, FILE_STEP_BYTES)


class Drift(Soak):
    name = "drift"
    about = "steps of changing sizes: memory, mappings, descriptors and the spill file stay"
    cpu = Size(1, 1)
    cuda = Size(1, 2)

    def __enter__(self) -> Drift:
        self._folder = Folder(self.work / "disk")
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.__exit__()

    def play(self, number: int, chance: random.Random, is_long: bool) -> Outcome:
        del number
        steps = (STEPS_LONG if is_long else STEPS)[self.backend]
        arguments = {
            "device": self.backend,
            "steps": steps,
            "samples": SAMPLES,
            "seed": chance.randrange(1 << 32),
        }
        environment = self.environment(self._folder.path, **BUDGETS[self.backend])
        job = Job("drift", arguments, environment, timeout_s=TIMEOUT_S)
        done = self.zygote.run(job)
        outcome = judge(done, self.zygote.digest(job), must_be_right=True)
        if outcome.verdict != FAILED and (growth := growth_of(done)):
            outcome = failure(growth, done)
        outcome.counts = Counter(steps=steps)
        return outcome


def growth_of(done: Done) -> str:
    """ "" if nothing grows, else what does."""
    samples = [json.loads(line) for line in done.lines("SAMPLE")]
    quarter = len(samples) // 4
    if quarter == 0:
        return "too few samples"
    for name, (share, besides) in LIMITS.items():
        before = mean(sample[name] for sample in samples[quarter : 2 * quarter])
        after = mean(sample[name] for sample in samples[-quarter:])
        if after > before * (1 + share) + besides:
            return f"{name} grows from {before:.0f} to {after:.0f}"
    largest = max(sample["file"] for sample in samples)
    held = samples[-1]["live"]
    share, besides = FILE_LIMIT
    if largest > share * held + besides:
        return f"the spill file has {largest} bytes for {held} that were there at once"
    return ""
