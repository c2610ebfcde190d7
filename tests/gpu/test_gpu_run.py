# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu/run.py on a GPU: its measurement of training steps works end to end.

So no rented GPU's time is lost to the script. tests/scripts/test_gpu_run.py tests how its parts are
kept apart.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from on_gpu import missing, run_command

pytestmark = pytest.mark.skipif(missing() != "", reason=missing())

RUN = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu" / "run.py"


def test_training_steps_are_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN), "--small", "--only", "gpt-1.3b-small-batch"]
    done = run_command([*command, "--out", str(tmp_path)], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (part,) = json.loads((tmp_path / "results.json").read_text())["parts"]
    stock, fits, half = part["figures"]["steps"]
    assert [row["name"] for row in (stock, fits, half)] == ["stock", "all fits", "tencache 50%"]
    assert stock["losses"] == fits["losses"] == half["losses"]
    assert fits["moved_bytes"] == 0
    assert half["moved_bytes"] > 0
    assert "tencache 50%" in (tmp_path / "results.md").read_text()
