# SPDX-License-Identifier: Apache-2.0
"""Result files of the benchmarks: one page of Markdown for people, one JSON file for programs.

Both are written from one `Report`, so a table and the figures behind it come from the same run.
They hold figures and facts about the machine, never its name or a path, and are committed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Table:
    """A table of a result file; cells are text."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def markdown(self) -> str:
        columns = zip(self.columns, *self.rows, strict=True)
        # A column is at least 2 wide: with a ruler of `:` alone, GitHub shows the table as text.
        widths = [max(2, *map(len, cells)) for cells in columns]
        # The first column holds names; the others hold figures.
        ruler = [
            "-" * width if index == 0 else "-" * (width - 1) + ":"
            for index, width in enumerate(widths)
        ]
        lines = [
            "| " + " | ".join(self._cells(row, widths)) + " |"
            for row in (self.columns, ruler, *self.rows)
        ]
        return "\n".join([f"## {self.title}", "", *lines])

    @staticmethod
    def _cells(row: Sequence[str], widths: Sequence[int]) -> list[str]:
        return [
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]


@dataclass
class Report:
    """A benchmark's result: one page for people, one file of JSON for programs."""

    name: str
    question: str
    command: str
    facts: Mapping[str, str]
    tables: list[Table] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def markdown(self) -> str:
        parts = [f"# {self.name}", self.question, f"    {self.command}"]
        parts += ["\n".join(f"- **{verdict}**" for verdict in self.verdicts)]
        parts += [table.markdown() for table in self.tables]
        parts += ["\n".join(f"- {note}" for note in self.notes)]
        facts = "; ".join(f"{name}: {value}" for name, value in self.facts.items())
        parts += [f"Measured on: {facts}."]
        return "\n\n".join(part for part in parts if part) + "\n"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.md").write_text(self.markdown(), encoding="utf-8")
        content = {
            "name": self.name,
            "question": self.question,
            "command": self.command,
            "facts": dict(self.facts),
            "verdicts": self.verdicts,
            "notes": self.notes,
            **self.data,
        }
        text = json.dumps(content, indent=1)
        # Put each list of figures on one line: a thousand short lines help nobody.
        text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", _on_one_line, text)
        (folder / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")


def _on_one_line(match: re.Match[str]) -> str:
    return "[" + re.sub(r"\s+", " ", match[1]) + "]"
