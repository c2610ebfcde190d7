# SPDX-License-Identifier: Apache-2.0
"""What the drawings of `tencache plan` share: checking the path, units, labels and saving.

matplotlib is an extra of the package (`pip install tencache[plot]`). It is loaded only when
something is drawn, and needs no display. Threads: none of its own.
"""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from tencache._library import TencacheError
from tencache._outputs import check_output, write_output

_SUFFIXES = (".png", ".svg")


def check_path(path: Path, flag: str, *inputs: Path) -> None:
    """Raises TencacheError if no drawing could be written there; call it before the planning.

    None may replace one of the `inputs`, the files that the command reads.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise TencacheError(
            f"{path} ends in neither {' nor '.join(_SUFFIXES)}, and these are what {flag} can "
            f"write. Write {flag} {path.with_suffix('.png')}."
        )
    check_output(path, flag, *inputs)
    if importlib.util.find_spec("matplotlib") is None:
        raise TencacheError(
            f"{flag} needs matplotlib, which is not installed here: "
            "`pip install 'matplotlib>=3.8'`."
        )


def save(figure: Any, path: Path) -> None:
    """Writes the drawing in the format of its suffix; equal drawings give equal bytes."""
    import matplotlib

    kind = path.suffix.lower().removeprefix(".")
    metadata = {"Date": None} if kind == "svg" else None
    drawing = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "tencache"}):
        figure.savefig(drawing, format=kind, dpi=150, metadata=metadata)
    write_output(path, drawing.getvalue())


def size_unit_for(largest: float) -> tuple[float, str]:
    """The unit of an axis of sizes up to this many bytes: how many bytes it has, and its name."""
    return _largest_unit(largest, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def time_unit_for(largest_ns: float) -> tuple[float, str]:
    """The unit of an axis of times: how many nanoseconds it has, and its name."""
    return _largest_unit(largest_ns, 1000, ("ns", "us", "ms", "s"))


def _largest_unit(largest: float, base: int, names: tuple[str, ...]) -> tuple[float, str]:
    """The largest unit in which the largest value is at least 1."""
    index = 0
    while largest >= base ** (index + 1) and index + 1 < len(names):
        index += 1
    return float(base**index), names[index]


def write_beside(
    axes: Any,
    text: str,
    point: tuple[float, float],
    offset: tuple[float, float],
    color: str,
    **how: Any,
) -> None:
    """Writes the text beside a point; the offset is in points of type."""
    axes.annotate(
        text, point, xytext=offset, textcoords="offset points", color=color, fontsize=9, **how
    )
