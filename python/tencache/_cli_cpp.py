# SPDX-License-Identifier: Apache-2.0
"""Commands for programs that are no Python scripts: preload, cmake-dir.

Each prints one line on stdout, for use in another command line; messages go to stderr.
"""

from __future__ import annotations

import click

from tencache import _backend, _preload, _runtime
from tencache._library import cmake_folder, core, guard_path, preload_path


@click.command("preload")
def preload() -> None:
    """Print what LD_PRELOAD takes to put tencache under a program.

    \b
    LD_PRELOAD=$(tencache preload) TENCACHE_DEVICE_MEMORY=8GiB ./program

    The program may be a Python script or a C++ program that links libtorch. Options are variables;
    where torch's memory is that of GPUs, the launch guard is part of what is printed.
    """
    library = core()
    _runtime.set_checked(library, {})
    _backend.settle(library)
    click.echo(_preload.value(library, guard_path(), preload_path()))


@click.command("cmake-dir")
def cmake_dir() -> None:
    """Print the folder in which CMake finds tencache.

    \b
    cmake -Dtencache_DIR=$(tencache cmake-dir) …

    find_package(tencache) then gives the target tencache::tencache, for #include <tencache.h>.
    """
    click.echo(str(cmake_folder()))
