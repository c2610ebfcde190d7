# SPDX-License-Identifier: Apache-2.0
"""The option table in Python, and how Python values become its texts.

The only table is in the core (allocator/base/options.cpp). From it come the keywords of
`tencache.enable`, the flags of `tencache run` and the table in docs/options.md (`python -m
tencache._options` prints it). Only the core reads texts (of keywords, flags and variables) and
holds the defaults; this file only writes values as text. The variable TENCACHE is not an option: it
is read here, because the core is not loaded if it says no. Threads: any; everything here is a pure
function of its arguments and of the table.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tencache._library import OptionError, core
from tencache._messages import shortened

SWITCH = "TENCACHE"

# Names may be of any length, and difflib takes time with the square of it.
_ASKED_NAME_MAX = 64

_TRUE = frozenset({"1", "on", "true", "yes"})
_FALSE = frozenset({"", "0", "off", "false", "no"})


@dataclass(frozen=True)
class Option:
    """One row of the table, as the core writes it; `choices` are separated by "|"."""

    name: str
    kind: str
    choices: str
    default: str
    help: str
    environment: str
    flag: str


@functools.cache
def table() -> tuple[Option, ...]:
    """All options, in the order in which they should be shown."""
    return tuple(Option(**row) for row in core().option_table())


def find(name: str) -> Option:
    """The option of that name; raises TypeError, as for an unknown keyword, if there is none."""
    for option in table():
        if option.name == name:
            return option
    names = [option.name for option in table()]
    near = _similar(name[:_ASKED_NAME_MAX].lower(), names)
    remedy = f"the options are {', '.join(names)}."
    if near:
        remedy = f"did you mean {' or '.join(map(repr, near))}?"
    raise TypeError(f"tencache has no option '{shortened(name)}': {remedy}")


def _similar(asked: str, names: Iterable[str]) -> list[str]:
    """The names that may have been meant.

    They are those with all words of the asked one ("memory" is a word of host_memory). If there are
    none, it is the name that is spelled almost like the asked one, or else those with some of its
    words.
    """
    words = set(asked.split("_"))
    with_all = [name for name in names if words <= set(name.split("_"))]
    near = difflib.get_close_matches(asked, names, n=1, cutoff=0.75)
    return with_all or near or [name for name in names if words & set(name.split("_"))]


def to_text(option: Option, value: object) -> str:
    """Writes a Python value as the option's text. Raises TypeError if the type does not fit."""
    if isinstance(value, bool):
        if option.kind == "flag" or {"on", "off"} <= set(option.choices.split("|")):
            return "on" if value else "off"
    elif isinstance(value, str):
        return value
    elif isinstance(value, os.PathLike) and option.kind == "path":
        return os.fsdecode(value)
    elif isinstance(value, int) and option.kind in ("bytes", "number"):
        return str(value)
    elif isinstance(value, float) and option.kind == "number":
        return repr(value)
    wanted = {
        "bytes": 'a size such as "2GiB", or bytes as an int',
        "path": "a path",
        "flag": "True or False",
        "choice": f"one of {option.choices.replace('|', ', ')}",
        "number": "a number",
    }.get(option.kind, "text")
    raise TypeError(
        f"tencache option {option.name}={shortened(repr(value))} is of type "
        f"{type(value).__name__}; give {wanted}."
    )


def texts_of(values: Mapping[str, object]) -> dict[str, str]:
    """The options' texts by name; what is None is not given."""
    return {name: to_text(find(name), value) for name, value in values.items() if value is not None}


def switch_is_on(value: str | None) -> bool:
    """Whether TENCACHE asks for tencache. Raises OptionError if it says neither yes nor no."""
    word = (value or "").strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise OptionError(
        f"{SWITCH}={shortened(value or '')} says neither yes nor no. Use {SWITCH}=1 or {SWITCH}=0; "
        f"options have variables of their own, such as {SWITCH}_DEVICE_MEMORY=2GiB."
    )


def markdown_lines(options: Iterable[Option]) -> list[str]:
    """The table of docs/options.md."""
    lines = ["| option | variable | default | meaning |", "|---|---|---|---|"]
    for option in options:
        flags, meaning = f"`{option.flag}`", option.help
        if option.kind == "flag":
            flags += f", `--no-{option.flag.removeprefix('--')}`"
        if option.choices:
            meaning += f" ({option.choices.replace('|', ', ')})"
        cells = (flags, f"`{option.environment}`", f"`{option.default}`", meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


if __name__ == "__main__":
    print("\n".join(markdown_lines(table())))
