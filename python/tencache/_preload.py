# SPDX-License-Identifier: Apache-2.0
"""What a program is preloaded with, and the variable LD_PRELOAD.

There are two libraries. The guard sees kernels that no op announces; programs on GPUs are started
with it (docs/guard.md). The preload library enables tencache in programs that do not know of it, be
they Python or C++ (docs/cpp.md). `tencache preload` names what a program needs here; `tencache run`
sets the variable itself. Both expect a settled backend (`_backend.settle`).

Programs that such a program starts inherit the variable, as they do the options. This module
imports no torch. Threads: any; everything here is a function of its arguments and of the core's
options.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

from tencache import _backend
from tencache._library import Core, TencacheError
from tencache._messages import say, shortened

VARIABLE = "LD_PRELOAD"
_SEPARATORS = " :"


def add_guard(environment: MutableMapping[str, str], library: Core, guard: Path | None) -> None:
    """Makes the dynamic linker load the guard before all other libraries, where GPUs are used."""
    if guard is None or not _wants_guard(library):
        return
    _add(
        environment,
        guard,
        "kernels that no op announces are not seen, nor streams that the program destroys. "
        "Install tencache elsewhere, or silence this with --no-launch-guard.",
    )


def add_preload(environment: MutableMapping[str, str], preload: Path) -> None:
    """Makes the dynamic linker load the preload library."""
    consequence = "a C++ program would run without a budget. Install tencache elsewhere."
    _add(environment, preload, consequence)


def value(library: Core, guard: Path | None, preload: Path) -> str:
    """The variable's text under these options; raises TencacheError if a path forbids it."""
    paths = [preload]
    if guard is not None and _wants_guard(library):
        paths.insert(0, guard)  # before all others
    for path in paths:
        if _is_separated(path):
            raise TencacheError(
                f"{shortened(str(path))} cannot be preloaded, because its path has a space or a "
                "colon in it, at which the dynamic linker divides the list. Install tencache "
                "elsewhere, or enable it in the program: tencache.enable(), tencache_enable()."
            )
    return ":".join(map(str, paths))


def _wants_guard(library: Core) -> bool:
    is_on_gpus = library.option_text("backend") == _backend.CUDA
    return is_on_gpus and library.option_text("launch_guard") != "off"


def _is_separated(path: Path) -> bool:
    return bool(set(str(path)) & set(_SEPARATORS))


def _add(environment: MutableMapping[str, str], path: Path, consequence: str) -> None:
    """Adds the path to the variable, or warns of the consequence where it cannot stand there."""
    if _is_separated(path):
        say(
            f"warning: {path} cannot be preloaded, because its path has a space or a colon in it: "
            f"{consequence}"
        )
        return
    given = environment.get(VARIABLE, "")
    if str(path) not in re.split(f"[{_SEPARATORS}]", given):
        environment[VARIABLE] = f"{path}:{given}" if given else str(path)
