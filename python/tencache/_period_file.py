# SPDX-License-Identifier: Apache-2.0
"""Reads a period file: one period of a program, for example a training step, as JSON lines.

`tencache trace record` writes such files, and other tools may. allocator/learn/period_writer.h
describes the format, "tencache-period" version 1. The file is read line by line into flat arrays,
the form in which the core plans it, so a period of a million ops takes a few dozen megabytes. Each
line's references are checked as it is read: an error names the file, the line, the problem and the
remedy. A period that this run is to follow needs more than one that is only planned: the order in
which each op names its tensors. Threads: none of its own.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from ctypes import Array, c_uint8, c_uint32, c_uint64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tencache import _file_kinds
from tencache._library import PeriodStruct, TencacheError

_FORMAT = "tencache-period"
_VERSION = 1
_NO_TICK = 2**32 - 1
_COUNT_MAX = _NO_TICK - 1  # of ops and of tensors: their numbers are 32 bits wide in the core
_NUMBER_MAX = 2**63 - 1
_DESCRIPTION = "The page on planning in tencache's documents describes the format."
_REMEDY = "Give a file that `tencache run --record FILE -- …` wrote."


class PeriodError(TencacheError):
    """The file cannot be used. Where it is no period at all, `problem` lacks the remedy."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem} {remedy}".rstrip())
        self.problem = problem


@dataclass(frozen=True)
class Period:
    """One period, as the core takes it, and what the file says about the recorded run."""

    struct: PeriodStruct
    op_count: int
    tensor_count: int
    # In these six figures 0 means that the file does not say.
    read_bytes_per_s: float
    write_bytes_per_s: float
    read_work_ns_per_byte: float
    write_work_ns_per_byte: float
    drop_work_ns_per_byte: float
    device_budget_bytes: int
    op_names: list[bytes]
    is_half_duplex: bool  # reads and writes take turns at their speeds
    unordered_line: int  # the first op of which the file does not tell the order; 0: none
    run_id: object = None  # as in the stats of the run that recorded it; None: the file has none

    def largest_tensor_bytes(self) -> int:
        return max(self.struct.tensor_bytes[: self.struct.tensor_count], default=0)


def read_period(path: Path) -> Period:
    """Reads the period from the file; PeriodError names a wrong line and the problem."""
    try:
        kind = _file_kinds.kind_of(path)
        if kind not in (None, _file_kinds.PERIOD):
            raise PeriodError(f"{path} is no recorded period: it is {kind}.", _REMEDY)
        return _Reader(path).read()
    except OSError as error:
        raise PeriodError(f"{path} cannot be read: {error.strerror}.") from error


