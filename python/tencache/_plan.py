# SPDX-License-Identifier: Apache-2.0
"""`tencache plan`: how long a recorded step would take on a machine that need not exist.

The core plans a period for one budget and one disk and predicts what would happen (planner and
simulator, allocator/learn). We ask it for several budgets: those of the command, the smallest that
is never exceeded and, by bisection, the smallest whose step takes at most 5% longer than computing
alone. Without host memory, the link between device and host and the disk behind it form one pipe,
as wide as the narrower of the two. With host memory, bytes that leave the device go over the link
to host memory, and on to the disk below if they do not fit there. Where several GPUs share these,
one GPU is planned, with its part of them (_pipe.py).

Units: bytes, nanoseconds and bytes per second; seconds in the JSON. Threads: `predict_all` asks the
core from several at once; the rest runs on the caller's.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tencache._library import Core, MachineStruct, OptionError, core
from tencache._period_file import Period
from tencache._pipe import Pipe, sharing, speeds
from tencache._units import format_bytes, format_time

NEAR_IDEAL = 1.05
# How close the search comes to the cheapest budget, as a share of the peak.
_SEARCH_SHARE = 0.01
_ANY_BUDGET = 2**64 - 1
_COLUMNS = ("budget", "share", "step", "/ ideal", "/ bound", "stall", "moving", "read", "written")


@dataclass(frozen=True)
class Budget:
    """A budget as requested: bytes, or a share of the period's peak."""

    amount: float
    is_share: bool

    def bytes_of(self, peak_bytes: int) -> int:
        return max(1, int(self.amount * peak_bytes if self.is_share else self.amount))


def parse_budgets(text: str) -> tuple[Budget, ...]:
    """ "25%,1GiB" as budgets; OptionError names a part that is not one."""
    return tuple(_parse_budget(part.strip()) for part in text.split(","))


def _parse_budget(text: str) -> Budget:
    percent = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*%", text)
    try:
        amount = float(percent[1]) / 100 if percent else core().parse_bytes(text)
    except OptionError:
        amount = 0
    if not 0 < amount < _ANY_BUDGET:
        raise OptionError(
            f"{text!r} is not a budget: write a size, as in 1.5GiB, or 50% of the peak."
        )
    return Budget(amount, percent is not None)


@dataclass(frozen=True)
class Prediction:
    """One period in steady state under one budget; other fields are those of tencache_plan()."""

    budget_bytes: int
    step_ns: int
    step_slower_ns: int
    step_faster_ns: int
    compute_ns: int
    bound_step_ns: int
    stall_ns: int
    work_ns: int
    bytes_read: int
    bytes_written: int
    bytes_dropped: int
    bytes_late: int
    disk_bytes_read: int
    disk_bytes_written: int
    over_budget_bytes: int
    peak_bytes: int
    largest_op_bytes: int

    @property
    def share_of_peak(self) -> float:
        return self.budget_bytes / self.peak_bytes

    @property
    def versus_ideal(self) -> float | None:
        """Step time over compute time; None for a period that computes nothing."""
        return self.step_ns / self.compute_ns if self.compute_ns else None

    @property
    def versus_bound(self) -> float | None:
        """Step time over the bound; None if there is no bound, or the period exceeds the budget."""
        holds = self.bound_step_ns and not self.over_budget_bytes
        return self.step_ns / self.bound_step_ns if holds else None


