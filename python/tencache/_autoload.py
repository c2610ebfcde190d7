# SPDX-License-Identifier: Apache-2.0
"""The entry point of group `torch.backends`: `import torch` calls it when tencache is installed.

It does nothing unless the variable TENCACHE asks for tencache. Otherwise a program pays only for
the import of this small package; no library is loaded. It runs at the end of torch/__init__.py,
before some of torch's own modules exist, so it imports no submodule of torch and touches no device.

Where options are set as variables and TENCACHE is not, a line says so when the program ends. Only
then is it known that the program has not called `tencache.enable()` either.

It never raises an Exception: torch would turn that into a failed import that blames a backend
extension. If the program asked for tencache and it cannot start (a bad value, a torch it was not
built for), the program must not train without its budget. So one line says why, and the process
ends with status 2 through SystemExit, which torch lets pass.

Processes that only launch or compile for others (torchrun, accelerate launch, Inductor's helpers)
inherit the variable but hold no tensors of the program. They run without tencache; the programs
that they launch do not.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tencache._messages import is_spawned, say, shortened

EXIT_STATUS = 2
# torch loads extensions, tencache among them, only if this is unset or "1".
VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# The preload library sets this where it has set TENCACHE and the user has not.
_ASKED_BY = "TENCACHE_INTERNAL_ASKED_BY"

_LAUNCHER_MODULES = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "torch._inductor.compile_worker",
    }
)
_LAUNCHER_SCRIPTS = frozenset({"torchrun", "accelerate", "accelerate-launch"})
# Scripts of Inductor: its pool that compiles, and the process that tries kernels.
_INDUCTOR_SCRIPTS = frozenset(
    {
        ("torch", "_inductor", "compile_worker", "__main__.py"),
        ("torch", "_inductor", "__autotune_main__.py"),
    }
)
# The lines of the text with which Inductor finds out whether the processor runs its vector code;
# torch 2.15 has all of them, older ones some. The process runs in another folder; if it failed,
# compiled kernels would have no vector instructions.
_INDUCTOR_TRIAL_LINE = re.compile(
    r"""import\ sys | import\ torch\ *(\#.*)? | from\ ctypes\ import\ cdll
    | if\ sys\.platform\ !=\ "linux": | try: | except\ OSError: | raise
    | cdll\.LoadLibrary\("[^"\n]*"\)""",
    re.VERBOSE,
)


def autoload() -> None:
    """Enables tencache if TENCACHE asks for it. Raises at most SystemExit, never an Exception."""
    value = os.environ.get("TENCACHE")
    if not value:
        _watch_unused_variables()
        return
    try:
        from tencache import _options, _runtime

        if _options.switch_is_on(value) and not is_launcher(sys.orig_argv):
            _runtime.enable()
    except Exception as error:
        asker = os.environ.get(_ASKED_BY, "TENCACHE")
        remedy = "Unset TENCACHE, or set TENCACHE=0," if asker == "TENCACHE" else "Set TENCACHE=0"
        say(f"error: {_one_line(error)}")
        say(
            f"error: The program ends here, since {shortened(asker)} asked for tencache and it "
            f"cannot start. {remedy} to run without it."
        )
        raise SystemExit(EXIT_STATUS) from error


def unused_variables(environment: Mapping[str, str]) -> list[str]:
    """The variables of options that `import torch` ignores, as TENCACHE says neither yes nor no.

    The launcher and `tencache.enable()` read them all the same.
    """
    if "TENCACHE" in environment:
        return []
    return sorted(
        name
        for name in environment
        if name.startswith("TENCACHE_") and not name.startswith("TENCACHE_INTERNAL_")
    )


def unused_message(names: Sequence[str], consequence: str) -> str:
    """What follows from unused variables, and what to do about it."""
    verb = "is" if len(names) == 1 else "are"
    return (
        f"{shortened(', '.join(names))} {verb} set, and TENCACHE is not, so {consequence}. Set "
        "TENCACHE=1, too, or start the program with `tencache run -- …`; TENCACHE=0 says that it "
        "is meant to run without."
    )