def read_period_to_follow(path: Path) -> Period:
    """Reads like read_period; also raises PeriodError for a file that cannot be followed.

    Each process of a launch reads the file, so it can be neither a pipe nor a device.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise PeriodError(f"{path} is not a regular file.")
    period = read_period(path)
    if period.unordered_line:
        raise PeriodError(
            f"{path}, line {period.unordered_line}: it lacks order, so the period cannot be "
            "followed. An older tencache or another tool wrote the file: record the program again."
        )
    return period


class _Reader:
    """The growing arrays, and what is needed to check the next line against them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tensor_lines = array("Q")
        self._tensor_bytes = array("Q")
        self._allocated_at = array("I")
        self._freed_at = array("I")
        self._compute_ns = array("Q")
        self._access_counts = array("I")
        self._access_tensors = array("I")
        self._access_writes = array("B")
        self._op_names: list[bytes] = []
        self._names: dict[str, bytes] = {}  # each name once: a program has few, and many ops
        self._unordered_line = 0
        self._indices: dict[int, int] = {}  # index of each tensor, by id
        self._overwritten_at: dict[int, list[int]] = {}  # ticks, by index of the tensor

    def read(self) -> Period:
        lines = self._lines()
        header = self._header(lines)
        for number, line in lines:
            if "name" in line:
                self._add_op(number, line)
            elif "id" in line:
                self._add_tensor(number, line)
            else:
                raise self._refusal(
                    number, 'it is neither a tensor (with "id") nor an op (with "name")'
                )
        self._check_counts(header)
        self._check_lives()
        self._end_lives_before_overwriting()
        return Period(
            struct=self._struct(self._whole(1, header, "fixed_bytes", 0)),
            op_count=len(self._compute_ns),
            tensor_count=len(self._indices),
            read_bytes_per_s=self._rate(header, "read_bytes_per_s"),
            write_bytes_per_s=self._rate(header, "write_bytes_per_s"),
            read_work_ns_per_byte=self._work(header, "read_work_ns_per_byte"),
            write_work_ns_per_byte=self._work(header, "write_work_ns_per_byte"),
            drop_work_ns_per_byte=self._work(header, "drop_work_ns_per_byte"),
            device_budget_bytes=self._whole(1, header, "device_budget_bytes", 0),
            op_names=self._op_names,
            is_half_duplex=self._flag(header, "half_duplex"),
            unordered_line=self._unordered_line,
            run_id=header.get("run_id"),
        )

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the number and object of each line; skips empty lines."""
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    refuse = self._no_period if number == 1 else self._refusal
                    raise refuse(number, f"it is not JSON ({error})") from error
                if not isinstance(value, dict):
                    raise self._refusal(number, "it is not a JSON object")
                yield number, value

    def _header(self, lines: Iterator[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        number, header = next(lines, (1, {}))
        if header.get("format") != _FORMAT:
            raise self._no_period(
                number, f"the format is not {_FORMAT} but {header.get('format')!r}"
            )
        if header.get("version") != _VERSION:
            raise self._refusal(
                number,
                f"this is version {header.get('version')!r} of the format, and this tencache reads "
                f"version {_VERSION}",
                "Use the tencache that wrote it, or record the program again.",
            )
        return header

    def _add_tensor(self, number: int, line: dict[str, Any]) -> None:
        if self._compute_ns:
            raise self._refusal(number, "a tensor comes after the first op", "Put it first.")
        tensor = self._whole(number, line, "id")
        if tensor in self._indices:
            first = self._tensor_lines[self._indices[tensor]]
            raise self._refusal(
                number, f"line {first} also has a tensor with id {tensor}", "Give each its own id."
            )
        if ("allocated_at" in line) != ("freed_at" in line):
            raise self._refusal(
                number,
                f"tensor {tensor} has only one of allocated_at and freed_at",
                "Give both, or neither for a tensor that always exists.",
            )
        self._indices[tensor] = len(self._indices)
        self._tensor_lines.append(number)
        self._tensor_bytes.append(self._whole(number, line, "bytes", least=1))
        for name, ticks in (("allocated_at", self._allocated_at), ("freed_at", self._freed_at)):
            is_given = name in line
            ticks.append(self._whole(number, line, name, most=_COUNT_MAX) if is_given else _NO_TICK)

    def _add_op(self, number: int, line: dict[str, Any]) -> None:
        tick = len(self._compute_ns)
        if tick == _COUNT_MAX:
            raise self._refusal(number, f"there are more than {_COUNT_MAX} ops")
        self._compute_ns.append(self._whole(number, line, "compute_ns"))
        self._op_names.append(self._name(line))
        reads, writes = self._ids(number, line, "reads"), self._ids(number, line, "writes")
        unread, unwritten = iter(reads), iter(writes)
        for letter in self._order(number, line, len(reads), len(writes)):
            tensor = next(unwritten if letter == "w" else unread)
            self._access_tensors.append(self._living(number, tick, tensor))
            self._access_writes.append(letter == "w")
        self._access_counts.append(len(reads) + len(writes))
        self._add_overwrites(number, tick, line)

    def _name(self, line: dict[str, Any]) -> bytes:
        name = str(line["name"])
        return self._names.setdefault(name, name.encode(errors="replace"))

    def _ids(self, number: int, line: dict[str, Any], name: str) -> list[Any]:
        ids = line.get(name, [])
        if not isinstance(ids, list):
            raise self._refusal(number, f"{name} is {ids!r}", "Give a list of tensors' ids.")
        return ids

    def _order(self, number: int, line: dict[str, Any], read_count: int, write_count: int) -> str:
        """A letter for each tensor that the op names, in order: r for reads, w for writes."""
        reads_first = "r" * read_count + "w" * write_count
        order = line.get("order")
        if order is None:
            if read_count and write_count and not self._unordered_line:
                self._unordered_line = number
            return reads_first
        if not isinstance(order, str) or sorted(order) != list(reads_first):
            raise self._refusal(
                number,
                f"order is {order!r}",
                "Give a letter for each tensor: r for the next of reads, w for that of writes.",
            )
        return order

    def _add_overwrites(self, number: int, tick: int, line: dict[str, Any]) -> None:
        for tensor in self._ids(number, line, "overwrites"):
            if tensor not in line.get("writes", []) or tensor in line.get("reads", []):
                raise self._refusal(
                    number,
                    f"op {tick} overwrites tensor {tensor!r}, but does not name it in writes alone",
                    "What is overwritten is written and not read: list it in writes, not in reads.",
                )
            self._overwritten_at.setdefault(self._indices[tensor], []).append(tick)

    def _end_lives_before_overwriting(self) -> None:
        """Splits each overwritten tensor: what it holds from one overwriting op to the next becomes
        a tensor of its own. That one ends with the last op that needs it, so that it need not be
        kept longer."""
        places: dict[int, list[tuple[int, int]]] = {index: [] for index in self._overwritten_at}
        place = 0
        for tick, count in enumerate(self._access_counts):
            for index in self._access_tensors[place : place + count]:
                if index in places:
                    places[index].append((tick, place))
                place += 1
        for index, ticks in self._overwritten_at.items():
            self._split(index, ticks, places[index])

    def _split(self, index: int, overwritten_at: list[int], uses: list[tuple[int, int]]) -> None:
        """`uses`: the ticks at which the tensor is named, and where in the array of accesses."""
        count = len(self._compute_ns)
        is_persistent = self._allocated_at[index] == _NO_TICK
        begin = overwritten_at[0] if is_persistent else self._allocated_at[index]
        end = None if is_persistent else self._freed_at[index]

        def since_begin(tick: int) -> int:
            return (tick - begin) % count

        births = sorted({begin, *overwritten_at}, key=since_begin)
        lives: list[list[tuple[int, int]]] = [[] for _ in births]
        for use in uses:
            lives[bisect_right(births, since_begin(use[0]), key=since_begin) - 1].append(use)
        for number, (birth, own) in enumerate(zip(births, lives, strict=True)):
            is_last = number + 1 == len(births)
            freed_at = max((tick for tick, _ in own), key=since_begin, default=birth)
            if is_last and end is not None:
                freed_at = end
            life = index if number == 0 else len(self._tensor_bytes)
            if number > 0:
                self._tensor_bytes.append(self._tensor_bytes[index])
                self._allocated_at.append(birth)
                self._freed_at.append(freed_at)
            self._allocated_at[life], self._freed_at[life] = birth, freed_at
            for _, place in own:
                self._access_tensors[place] = life

    def _living(self, number: int, tick: int, tensor: object) -> int:
        """The index of a tensor that exists at that tick."""
        index = self._indices.get(tensor) if type(tensor) is int else None
        if index is None:
            raise self._refusal(
                number,
                f"op {tick} names tensor {tensor!r}, which no line above describes",
                'Add a line {"id": …, "bytes": …} for it before the first op.',
            )
        begin, end = self._allocated_at[index], self._freed_at[index]
        is_there = begin <= tick <= end if begin <= end else tick >= begin or tick <= end
        if begin != _NO_TICK and not is_there:
            raise self._refusal(
                number,
                f"op {tick} names tensor {tensor}, which exists only from op {begin} to op {end}",
                f"Correct line {self._tensor_lines[index]} or this one; ops count from 0.",
            )
        return index

    def _check_counts(self, header: dict[str, Any]) -> None:
        found = {"ops": len(self._compute_ns), "tensors": len(self._tensor_bytes)}
        for name, count in found.items():
            said = self._whole(1, header, name, count)
            if said != count:
                raise self._refusal(
                    1,
                    f"it announces {said} {name}, and the file has {count}",
                    "The file was cut short or edited: record it again, or correct the number.",
                )
        if not found["ops"]:
            raise self._refusal(1, "no ops follow", "Add a line for each op of one period.")
        # Shares of the peak would be shares of nothing.
        if not found["tensors"] and not header.get("fixed_bytes"):
            raise self._refusal(
                1,
                "no tensors follow, so there is nothing to plan",
                'Add a line {"id": …, "bytes": …} for each tensor, before the first op.',
            )

    def _check_lives(self) -> None:
        op_count = len(self._compute_ns)
        for number, begin, end in zip(
            self._tensor_lines, self._allocated_at, self._freed_at, strict=True
        ):
            if begin != _NO_TICK and max(begin, end) >= op_count:
                raise self._refusal(
                    number,
                    f"the tensor exists from op {begin} to op {end}, and the file has {op_count} "
                    "ops",
                    "Ops count from 0; freed_at is the last op during which it exists.",
                )

    def _whole(
        self,
        number: int,
        line: dict[str, Any],
        name: str,
        default: int | None = None,
        *,
        least: int = 0,
        most: int = _NUMBER_MAX,
    ) -> int:
        value = line.get(name, default)
        if type(value) is int and least <= value <= most:
            return value
        if name not in line:
            raise self._refusal(number, f"it lacks {name}")
        raise self._refusal(
            number, f"{name} is {value!r}", f"Give a whole number from {least} to {most}."
        )

    def _rate(self, header: dict[str, Any], name: str) -> float:
        return self._number(header, name, "Give bytes per second, or 0 for unknown.")

    def _work(self, header: dict[str, Any], name: str) -> float:
        return self._number(header, name, "Give nanoseconds of processor time, or 0 for none.")

    def _number(self, header: dict[str, Any], name: str, remedy: str) -> float:
        value = header.get(name, 0)
        if type(value) in (int, float) and 0 <= value < math.inf:
            return float(value)
        raise self._refusal(1, f"{name} is {value!r}", remedy)

    def _flag(self, header: dict[str, Any], name: str) -> bool:
        value = header.get(name, False)
        if type(value) is bool:
            return value
        raise self._refusal(1, f"{name} is {value!r}", "Give true or false.")

    def _refusal(self, number: int, problem: str, remedy: str = _DESCRIPTION) -> PeriodError:
        return PeriodError(f"{self._path}, line {number}: {problem}. {remedy}")

    def _no_period(self, number: int, problem: str) -> PeriodError:
        by_hand = f'{{"format": "{_FORMAT}", "version": {_VERSION}}}'
        return PeriodError(
            f"{self._path}, line {number}: {problem}.",
            f"{_REMEDY} To make one by hand, begin it with {by_hand}. {_DESCRIPTION}",
        )

    def _struct(self, fixed_bytes: int) -> PeriodStruct:
        return PeriodStruct(
            fixed_bytes,
            len(self._tensor_bytes),
            _shared(c_uint64, self._tensor_bytes),
            _shared(c_uint32, self._allocated_at),
            _shared(c_uint32, self._freed_at),
            len(self._compute_ns),
            _shared(c_uint64, self._compute_ns),
            _shared(c_uint32, self._access_counts),
            _shared(c_uint32, self._access_tensors),
            _shared(c_uint8, self._access_writes),
        )


def _shared(kind: Any, values: array[int]) -> Array[Any]:
    """The array's memory as a ctypes array, without a copy; keeps the array alive."""
    result: Array[Any] = (kind * len(values)).from_buffer(values)
    return result
