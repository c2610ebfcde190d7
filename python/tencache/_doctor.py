# SPDX-License-Identifier: Apache-2.0
"""What `tencache doctor` says: what this machine offers, what is missing, and how to get it.

The core probes the machine (memory, cgroup, spill directory, io_uring, kernel interfaces) and
gives a JSON object of sections; Python adds a section about torch and one about itself. The table
is made from whatever the sections hold: a key that ends in `_bytes` is shown as a size, and a key
`x_reason` is shown beside `x`. So a new probe in the core needs no change here.
Imports no torch: its version is read from its files. Threads: none of its own.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tencache._library import (
    Core,
    built_for_torch,
    installed_torch,
    mismatch_message,
    package_version,
)
from tencache._report import format_bytes

_REASON = "_reason"


def collect(library: Core) -> dict[str, Any]:
    """The core's sections and ours. Opens the probed files only for a moment; starts nothing."""
    return {
        "tencache": {
            "version": package_version(),
            "python": f"{platform.python_version()} ({sys.executable})",
        },
        "torch": torch_section(installed_torch(), built_for_torch()),
        **library.doctor(),
    }


def torch_section(installed: str | None, built_for: str) -> dict[str, Any]:
    """Whether the installed torch is the one the shim was compiled against, and the remedy."""
    section: dict[str, Any] = {
        "installed": installed,
        "built_for": built_for,
        "fits": installed == built_for,
    }
    if installed is None:
        section["fits_reason"] = f"torch is not installed; `pip install torch=={built_for}`"
    elif installed != built_for:
        section["fits_reason"] = mismatch_message(installed, built_for)
    return section


def is_usable(report: Mapping[str, Any]) -> bool:
    """Whether a program could be started under tencache here."""
    return bool(report["torch"]["fits"])


def rows(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A section as (label, text) rows; nested objects become rows with the outer label in front."""
    names = {key.removesuffix("_bytes") for key in section}
    for key, value in section.items():
        if key.endswith(_REASON) and key.removesuffix(_REASON) in names:
            continue  # Shown beside what it explains.
        name = key.removesuffix("_bytes")
        label = prefix + name.replace("_", " ")
        if isinstance(value, Mapping):
            yield from rows(value, prefix=f"{label}: ")
            continue
        reason = section.get(name + _REASON)
        text = value_text(key, value)
        yield label, f"{text} ({reason})" if reason else text


def value_text(key: str, value: object) -> str:
    """One value as text: sizes, yes and no, and lists on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return "none"
    if isinstance(value, (int, float)) and key.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, list):
        return ", ".join(value_text("", item) for item in value) or "none"
    return str(value)


def show(report: Mapping[str, Any], console: Console) -> None:
    """Prints the report as one table with a part for each section."""
    table = Table(title="tencache doctor", show_header=False, title_justify="left")
    table.add_column("what", style="bold", no_wrap=True)
    table.add_column("found", overflow="fold")
    for name, section in report.items():
        table.add_section()
        if not isinstance(section, Mapping):
            table.add_row(name.replace("_", " "), value_text(name, section))
            continue
        for index, (label, text) in enumerate(rows(section)):
            shown = f"{name.replace('_', ' ')}: {label}" if index == 0 else f"  {label}"
            table.add_row(shown, text)
    console.print(table)
