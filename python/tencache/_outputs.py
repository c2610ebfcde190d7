# SPDX-License-Identifier: Apache-2.0
"""The files that commands write: a check that may come before the work, and the writing itself.

Threads: none.
"""

from __future__ import annotations

from pathlib import Path

from tencache._library import TencacheError, core


def check_output(path: Path, flag: str, *inputs: Path | None) -> None:
    """Raises TencacheError if the file could not be written, or would replace one that is read.

    `flag` is the option that names it; `inputs` are the files that the command reads.
    """
    reason = core().why_not_writable(path.absolute())
    if reason is not None:
        raise TencacheError(
            f"{path} cannot be written: {reason}. Name a file in an existing, writable directory "
            f"with {flag}."
        )
    for read in inputs:
        if read is not None and core().is_same_output(path, read):
            raise TencacheError(
                f"{path} would replace {read}, which this command reads. Name another file with "
                f"{flag}."
            )


def write_output(path: Path, content: bytes) -> None:
    """Writes the file; raises TencacheError, which names the file, if that fails."""
    try:
        core().write_file(path.absolute(), content)
    except TencacheError as error:
        raise TencacheError(f"{path} cannot be written: {error}.") from error