class Planner:
    """Asks the core, once for each budget."""

    def __init__(self, library: Core, period: Period, pipe: Pipe) -> None:
        self._library = library
        self.period = period
        self.pipe = pipe
        self._known: dict[int, Prediction] = {}
        # Predict with everything on the device, for the figures that no budget changes.
        self.ideal = self.predict(_ANY_BUDGET)

    def predict(self, budget_bytes: int) -> Prediction:
        if budget_bytes not in self._known:
            self._known[budget_bytes] = self._ask(budget_bytes)
        return self._known[budget_bytes]

    def predict_all(self, budgets: Iterable[int]) -> list[Prediction]:
        """One prediction for each budget, in order; the core plans on all CPUs, without the GIL."""
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return list(pool.map(self.predict, budgets))

    def known_budgets(self) -> list[int]:
        return list(self._known)

    def timeline(self, budget_bytes: int) -> dict[str, Any]:
        """The timeline under that budget, as tencache_plan_timeline() describes it."""
        return self._library.plan_timeline(self.period.struct, self._machine(budget_bytes))

    def _ask(self, budget_bytes: int) -> Prediction:
        figures = self._library.plan(self.period.struct, self._machine(budget_bytes))
        return Prediction(budget_bytes, **figures)

    def _machine(self, budget_bytes: int) -> MachineStruct:
        # Processors do no work for moves over the link to host memory.
        work = 0 if self.pipe.host_bytes else 1
        return MachineStruct(
            budget_bytes=budget_bytes,
            read_bytes_per_s=self.pipe.read_bytes_per_s,
            write_bytes_per_s=self.pipe.write_bytes_per_s,
            is_half_duplex=self.pipe.is_half_duplex,
            read_work_ns_per_byte=self.period.read_work_ns_per_byte * work,
            write_work_ns_per_byte=self.period.write_work_ns_per_byte * work,
            drop_work_ns_per_byte=self.period.drop_work_ns_per_byte * work,
            host_bytes=self.pipe.host_bytes,
            disk_read_bytes_per_s=self.pipe.disk_read_bytes_per_s,
            disk_write_bytes_per_s=self.pipe.disk_write_bytes_per_s,
        )

    def smallest(self) -> Prediction:
        """The prediction for the smallest budget never exceeded: the largest op just fits."""
        return self.predict(self.ideal.largest_op_bytes)

    def cheapest(self) -> Prediction:
        """The prediction for the smallest budget found within NEAR_IDEAL of computing alone."""
        limit_ns = self.ideal.compute_ns * NEAR_IDEAL
        low, high = self.ideal.largest_op_bytes, self.ideal.peak_bytes
        if self.predict(low).step_ns <= limit_ns:
            return self.predict(low)
        while high - low > max(1, self.ideal.peak_bytes * _SEARCH_SHARE):
            middle = (low + high) // 2
            if self.predict(middle).step_ns <= limit_ns:
                high = middle
            else:
                low = middle
        return self.predict(high)


@dataclass(frozen=True)
class Report:
    """Everything that the command shows."""

    file: Path
    planner: Planner
    predictions: tuple[Prediction, ...]
    smallest: Prediction
    cheapest: Prediction


def make_report(planner: Planner, file: Path, budgets: Sequence[Budget]) -> Report:
    asked = [budget.bytes_of(planner.ideal.peak_bytes) for budget in budgets]
    return Report(
        file=file,
        planner=planner,
        predictions=tuple(planner.predict_all(dict.fromkeys(asked))),
        smallest=planner.smallest(),
        cheapest=planner.cheapest(),
    )


def to_json(report: Report) -> dict[str, Any]:
    """The report as an object, schema 1; bytes and seconds."""
    period, smallest = report.planner.period, report.smallest
    return {
        "schema": 1,
        "file": str(report.file),
        "ops": period.op_count,
        "tensors": period.tensor_count,
        "peak_bytes": smallest.peak_bytes,
        "largest_op_bytes": smallest.largest_op_bytes,
        "ideal_step_s": smallest.compute_ns * 1e-9,
        "pipe": dataclasses.asdict(report.planner.pipe),
        "predictions": [_prediction_json(prediction) for prediction in report.predictions],
        "smallest": _prediction_json(smallest),
        "cheapest": _prediction_json(report.cheapest),
    }


