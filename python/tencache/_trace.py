# SPDX-License-Identifier: Apache-2.0
"""Reads a trace file: the events that the recorder kept, one JSON object a line.

The core writes the file (learn/trace_writer.h) when the program ends under `--trace FILE`. A reader
here is a generator, so a file of any length is shown without being held in memory. A line that is
no JSON object is an error that names file and line: a trace is whole, or it was not ours.
Threads: none of its own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tencache._library import TencacheError
from tencache._report import format_bytes

Event = dict[str, Any]

_MEASURED_EVENTS = 1000


def read_events(path: Path) -> Iterator[Event]:
    """The events of the file in the order in which they stand there."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                event = json.loads(line)
            except ValueError as error:
                raise TencacheError(_not_a_trace(path, number, str(error))) from error
            if not isinstance(event, dict):
                raise TencacheError(_not_a_trace(path, number, "it holds no JSON object"))
            yield event


def select(events: Iterator[Event], *, op: str | None, kinds: frozenset[str]) -> Iterator[Event]:
    """Events whose op's name contains `op` and whose kind is one of `kinds` (empty = all)."""
    for event in events:
        if kinds and event.get("kind") not in kinds:
            continue
        if op is not None and op not in str(event.get("op", "")):
            continue
        yield event


def table_lines(events: Iterator[Event]) -> Iterator[str]:
    """The events as aligned columns, one line each, below a line with the columns' names.

    Columns and their widths come from the first events, so that long files are shown at once; what
    is wider later is shown in full all the same.
    """
    first = list(itertools.islice(events, _MEASURED_EVENTS))
    if not first:
        yield "(no events)"
        return
    columns = list(dict.fromkeys(key for event in first for key in event))
    widths = {
        column: max(len(column), *(len(_cell(event, column)) for event in first))
        for column in columns
    }
    yield "  ".join(column.ljust(widths[column]) for column in columns).rstrip()
    for event in itertools.chain(first, events):
        yield "  ".join(_cell(event, column).ljust(widths[column]) for column in columns).rstrip()


def _cell(event: Event, column: str) -> str:
    value = event.get(column)
    if value is None:
        return ""
    if column == "bytes" and isinstance(value, int):
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:.6f}"
    return str(value)


def _not_a_trace(path: Path, number: int, reason: str) -> str:
    return (
        f"{path}, line {number}, is no event of a trace: {reason}. Traces are written by "
        "`tencache run --trace FILE -- …` when the program ends."
    )
