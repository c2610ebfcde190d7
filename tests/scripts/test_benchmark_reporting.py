# SPDX-License-Identifier: Apache-2.0
"""benchmarks/reporting.py: tables that GitHub shows as tables."""

import re

import pytest
from reporting import Table

from repository import ROOT


def rulers(text: str) -> list[str]:
    """The cells below the titles of every table."""
    lines = [line for line in text.splitlines() if re.fullmatch(r"\|[-:| ]+\|", line)]
    return [cell.strip() for line in lines for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("cell", ["", "1"])
def test_a_narrow_column_has_a_ruler(cell: str) -> None:
    table = Table("Steps", ("budget", "", "step"), [("stock", cell, "1 s")])
    assert rulers(table.markdown()) == ["------", "-:", "---:"]


def test_the_tables_of_the_results_are_tables() -> None:
    for path in (ROOT / "benchmarks").rglob("*.md"):
        for ruler in rulers(path.read_text()):
            assert re.fullmatch(":?-+:?", ruler), (path.name, ruler)
