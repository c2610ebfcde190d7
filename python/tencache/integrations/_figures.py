# SPDX-License-Identifier: Apache-2.0
"""What the integrations log: figures of this process since they were last logged.

Threads: one at a time, that of the training loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tencache
from tencache._messages import say


class StepFigures:
    """Turns the running totals of `tencache.stats()` into figures of the steps in between."""

    def __init__(self) -> None:
        self._begin: Mapping[str, Any] | None = None
        self._before: Mapping[str, Any] | None = None

    def begin(self) -> None:
        """Starts counting. Says so if tencache is not enabled; there are no figures then."""
        if tencache.is_enabled():
            self._begin = self._before = tencache.stats()
        else:
            say(
                "warning: TencacheCallback logs nothing, because tencache is not enabled in this "
                "process. Start the program with `tencache run`, or set TENCACHE=1."
            )

    def take(self) -> dict[str, float]:
        """The figures since `begin` or the last call; empty if tencache is not enabled.

        `tencache_stall_s`: seconds in which the device waited for tensors or room.
        `tencache_fetched_bytes` and `tencache_evicted_bytes`: bytes that came back and that left.
        `tencache_early_share`: of the fetched bytes, the share that came before it was needed;
        absent if nothing was fetched. `tencache_peak_device_bytes`: the most that was in use on the
        device so far, against the budget.
        """
        if self._before is None:
            return {}
        before, self._before = self._before, tencache.stats()
        return _between(before, self._before)

    def total(self) -> dict[str, float]:
        """The same figures since `begin`, under names of their own: `tencache_total_stall_s`, …

        In a chart of the steps in between, a sum of all would stand out as a spike. The peak has
        one name, as it is always the highest so far.
        """
        if self._begin is None:
            return {}
        return {
            name if name == _PEAK else name.replace(_PREFIX, f"{_PREFIX}total_", 1): figure
            for name, figure in _between(self._begin, tencache.stats()).items()
        }


_PREFIX = "tencache_"
_PEAK = "tencache_peak_device_bytes"
_BYTES = ("fetched", "fetched_early", "evicted")


def _between(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, float]:
    moved = {name: now["bytes"][name] - before["bytes"][name] for name in _BYTES}
    figures = {
        "tencache_stall_s": now["stall_s"] - before["stall_s"],
        "tencache_fetched_bytes": float(moved["fetched"]),
        "tencache_evicted_bytes": float(moved["evicted"]),
        _PEAK: float(now["peak"]["device"]),
    }
    if moved["fetched"] > 0:
        figures["tencache_early_share"] = moved["fetched_early"] / moved["fetched"]
    return figures
