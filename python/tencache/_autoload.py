# SPDX-License-Identifier: Apache-2.0
"""The entry point of group `torch.backends`: what `import torch` calls when tencache is installed.

It does nothing unless the variable TENCACHE asks for tencache: a program that does not want it pays
for the import of this small package, and no library is loaded. It runs at the end of
torch/__init__.py, before some of torch's own modules exist: it imports no submodule of torch and
touches no device.

It never raises an Exception, which torch would turn into a failed import that blames a backend
extension. Where a program asked for tencache and it cannot start (a value that cannot be used, a
torch it was not built for), going on would mean training without the budget that was asked for: one
line says why, and the process ends with status 2 through SystemExit, which torch lets pass.

Processes that only launch or compile for others (torchrun, accelerate launch, Inductor's compile
workers) inherit the variable but hold no tensors: they are left alone, and what they start is not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

EXIT_STATUS = 2

_LAUNCHER_MODULES = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "torch._inductor.compile_worker",
    }
)
_LAUNCHER_SCRIPTS = frozenset({"torchrun", "accelerate", "accelerate-launch"})
_COMPILE_WORKER = ("torch", "_inductor", "compile_worker", "__main__.py")


def autoload() -> None:
    """Enables tencache when TENCACHE asks for it. Raises no Exception, at most SystemExit."""
    value = os.environ.get("TENCACHE")
    if not value:
        return
    try:
        from tencache import _options, _runtime

        if _options.switch_is_on(value) and not is_launcher(sys.orig_argv):
            _runtime.enable()
    except Exception as error:
        sys.stderr.write(f"tencache: error: {_one_line(error)}\n")
        sys.stderr.write(
            "tencache: error: The program ends here, since TENCACHE asked for tencache and it "
            "cannot start. Unset TENCACHE to run without it.\n"
        )
        sys.stderr.flush()
        raise SystemExit(EXIT_STATUS) from error


def is_launcher(command: Sequence[str]) -> bool:
    """Whether this command line (sys.orig_argv) is one of a process that holds no tensors."""
    arguments = iter(command[1:])
    for argument in arguments:
        if argument == "-m":
            return next(arguments, "") in _LAUNCHER_MODULES
        if argument == "-c":
            return False
        if argument in ("-W", "-X"):
            next(arguments, None)  # Its value.
            continue
        if not argument.startswith("-"):
            script = Path(argument)
            return script.name in _LAUNCHER_SCRIPTS or script.parts[-4:] == _COMPILE_WORKER
    return False


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    from tencache._library import TencacheError

    # What is not our own message needs its type to be understood.
    return text if isinstance(error, TencacheError) else f"{type(error).__name__}: {text}"
