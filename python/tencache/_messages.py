# SPDX-License-Identifier: Apache-2.0
"""What users read: lines on stderr, and texts from outside as a line shows them.

Of several processes each names itself: by the rank that a launcher has set, or as a worker of
multiprocessing by its process id. The core's messages carry the same label. A program may have been
started without stderr, or may have closed it; then `sys.stderr` is None or refuses the line. Nobody
is there to tell, and that must not become an error of its own. This module imports nothing of the
package, since it also reports that the rest cannot be imported. Threads: any.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_MOST_OF_A_TEXT, _MOST_OF_A_LINE = 240, 2000
# The levels of the option log_level; a line begins with its level, but for those of `info`.
_LEVELS = ("error", "warning", "info", "debug")
_most_verbose = "debug"


def set_log_level(level: str) -> None:
    """Keeps `say` from writing lines that are more verbose than this level."""
    global _most_verbose
    _most_verbose = level


def say(line: str) -> None:
    """Writes "tencache: <line>" on stderr, if there is one, as one line whatever is in it.

    A line that begins with "error:" or "warning:" has that level, any other one is for information.
    """
    level = line.partition(":")[0]
    if level not in _LEVELS:
        level = "info"
    if _LEVELS.index(level) > _LEVELS.index(_most_verbose):
        return
    label = process_label(os.environ)
    if label:
        line = f"{label}: {line}"
    try:
        sys.stderr.write(f"tencache: {shortened(line, _MOST_OF_A_LINE)}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def process_label(environment: Mapping[str, str]) -> str:
    """Who of several processes speaks: "rank 1", "pid 4711", "rank 1 pid 4711"; else ""."""
    rank = rank_of(environment)
    words = [] if rank is None else [f"rank {rank}"]
    if is_spawned():
        words.append(f"pid {os.getpid()}")
    return " ".join(words)


def rank_of(environment: Mapping[str, str]) -> int | None:
    """This process's rank as set by launchers (torchrun); None if there is only one."""
    rank = environment.get("RANK", "")
    world = environment.get("WORLD_SIZE", "")
    return int(rank) if rank.isdigit() and world.isdigit() and int(world) > 1 else None


# The command of multiprocessing's fork server has this text. The server may import what its workers
# need, and outlives the program.
_FORK_SERVER = "from multiprocessing.forkserver import main"


def is_spawned() -> bool:
    """Whether multiprocessing started this process, as a worker of another one."""
    # A worker has imported multiprocessing. An import here would cost others time, and may fail by
    # now.
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return False
    # While a worker imports the program's main module it has no parent yet; only this tells.
    is_importing_main = getattr(multiprocessing.current_process(), "_inheriting", False)
    return (
        is_importing_main
        or multiprocessing.parent_process() is not None
        or any(_FORK_SERVER in argument for argument in sys.orig_argv)
    )


def shortened(text: str, most: int = _MOST_OF_A_TEXT) -> str:
    """The text on one line: without its middle if it is long, and with control characters escaped.

    The core does the same with bytes (allocator/base/shown_text.h).
    """
    if len(text) > most:
        head, tail = most * 2 // 3, most // 3
        note = f" [{len(text) - head - tail} characters left out] "
        text = f"{text[:head]}{note}{text[-tail:]}"
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def counted(count: int, noun: str, plural: str = "") -> str:
    """The count with its noun: 1 wait, 2 waits."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"
