# SPDX-License-Identifier: Apache-2.0
"""Tells the files of a run from each other, for the error where one stands in another's place.

A run writes stats, a trace and a recorded period, commands write pages and traces for Perfetto; all
names are the user's. The first letters of a file show what it is. This module imports nothing of
the package. Threads: any.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

STATS = "a stats file, for `tencache report` and `tencache stats`"
TRACE = "a trace, for `tencache trace`"
PERIOD = "a recorded period, for `tencache plan`"
_PERFETTO = "a trace for Perfetto's viewer"
_PAGE = "a page in HTML, for a browser"

_LETTERS = 4096
_BEGINNINGS = (
    (re.compile(r'\s*\{\s*"format":\s*"tencache-events"'), TRACE),
    (re.compile(r'\s*\{\s*"format":\s*"tencache-period"'), PERIOD),
    (re.compile(r'\s*\{\s*"schema":\s*\d+,\s*"backend":'), STATS),
    (re.compile(r'\s*\{\s*"displayTimeUnit":'), _PERFETTO),
    (re.compile(r"\s*<!doctype html", re.IGNORECASE), _PAGE),
)


def kind_of(path: Path) -> str | None:
    """What the file is, as the end of "it is …"; None where its beginning does not tell."""
    if not os.path.isfile(path):  # Bytes that are read from a pipe are gone.
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        beginning = file.read(_LETTERS)
    for pattern, kind in _BEGINNINGS:
        if pattern.match(beginning):
            return kind
    return None
