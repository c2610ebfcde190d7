# SPDX-License-Identifier: Apache-2.0
"""aarch64.py: what it leaves out exists, and where it cannot work it says what to do instead."""

import re
from fnmatch import fnmatchcase
from functools import cache

import pytest

import aarch64
from repository import ROOT, source_files, without_comments
from steps import StepFailed

_TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
PATTERNS = [pattern for patterns in aarch64.LEFT_OUT.values() for pattern in patterns]


@cache
def names_of_tests() -> set[str]:
    """The names of all tests of the suites, without those of their parameters."""
    texts = (
        without_comments((ROOT / path).read_text())
        for path in source_files((".cpp",))
        if path.parts[0] == "tests" and path.stem.endswith("_test")
    )
    return {".".join(names) for text in texts for names in _TEST.findall(text)}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_left_out_exists(pattern: str) -> None:
    # GoogleTest runs TEST_P(IoChannelTest, MovesNothing) under the name
    # "Channels/IoChannelTest.MovesNothing/…". The sources have only the part in the middle.
    name = pattern.removeprefix("*/").split("/")[0]
    assert any(fnmatchcase(test, name) for test in names_of_tests())


def test_no_pattern_stands_twice() -> None:
    assert len(PATTERNS) == len(set(PATTERNS))


def test_the_filter_leaves_out_every_pattern() -> None:
    assert aarch64.filter_of_tests().removeprefix("-").split(":") == PATTERNS


@pytest.mark.parametrize(
    ("machine", "system", "remedy"),
    [
        ("aarch64", "ID=debian\n", "make test-core"),
        ("x86_64", 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n', "use a Debian"),
        ("x86_64", "ID=debian\n", None),
        ("x86_64", 'NAME="Debian GNU/Linux"\nID=debian\n', None),
    ],
)
def test_a_machine_that_cannot_is_told_what_to_do(
    machine: str,
    system: str,
    remedy: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aarch64, "RELEASE", system.splitlines())
    monkeypatch.setattr(aarch64.platform, "machine", lambda: machine)
    if remedy is None:
        aarch64.expect_usable_machine()
        return
    with pytest.raises(StepFailed, match=remedy):
        aarch64.expect_usable_machine()