def _prediction_json(prediction: Prediction) -> dict[str, Any]:
    return {
        "budget_bytes": prediction.budget_bytes,
        "share_of_peak": prediction.share_of_peak,
        "step_s": prediction.step_ns * 1e-9,
        "step_slower_s": prediction.step_slower_ns * 1e-9,
        "step_faster_s": prediction.step_faster_ns * 1e-9,
        "versus_ideal": prediction.versus_ideal,
        "bound_step_s": prediction.bound_step_ns * 1e-9,
        "versus_bound": prediction.versus_bound,
        "stall_s": prediction.stall_ns * 1e-9,
        "work_s": prediction.work_ns * 1e-9,
        "bytes": {
            "read": prediction.bytes_read,
            "written": prediction.bytes_written,
            "clean_dropped": prediction.bytes_dropped,
            "late": prediction.bytes_late,
        },
        "bytes_below_host": {
            "read": prediction.disk_bytes_read,
            "written": prediction.disk_bytes_written,
        },
        "over_budget_bytes": prediction.over_budget_bytes,
    }


def show(report: Report, console: Console) -> None:
    """Prints one row for each budget, then the conclusions."""
    console.print(_title(report), markup=False, highlight=False, soft_wrap=True)
    # The table is narrow, so that nine columns fit into 80 characters.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for prediction in report.predictions:
        table.add_row(
            format_bytes(prediction.budget_bytes),
            f"{prediction.share_of_peak:.0%}",
            format_time(prediction.step_ns),
            _times(prediction.versus_ideal),
            _times(prediction.versus_bound),
            format_time(prediction.stall_ns),
            format_time(prediction.work_ns),
            format_bytes(prediction.bytes_read),
            format_bytes(prediction.bytes_written),
        )
    console.print(table)
    for line in lines_below(report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _title(report: Report) -> str:
    period = report.planner.period
    title = (
        f"{report.file}: {period.op_count} ops, {period.tensor_count} tensors, peak "
        f"{format_bytes(report.smallest.peak_bytes)}; {speeds(report.planner.pipe)}"
    )
    if period.device_budget_bytes:
        title += f"; recorded under {format_bytes(period.device_budget_bytes)}"
    return title


def lines_below(report: Report) -> list[str]:
    """What several GPUs share, the budgets that matter, and what to know of some rows."""
    shared = sharing(report.planner.pipe)
    lines = [] if shared is None else [shared]
    lines += [
        f"ideal step, computing alone: {format_time(report.smallest.compute_ns)}",
        f"smallest budget, which the largest op just fits: {_budget_text(report.smallest)}",
        f"cheapest budget within {NEAR_IDEAL - 1:.0%} of ideal: {_budget_text(report.cheapest)}",
    ]
    lines += [
        f"under {format_bytes(prediction.budget_bytes)} a step takes "
        f"{format_time(prediction.step_slower_ns)} with links 20% slower, "
        f"{format_time(prediction.step_faster_ns)} with links 20% faster"
        for prediction in report.predictions
        if prediction.step_slower_ns != prediction.step_faster_ns
    ]
    lines += [
        f"under {format_bytes(prediction.budget_bytes)} the disk below host memory reads "
        f"{format_bytes(prediction.disk_bytes_read)} and writes "
        f"{format_bytes(prediction.disk_bytes_written)} a step"
        for prediction in report.predictions
        if prediction.disk_bytes_read or prediction.disk_bytes_written
    ]
    lines += [
        f"a budget of {format_bytes(prediction.budget_bytes)} would be exceeded by "
        f"{format_bytes(prediction.over_budget_bytes)} while the largest op runs"
        for prediction in report.predictions
        if prediction.over_budget_bytes
    ]
    return lines


def _budget_text(prediction: Prediction) -> str:
    text = (
        f"{format_bytes(prediction.budget_bytes)} ({prediction.share_of_peak:.0%} of the peak), "
        f"a step takes {format_time(prediction.step_ns)}"
    )
    ratio = prediction.versus_ideal
    return text if ratio is None else f"{text}, {_times(ratio)} ideal"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"
