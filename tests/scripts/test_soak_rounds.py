# SPDX-License-Identifier: Apache-2.0
"""The soaks call a failure what is one: each outcome that is not allowed is noticed."""

from __future__ import annotations

import json

import drift
import pytest
from lying_disk import Failed, Faults
from rounds import FAILED, MESSAGE, RIGHT, judge, tells_where
from zygote import Done

FATAL = (
    "tencache: fatal: the spill file in /var/tmp holds other bytes than were written for extent 7, "
    "at file offset 4096\n"
)


def done(output: str, status: int = 0, marks: str = "...", in_time: bool = True) -> Done:
    return Done(status=status, in_time=in_time, marks=marks, descriptors=9, output=output)


@pytest.mark.parametrize(
    ("ended", "verdict"),
    [
        (done("DIGEST abc\n"), RIGHT),
        (done("DIGEST other\n"), FAILED),
        (done("DIGEST other\n" + FATAL, status=-6), FAILED),
        (done("DIGEST abc\n", marks="..-"), FAILED),
        (done("DIGEST abc\n", in_time=False), FAILED),
        (done(""), FAILED),
        (done(FATAL, status=-6), MESSAGE),
        (done("Segmentation fault\n", status=-11), FAILED),
        (done("", status=-7), FAILED),
        (done("torch.OutOfMemoryError: tencache ran out of memory. Tried to …\n", 1), MESSAGE),
        (done("torch.OutOfMemoryError: \n", status=1), FAILED),
    ],
)
def test_outcomes(ended: Done, verdict: str) -> None:
    assert judge(ended, "abc").verdict == verdict


def test_what_must_be_survived_may_not_end_in_a_message() -> None:
    assert judge(done(FATAL, status=-6), "abc", must_be_right=True).verdict == FAILED


def test_message_of_lost_bytes_names_file_and_offset() -> None:
    assert tells_where(done(FATAL))
    assert not tells_where(done(FATAL.replace("offset", "place")))


def drifted(name: str, values: list[int]) -> str:
    still = {"rss": 1 << 30, "mappings": 500, "descriptors": 20, "file": 1 << 28, "live": 1 << 28}
    return drift.growth_of(
        done("".join(f"SAMPLE {json.dumps(still | {name: value})}\n" for value in values))
    )


def test_growth_is_noticed() -> None:
    assert drifted("rss", [1 << 30] * 40) == ""
    for name, step in (("rss", 4 << 20), ("mappings", 10), ("descriptors", 1), ("file", 8 << 20)):
        start = {"rss": 1 << 30, "mappings": 500, "descriptors": 20, "file": 1 << 28}[name]
        assert name in drifted(name, [start + i * step for i in range(40)])
        # What grows only at first is no drift.
        assert drifted(name, [start - step] * 5 + [start] * 35) == ""
    assert "spill file" in drifted("live", [1 << 20] * 40)


def test_faults_follow_from_the_seed() -> None:
    def hits(seed: int) -> list[int]:
        faults = Faults("read-eio", seed=seed, chance=5000, skip=10, most=20, delay_us=0)
        found = []
        for call in range(200):
            assert faults.effect("write") == ""
            try:
                faults.effect("read")
            except Failed:
                found.append(call)
        return found

    assert hits(1) == hits(1) != hits(2)
    assert len(hits(1)) == 20 and min(hits(1)) >= 10
