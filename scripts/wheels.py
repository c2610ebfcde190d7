# SPDX-License-Identifier: Apache-2.0
"""The wheel: one file that installs without a compiler, with a shim for every supported torch.

`build` compiles the core once and the shim once for each torch. Of a torch it needs headers and
libraries alone. It takes them from a virtual environment that has this torch, else unpacks the
package of requirements/torch-<minor>.txt below build/torch. `auditwheel` then checks that no
library needs more of the system than POLICY allows, and gives the wheel its tag. `try_out` installs
the wheel into fresh virtual environments and runs the demonstration there.

Everything lies below build/, but for the whole wheel in dist/.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from environment import (
    MAIN,
    NEWEST_TORCH,
    REQUIREMENTS,
    UV,
    build_environment,
    clean_variables,
    warning_option,
)
from steps import ROOT, StepFailed, run, say

# The torches of the wheel, oldest first, and the major version of CUDA that PyPI's are built for.
MINORS = ("2.11", "2.12", "2.13", "2.14", "2.15")
CUDA_MAJOR = "13"
# The oldest system that the wheel serves: glibc 2.34 and libstdc++ of gcc 11, as in RHEL 9. Our
# compiled code needs that much; a torch of PyPI needs less.
POLICY = "manylinux_2_34_x86_64"
# The libraries that belong to torch and are in the process when a shim is loaded.
FOREIGN_LIBRARIES = ("libc10.so", "libc10_cuda.so", "libtorch*.so", f"libcudart.so.{CUDA_MAJOR}")
DIST = ROOT / "dist"
# Files without which the package or a C++ program cannot be used.
OTHER_FILES = (
    "__init__.py",
    "_build_info.py",
    "_page.html",
    "py.typed",
    "include/tencache.h",
    "cmake/tencacheConfig.cmake",
    "cmake/tencacheConfig-release.cmake",
    "cmake/tencacheConfigVersion.cmake",
)
# The wheel's own licence, and those of the libraries that are compiled into it: they have to be in
# the wheel.
LICENSES = (
    "LICENSE",
    "licenses/liburing.txt",
    "licenses/nlohmann-json.txt",
    "licenses/xxhash.txt",
)
# A wheel that lacks torches goes here, because it has the same name as the whole one.
PARTIAL = ROOT / "build" / "wheel" / "partial"
_UNPACKED = ROOT / "build" / "torch"
_BUILD = ROOT / "build" / "wheel"
# This folder is as deep as those of other builds, whose objects ccache finds by paths relative to
# them.
_TREE = ROOT / "build" / "wheel-tree"
_TRIAL = ROOT / "build" / "wheel-trial"
# The demonstration takes ten seconds a step on two cores; three steps show what its usual six do.
TRIAL_STEPS = "3"
_DEMO_PACKAGES = ("accelerate", "numpy", "plotext==5.*", "transformers==5.17.*")


def build(minors: Sequence[str] = MINORS, folder: Path = DIST) -> Path:
    """Builds the wheel for these torches, checks it, and puts it into `folder`; returns its path.

    Raises StepFailed if the wheel needs more of the system than POLICY allows, or lacks something.
    """
    tools: list[str | Path] = [
        UV,
        "pip",
        "install",
        "--python",
        MAIN.python,
        "-r",
        REQUIREMENTS / "wheel.txt",
    ]
    run("Install the tools that check wheels", tools)
    roots = ";".join(str(_torch_folder(minor)) for minor in minors)
    plain, repaired = _BUILD / "plain", _BUILD / "repaired"
    for made_anew in (plain, repaired):
        shutil.rmtree(made_anew, ignore_errors=True)
    command: list[str | Path] = [MAIN.python, "-m", "pip", "wheel", "--verbose", "--no-deps"]
    command += ["--disable-pip-version-check", "--no-build-isolation", "--wheel-dir", plain]
    command += ["--config-settings", f"build-dir={_TREE}"]
    command += ["--config-settings", f"cmake.define.{warning_option()}"]
    command += ["--config-settings", f"cmake.define.TENCACHE_TORCH_ROOTS={roots}", "."]
    run(f"Build the wheel for torch {', '.join(minors)}", command, environment=build_environment())
    (made,) = plain.glob("*.whl")
    repair: list[str | Path] = [MAIN.folder / "bin" / "auditwheel", "repair", "--plat", POLICY]
    for name in FOREIGN_LIBRARIES:
        repair += ["--exclude", name]
    run(
        f"Check the wheel against {POLICY}",
        [*repair, "--wheel-dir", repaired, made],
        environment=build_environment(),
    )
    (checked,) = repaired.glob("*.whl")
    with zipfile.ZipFile(checked) as archive:
        problems = problems_in(checked.name, archive.namelist(), minors)
    if problems:
        raise StepFailed(f"{checked.name}: {'; '.join(problems)}")
    folder.mkdir(exist_ok=True)
    # The Dockerfile installs the one wheel that lies there, so older ones have to go.
    for older in folder.glob("tencache-*.whl"):
        older.unlink()
    path = folder / checked.name
    shutil.move(checked, path)
    say(f"    {path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB")
    return path


def libraries_of(minors: Iterable[str]) -> set[str]:
    """The names of the libraries in a wheel for these torches."""
    names = {"libtencache.so", "libtencache_guard.so", "libtencache_preload.so"}
    for minor in minors:
        names.add(f"libtencache_torch-{minor}.so")
        names.add(f"libtencache_torch_cuda-{minor}-cu{CUDA_MAJOR}.so")
    return names


def problems_in(wheel: str, names: Collection[str], minors: Iterable[str]) -> list[str]:
    """The problems of a wheel of that name with those files, one clause each."""
    problems = []
    if not re.fullmatch(rf"tencache-[\w.]+-py3-none-(\w+\.)*{POLICY}(\.\w+)*\.whl", wheel):
        problems.append(f"its tags are not py3-none-{POLICY}")
    libraries = {name for name in names if re.search(r"\.so(\.|$)", name)}
    wanted = {f"tencache/{name}" for name in libraries_of(minors)}
    problems += [f"lacks {name}" for name in sorted(wanted - libraries)]
    problems += [f"holds {name}, which nobody asked for" for name in sorted(libraries - wanted)]
    problems += [
        f"lacks tencache/{name}" for name in OTHER_FILES if f"tencache/{name}" not in names
    ]
    problems += [
        f"lacks {name}"
        for name in LICENSES
        if not any(held.endswith(f".dist-info/licenses/{name}") for held in names)
    ]
    if not any(name.endswith(".dist-info/entry_points.txt") for name in names):
        problems.append("lacks its entry points, without which torch does not load it")
    problems += [
        f"holds {name}, which is no part of the package"
        for name in sorted(names)
        if not name.startswith("tencache/") and ".dist-info/" not in name
    ]
    return problems


def try_out(wheel: Path, minors: Sequence[str]) -> None:
    """Installs the wheel beside each of these torches, and runs the demonstration there."""
    refuse_unknown_torch(wheel)
    for minor in minors:
        python = _fresh_environment(minor)
        torch = _requirement(minor)
        install: list[str | Path] = [UV, "pip", "install", "--python", python]
        install += ["--only-binary", ":all:"]
        run(f"Install {torch} and the demonstration's needs", [*install, torch, *_DEMO_PACKAGES])
        run(f"Install the wheel beside {torch}", [*install, wheel])
        run(
            f"Demonstration with the wheel on {torch}",
            [python, "examples/demo.py", "--steps", TRIAL_STEPS],
            environment=clean_variables() | _without_compiler(),
            live=True,
        )


def refuse_unknown_torch(wheel: Path) -> None:
    """Checks what a user reads whose torch is too new; a stand-in with only a version plays it."""
    python = _fresh_environment("unknown")
    install: list[str | Path] = [UV, "pip", "install", "--python", python, "--no-deps", wheel]
    install += ["click", "rich", "markdown-it-py", "mdurl", "pygments"]
    run("Install the wheel beside an unknown torch", install)
    (packages,) = python.parent.parent.glob("lib/python3*/site-packages")
    (packages / "torch").mkdir(exist_ok=True)
    (packages / "torch" / "__init__.py").touch()
    (packages / "torch" / "version.py").write_text("__version__ = '2.99.0'\ncuda = None\n")
    check = (
        "import subprocess, sys; "
        "done = subprocess.run([sys.executable, '-m', 'tencache', 'doctor'], text=True, "
        "stdout=subprocess.PIPE, env={'COLUMNS': '400'}); "
        "print(done.stdout); "
        f"assert done.returncode == 1; assert '{MINORS[-1]}, but torch 2.99.0' in done.stdout"
    )
    run("Check that an unknown torch is refused", [python, "-c", check])


def _fresh_environment(name: str) -> Path:
    folder = _TRIAL / name
    shutil.rmtree(folder, ignore_errors=True)
    run(
        f"Make a fresh virtual environment for torch {name}",
        [UV, "venv", "--python", sys.executable, folder],
    )
    return folder / "bin" / "python"


def _without_compiler() -> dict[str, str]:
    """Variables of a machine without a compiler, and without this checkout's packages."""
    return {"CC": "/nowhere/cc", "CXX": "/nowhere/c++", "PYTHONPATH": ""}


def _requirement(minor: str) -> str:
    return (REQUIREMENTS / f"torch-{minor}.txt").read_text().strip()


def _torch_folder(minor: str) -> Path:
    """The folder of that torch's package; unpacks it without its dependencies if it is not here."""
    for environment in (MAIN, NEWEST_TORCH):
        if environment.torch == f"torch-{minor}":
            for found in environment.folder.glob("lib/python3*/site-packages/torch"):
                return found
    folder = _UNPACKED / minor
    requirement, stamp = _requirement(minor), folder / "requirement"
    if not stamp.exists() or stamp.read_text() != requirement:
        shutil.rmtree(folder, ignore_errors=True)
        command: list[str | Path] = [UV, "pip", "install", "--python", MAIN.python, "--no-deps"]
        run(f"Unpack {requirement}", [*command, "--target", folder, requirement])
        stamp.write_text(requirement)
    return folder / "torch"
