# SPDX-License-Identifier: Apache-2.0
"""benchmarks/support.py: what counts as a measurement."""

from pathlib import Path

import pytest

import support

ANSWERS = "import os, support\nsupport.answer({'step_s': 1})\n"


def run_worker(folder: Path, program: str) -> dict[str, object]:
    worker = folder / "worker.py"
    worker.write_text(program)
    variables = {"PYTHONPATH": str(Path(support.__file__).parent)}
    return support.run_worker(str(worker), {}, support.STOCK, variables=variables)


def test_the_answer_is_the_workers(tmp_path: Path) -> None:
    assert run_worker(tmp_path, ANSWERS)["step_s"] == 1


@pytest.mark.parametrize(
    ("program", "status"), [(ANSWERS + "os.abort()", -6), ("print('nothing')", 0)]
)
def test_a_worker_that_does_not_end_well_has_no_answer(
    tmp_path: Path, program: str, status: int
) -> None:
    with pytest.raises(support.BenchmarkFailed, match=f"ended with status {status}:"):
        run_worker(tmp_path, program)
