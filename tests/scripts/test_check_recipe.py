# SPDX-License-Identifier: Apache-2.0
"""check_recipe.py on made-up recipes; `make lint` reads the real one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import check_recipe
import wheels

PYPROJECT = """
requires-python = ">=3.10"
dependencies = [
  # A comment.
  "torch>=2.11,<2.16",
  "click>=8.1",  # why
]
[project.optional-dependencies]
plot = ["matplotlib>=3.8"]
"""
CMAKE = "project(tencache VERSION 0.1.0 LANGUAGES CXX)"
RECIPE: dict[str, Any] = {
    "package": {"name": "tencache", "version": "0.1.0"},
    "source": [
        {"path": f"../dist/tencache-0.1.0-py3-none-{wheels.POLICY}.whl"},
        {"path": "../LICENSE"},
    ],
    "requirements": {
        "run": ["python >=3.10", "pytorch >=2.11,<2.16", "click >=8.1", "__glibc >=2.34"]
    },
}


def problems(recipe: dict[str, Any]) -> list[str]:
    return list(check_recipe.problems_in(recipe, PYPROJECT, CMAKE))


def test_a_recipe_that_says_the_same_has_no_problems() -> None:
    assert problems(RECIPE) == []


@pytest.mark.parametrize(
    ("requirement", "problem"),
    [
        ("pytorch >=2.11,<2.15", "does not require pytorch >=2.11,<2.16"),
        ("numpy", "requires numpy"),
    ],
)
def test_other_requirements_are_found(requirement: str, problem: str) -> None:
    recipe = copy.deepcopy(RECIPE)
    run = recipe["requirements"]["run"]
    name = requirement.split()[0]
    run[:] = [each for each in run if not each.startswith(name)] + [requirement]
    assert any(problem in found for found in problems(recipe)), problems(recipe)


def test_another_version_is_found() -> None:
    recipe = copy.deepcopy(RECIPE)
    recipe["package"]["version"] = "0.2.0"
    first, second = problems(recipe)
    assert "0.2.0" in first and "0.1.0" in first
    assert "does not take tencache-0.2.0" in second