def _watch_unused_variables() -> None:
    names = unused_variables(os.environ)
    if names and not is_launcher(sys.orig_argv) and not is_spawned():
        atexit.register(_tell_unused, names, os.getpid())


def _tell_unused(names: Sequence[str], pid: int) -> None:
    """A forked child says nothing: its parent does."""
    from tencache import _runtime

    if os.getpid() != pid or _runtime.is_enabled() or _is_started_by_cpp():
        return
    if _runtime.was_asked():
        say(
            f"warning: {shortened(', '.join(names))} had no effect: the program asked for tencache "
            "and was refused, so it ran without."
        )
    else:
        say(f"warning: {unused_message(names, 'this program ran without tencache')}")


def _is_started_by_cpp() -> bool:
    """Whether the C++ program that embeds this Python has enabled tencache itself."""
    import ctypes

    is_started = getattr(ctypes.CDLL(None), "tencache_is_started", None)
    return is_started is not None and bool(is_started())


def refuse_if_not_loaded() -> None:
    """The preload library calls this when a program imports torch; raises at most SystemExit.

    It does so only where a variable kept torch from loading extensions at the program's start.
    """
    reason = why_not_loaded(os.environ)
    if reason is None or is_launcher(sys.orig_argv):
        return
    try:
        from tencache import _options

        is_wanted = _options.switch_is_on(os.environ.get("TENCACHE"))
    except Exception as error:
        reason, is_wanted = _one_line(error), True
    if is_wanted:
        say(f"error: {reason}")
        raise SystemExit(EXIT_STATUS)


def why_not_loaded(environment: Mapping[str, str]) -> str | None:
    """Why a torch with this environment would never call `autoload`; None if it would."""
    value = environment.get(VARIABLE, "1")
    if value == "1":
        return None
    return (
        f"{VARIABLE}={shortened(value)} stops torch from loading extensions, and with `tencache "
        "run`, LD_PRELOAD or TENCACHE=1 tencache starts as one: the program would run without a "
        f"budget. Unset the variable (`env -u {VARIABLE} tencache run …`). A program that calls "
        "tencache.enable() itself needs neither."
    )


def is_launcher(command: Sequence[str]) -> bool:
    """Whether this command line (sys.orig_argv) starts a process that holds no tensors."""
    kind, text = what_runs(command[1:])
    if kind == "c":
        return _is_inductor_trial(text)
    if kind == "m":
        return text in _LAUNCHER_MODULES
    script = Path(text)
    return script.name in _LAUNCHER_SCRIPTS or any(
        script.parts[-len(parts) :] == parts for parts in _INDUCTOR_SCRIPTS
    )


def what_runs(arguments: Sequence[str]) -> tuple[str, str]:
    """What a Python runs by its arguments: ("m", a module), ("c", code) or ("script", a path).

    Two empty texts if they tell nothing.
    """
    words = iter(arguments)
    for word in words:
        if word.startswith("--"):
            continue
        if not word.startswith("-"):
            return "script", word
        # Letters may be joined: -um torch.distributed.run, -mtorch.distributed.run.
        letter, value = _option_with_value(word[1:])
        if letter and not value:
            value = next(words, "")
        if letter in ("c", "m"):
            return letter, value
    return "", ""


def _is_inductor_trial(code: str) -> bool:
    lines = [line.strip() for line in code.splitlines() if line.strip()]
    return "from ctypes import cdll" in lines and all(
        _INDUCTOR_TRIAL_LINE.fullmatch(line) for line in lines
    )


def _option_with_value(letters: str) -> tuple[str, str]:
    """The first of Python's options that takes a value, and what is joined to it; or nothing."""
    for place, letter in enumerate(letters):
        if letter in "cmWX":
            return letter, letters[place + 1 :]
    return "", ""


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    from tencache._library import TencacheError

    # A message that is not ours needs its type to be understood.
    return text if isinstance(error, TencacheError) else f"{type(error).__name__}: {text}"
