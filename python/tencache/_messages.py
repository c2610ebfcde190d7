# SPDX-License-Identifier: Apache-2.0
"""What users read: lines on stderr, and texts from outside as a line shows them.

A program may have been started without stderr, or may have closed it; then `sys.stderr` is None or
refuses the line. Nobody is there to tell, and that must not become an error of its own. Imports
nothing of the package, since it also reports that the rest cannot be imported. Threads: any.
"""

from __future__ import annotations

import sys

_MOST_OF_A_TEXT, _MOST_OF_A_LINE = 240, 2000


def say(line: str) -> None:
    """Writes "tencache: <line>" on stderr, if there is one, as one line whatever is in it."""
    try:
        sys.stderr.write(f"tencache: {shortened(line, _MOST_OF_A_LINE)}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def shortened(text: str, most: int = _MOST_OF_A_TEXT) -> str:
    """The text on one line: without its middle if it is long, and with control characters escaped.

    The core does the same with bytes (allocator/base/shown_text.h).
    """
    if len(text) > most:
        head, tail = most * 2 // 3, most // 3
        note = f" [{len(text) - head - tail} characters left out] "
        text = f"{text[:head]}{note}{text[-tail:]}"
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
