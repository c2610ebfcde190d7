# SPDX-License-Identifier: Apache-2.0
"""examples/demo.py: what it says of a run."""

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
