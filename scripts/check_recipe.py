#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders recipe/recipe.yaml, and compares it with the files that say the same.

rattler-build's own parser reads the recipe, so an unknown field or a template that cannot be
evaluated is found. Version, wheel and requirements must be those of the Python package.

Usage: check_recipe.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wheels import POLICY

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "recipe" / "recipe.yaml"
_CONDA_NAMES = {"torch": "pytorch"}
_DEPENDENCIES = re.compile(r"(?ms)^dependencies = \[\n(.*?)^\]")
_VERSION = re.compile(r"project\(tencache VERSION ([0-9.]+)")
_PYTHON = re.compile(r'(?m)^requires-python = "(.*)"$')


def wanted_requirements(pyproject: str) -> set[str]:
    """What the Python package needs when it runs, as conda writes it: "click >=8.1"."""
    listed, python = _DEPENDENCIES.search(pyproject), _PYTHON.search(pyproject)
    if listed is None or python is None:
        raise ValueError("pyproject.toml has no dependencies or no requires-python")
    wanted = {f"python {python[1]}"}
    for name, versions in re.findall(r'(?m)^  "([\w-]+)([^"]*)",', listed[1]):
        wanted.add(f"{_CONDA_NAMES.get(name, name)} {versions}")
    glibc = re.fullmatch(r"manylinux_(\d+)_(\d+)_\w+", POLICY)
    if glibc is not None:
        wanted.add(f"__glibc >={glibc[1]}.{glibc[2]}")
    return wanted


def problems_in(recipe: dict[str, Any], pyproject: str, cmake: str) -> Iterator[str]:
    """What differs between a rendered recipe and the Python package, one sentence each."""
    version = _VERSION.search(cmake)
    found = recipe["package"]["version"]
    if version is None or found != version[1]:
        yield f"its version is {found}, and CMakeLists.txt says {version and version[1]}"
    wheel = f"tencache-{found}-py3-none-{POLICY}.whl"
    if not any(str(source.get("path", "")).endswith(wheel) for source in recipe["source"]):
        yield f"it does not take {wheel}, which `make wheel` makes"
    requirements = set(map(str, recipe["requirements"]["run"]))
    wanted = wanted_requirements(pyproject)
    for missing in sorted(wanted - requirements):
        yield f"it does not require {missing}, as pyproject.toml does"
    for strange in sorted(requirements - wanted):
        yield f"it requires {strange}, and pyproject.toml does not"


def rendered(path: Path) -> list[dict[str, Any]]:
    """The recipe as rattler-build understands it, once for each variant."""
    import rattler_build

    variants = rattler_build.Stage0Recipe.from_file(path).render()
    return [variant.recipe.to_dict() for variant in variants]


def report(problems: Iterable[str]) -> int:
    count = 0
    for problem in problems:
        print(f"{RECIPE.relative_to(ROOT)}: {problem}")
        count += 1
    return 1 if count else 0


def main() -> int:
    (recipe,) = rendered(RECIPE)
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    return report(problems_in(recipe, pyproject, cmake))


if __name__ == "__main__":
    sys.exit(main())
