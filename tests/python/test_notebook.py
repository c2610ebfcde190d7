# SPDX-License-Identifier: Apache-2.0
"""The notebook of the quick start: it is kept without results, and its cells run one after another.

A cell is plain Python, without commands of IPython, so the cells together are a program. It runs as
in a kernel, except that nothing is shown but what is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

# What the notebook shows does not depend on the installed torch.
pytestmark = pytest.mark.any_torch

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "quickstart.ipynb"


def code_cells() -> list[Any]:
    notebook = nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_kept_without_results() -> None:
    for cell in code_cells():
        assert cell.outputs == [], cell.source
        assert cell.execution_count is None, cell.source


def test_its_cells_run(run_python: Callable[..., Any], tmp_path: Path) -> None:
    done = run_python(*(cell.source for cell in code_cells()), env={"OMP_NUM_THREADS": "1"})
    assert "the same to the last bit" in done.stdout
    assert "wrote run.html" in done.stdout
    assert (tmp_path / "run.html").stat().st_size > 0
