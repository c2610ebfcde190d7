# SPDX-License-Identifier: Apache-2.0
"""examples/demo.py: what it says of a run, and that its stock runs are stock."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import demo
import pytest


def stats(peak: int = 100, events: int = 0, evicted: int = 1) -> dict[str, Any]:
    return {
        "peak": {"device": peak},
        "budget": {"device": 100},
        "over_budget": {"events": events, "peak_bytes": max(0, peak - 100)},
        "bytes": {"evicted": evicted},
    }


@pytest.mark.parametrize(
    ("differing_bits", "differing_hashes", "of_the_run", "said"),
    [
        (0, 0, stats(), "Same bits, within the budget."),
        (3, 0, stats(), "FAILED: 3 differing bits in losses"),
        (0, 2, stats(), "FAILED: 2 live tensors differ"),
        (0, 0, stats(peak=120, events=4), "FAILED: times over the budget: 4, by 20 B at most"),
        (0, 0, stats(peak=120), "FAILED: the peak exceeds the budget and no event says so"),
        (0, 0, stats(evicted=0), "FAILED: nothing was evicted: the budget was never felt"),
    ],
)
def test_a_broken_promise_is_named(
    differing_bits: int,
    differing_hashes: int,
    of_the_run: dict[str, Any],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    is_kept = demo.verdict({"losses": differing_bits}, differing_hashes, of_the_run)
    assert capsys.readouterr().out == said + "\n"
    assert is_kept == (not said.startswith("FAILED"))


def test_the_peak_is_that_of_stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENCACHE", "1")
    monkeypatch.setenv("TENCACHE_DEVICE_MEMORY", "1GiB")
    tells_variables = tmp_path / "train.py"
    tells_variables.write_text(
        "import json, os, sys\n"
        "path = sys.argv[sys.argv.index('--report') + 1]\n"
        "variables = sorted(name for name in os.environ if name.startswith('TENCACHE'))\n"
        "json.dump({'peak_bytes': variables}, open(path, 'w'))\n"
    )
    monkeypatch.setattr(demo, "SCRIPT", tells_variables)
    folder = tmp_path / "peak"
    folder.mkdir()
    assert demo.measure_peak(folder, SimpleNamespace(cuda=False)) == []
