# SPDX-License-Identifier: Apache-2.0
"""Builds one mutation into a package of its own.

The package's build folder tells how the source is compiled and which library its object is linked
into. Both commands run with other paths: the changed source, its object and the library are in the
mutation's folder, everything else is read from the build folder. So nothing there or in the working
tree is written, and one object is compiled.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from catalogue import Mutation

from environment import MAIN, build_environment
from steps import ROOT

MINOR = MAIN.torch.removeprefix("torch-")
LIBRARIES = (
    "allocator/libtencache.so",
    "guard/libtencache_guard.so",
    "preload/libtencache_preload.so",
    f"shim/libtencache_torch-{MINOR}.so",
    f"shim/libtencache_torch_cuda-{MINOR}-cu13.so",
)


def changed_text(mutation: Mutation) -> str:
    """The source with the mutation; raises ValueError unless its text occurs exactly once."""
    text = (ROOT / mutation.source).read_text()
    if text.count(mutation.before) != 1:
        raise ValueError(
            f"{mutation.name!r}: its text occurs {text.count(mutation.before)} times in "
            f"{mutation.source}"
        )
    return text.replace(mutation.before, mutation.after)


def _inclusion(source: Path) -> str:
    return f'#include "{source}"'


def _compiles(command: dict[str, str], source: Path) -> bool:
    """Whether the command compiles the source, by itself or in one piece with others."""
    file = Path(command["file"])
    if "Unity" in file.parts:
        return _inclusion(source) in file.read_text().splitlines()
    return file == source


class MutatedPackage:
    def __init__(self, mutation: Mutation, folder: Path) -> None:
        self._mutation = mutation
        self._folder = folder
        self._build_folder = MAIN.build_folder

    def make(self) -> Path:
        """The folder to put first in PYTHONPATH."""
        package = self._folder / "package"
        shutil.copytree(self._installed(), package / "tencache")
        command = self._compile_command()
        object_name, compiled = command["output"], Path(command["file"])
        made_object = self._folder / "changed.o"
        original = ROOT / self._mutation.source
        changed = self._folder / original.name
        changed.write_text(changed_text(self._mutation))
        if compiled != original:
            # The source is one of several that are compiled in one piece.
            piece = compiled.read_text().replace(_inclusion(original), _inclusion(changed))
            changed = self._folder / compiled.name
            changed.write_text(piece)
        swapped = {object_name: str(made_object), str(compiled): str(changed)}
        words = [swapped.get(word, word) for word in shlex.split(command["command"])]
        # Warnings are off: a mutation may leave a variable or parameter unused.
        self._run([*words, "-w", f"-I{original.parent}"])
        for library in LIBRARIES:
            words = self._link_words(library)
            if object_name not in words:
                continue
            made_library = str(package / "tencache" / Path(library).name)
            swapped = {object_name: str(made_object), library: made_library}
            self._run([swapped.get(word, word) for word in words])
        return package

    def _installed(self) -> Path:
        (found,) = MAIN.folder.glob("lib/python3*/site-packages/tencache")
        return found

    def _compile_command(self) -> dict[str, str]:
        source = ROOT / self._mutation.source
        commands = json.loads((self._build_folder / "compile_commands.json").read_text())
        (found,) = [
            command
            for command in commands
            if "tests/" not in command["output"] and _compiles(command, source)
        ]
        return dict(found)

    def _link_words(self, library: str) -> list[str]:
        ninja = MAIN.folder / "bin" / "ninja"
        line = subprocess.run(
            [str(ninja), "-C", str(self._build_folder), "-t", "commands", "-s", library],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()[-1]
        # Ninja's line is ": && g++ … && :".
        return [word for word in shlex.split(line) if word not in (":", "&&")]

    def _run(self, words: list[str]) -> None:
        variables = {**os.environ, **build_environment()}
        subprocess.run(words, check=True, cwd=self._build_folder, env=variables)
