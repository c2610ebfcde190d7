# SPDX-License-Identifier: Apache-2.0
"""Does the disk tier reach what the disk gives?

The tier is compared with fio on the same pattern (1 MiB requests, 16 in flight, O_DIRECT,
io_uring), in the same directory, over the same number of bytes, in one run: both alternate, round
by round. fio gets every advantage there is (registered buffers and file, buffers that are not
scrambled, no time stamps). It runs once with its ordinary buffers and, where root can set some
aside, once with huge pages, which make most of the difference. The compared writes overwrite blocks
that were written before. The tier moves whole slots as the engine hands them out, 64 MiB a transfer
and, besides, 2 MiB a transfer. It runs with and without the content hash of evictions and fetches,
and with an eviction's copy into its own buffers, registered with io_uring as far as memlock allows,
and not registered.

The program is built on the first run, in build/benchmarks. The benchmark needs fio, and 5 GiB of
disk.

    python benchmarks/disk_tier.py [--directory DIR]
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reporting import Report, Table

import support
from support import MIB, Spread

GOAL = 0.9
HUGE = "fio, huge pages"
HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")
HUGE_PAGE_BYTES = 2 * MIB
FIO_BUFFER_BYTES = 64 * MIB  # 16 requests of 1 MiB, and fio's other memory
PASSES = ("write", "read")


@dataclass(frozen=True)
class Pattern:
    """Slots of one size, and how many of them make one transfer."""

    slots: int
    slot_bytes: int
    slots_per_transfer: int

    @property
    def total_bytes(self) -> int:
        return self.slots * self.slot_bytes

    def __str__(self) -> str:
        text = f"{self.slots} x {support.format_bytes(self.slot_bytes)}"
        return text + (f", {self.slots_per_transfer} a transfer" * (self.slots_per_transfer > 1))


PATTERNS = (Pattern(64, 64 * MIB, 1), Pattern(512, 2 * MIB, 32), Pattern(512, 2 * MIB, 1))
# The patterns that are compared with the goal. The others are shown beside them.
GOAL_PATTERNS = PATTERNS[:2]
GOAL_WAY = "tier, hash"
WAYS: Mapping[str, Sequence[str]] = {
    "tier": (),
    GOAL_WAY: ("--hash",),
    "tier, copy, hash": ("--copy", "--hash"),
    "tier, copy, hash, plain buffers": ("--copy", "--hash", "--plain-buffers"),
    "tier, hash, threads": ("--hash", "--threads"),
}


# ---- Measurements ------------------------------------------------------------------------------


def run_tier(
    program: Path, directory: Path, pattern: Pattern, flags: Sequence[str]
) -> dict[str, float]:
    command = [program, f"--directory={directory}", f"--slots={pattern.slots}"]
    command += [f"--slot={pattern.slot_bytes}", *flags]
    command += [f"--slots-per-transfer={pattern.slots_per_transfer}"]
    result = json.loads(support.run_program(command))
    if not result["direct_io"]:
        raise support.BenchmarkFailed(f"{directory} has no O_DIRECT: choose --directory")
    expected = "threads" if "--threads" in flags else "io_uring"
    if result["channel"] != expected:
        raise support.BenchmarkFailed(f"this machine refuses {expected}")
    passes = ("first_write", *PASSES)
    return {name: result[f"{name}_bytes_per_s"] for name in passes}


@contextlib.contextmanager
def reserved_huge_pages(bytes_: int) -> Iterator[bool]:
    """Sets huge pages aside while entered; yields whether that was possible.

    It needs root and a kernel with hugetlb.
    """
    try:
        before = HUGE_PAGES.read_text()
        wanted = int(before) + bytes_ // HUGE_PAGE_BYTES
        HUGE_PAGES.write_text(str(wanted))
    except OSError:
        yield False
        return
    try:
        yield int(HUGE_PAGES.read_text()) >= wanted
    finally:
        HUGE_PAGES.write_text(before)


def run_fio(directory: Path, total_bytes: int, memory: str = "malloc") -> dict[str, float]:
    """Writes the file twice, as the tier's program does, then reads it."""
    command = ["fio", "--name=pattern", f"--filename={directory / 'fio'}", f"--size={total_bytes}"]
    command += [
        "--bs=1M",
        "--iodepth=16",
        "--ioengine=io_uring",
        "--direct=1",
        "--output-format=json",
    ]
    command += ["--fixedbufs=1", "--registerfiles=1", "--scramble_buffers=0", "--gtod_reduce=1"]
    command += [f"--iomem={memory}"]
    rates = {}
    for name, mode in (("first_write", "write"), ("write", "write"), ("read", "read")):
        job = json.loads(support.run_program([*command, f"--rw={mode}"]))["jobs"][0]
        rates[name] = float(job[mode]["bw_bytes"])
    (directory / "fio").unlink()
    return rates


def measure(
    program: Path, directory: Path, has_huge_pages: bool, options: Any
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Rates in bytes per second, by pattern, way and round."""
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for pattern in PATTERNS:
        steps: dict[str, Callable[[], dict[str, float]]] = {
            "fio": lambda pattern=pattern: run_fio(directory, pattern.total_bytes)
        }
        if has_huge_pages:
            steps[HUGE] = lambda pattern=pattern: run_fio(
                directory, pattern.total_bytes, "mmaphuge"
            )
        for way, flags in WAYS.items():
            steps[way] = lambda pattern=pattern, flags=flags: run_tier(
                program, directory, pattern, flags
            )
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in steps}
        for number in range(options.rounds):
            order = list(steps) if number % 2 == 0 else list(reversed(steps))
            for name in order:
                support.wait_for_quiet(options.quiet_wait)
                with support.ForeignShare() as foreign:
                    rates = steps[name]()
                rounds[name].append({**rates, "foreign_share": foreign.share})
                support.progress(
                    f"{pattern}  round {number + 1}/{options.rounds}  {name}: "
                    + ", ".join(f"{each} {rates[each] / 1e9:.2f} GB/s" for each in rates)
                    + f", others {foreign.share:.0%}"
                )
        results[str(pattern)] = rounds
    return results


# ---- The report --------------------------------------------------------------------------------


def ratio(
    rounds: Mapping[str, list[dict[str, float]]],
    way: str,
    name: str,
    others: Sequence[str] = ("fio", HUGE),
) -> float:
    """The tier's median against the best median of the others."""
    medians = {each: Spread.of([run[name] for run in runs]).median for each, runs in rounds.items()}
    return medians[way] / max(medians[other] for other in others if other in medians)


def table(pattern: Pattern, rounds: Mapping[str, list[dict[str, float]]]) -> Table:
    title = f"{pattern} ({support.format_bytes(pattern.total_bytes)})"
    columns = ["", *(f"{name}{what}" for name in PASSES for what in (" GB/s", " range", " / fio"))]
    result = Table(title, [*columns, "first write GB/s"])
    for way, runs in rounds.items():
        cells = [way]
        for name in PASSES:
            spread = Spread.of([run[name] / 1e9 for run in runs])
            cells += [f"{spread.median:.2f}", f"{spread.low:.2f} to {spread.high:.2f}"]
            cells += [f"{ratio(rounds, way, name):.2f}"]
        first = Spread.of([run["first_write"] / 1e9 for run in runs]).median
        result.rows.append([*cells, f"{first:.2f}"])
    return result


def verdict(results: Mapping[str, Mapping[str, list[dict[str, float]]]], other: str) -> str:
    worst = min(
        (ratio(results[str(pattern)], GOAL_WAY, name, (other,)), f"{name}, {pattern}")
        for pattern in GOAL_PATTERNS
        for name in PASSES
    )
    outcome = "reached" if worst[0] >= GOAL else "missed"
    return (
        f"Goal of {GOAL:.0%} of {other} with hashing {outcome}: at least {worst[0]:.0%} "
        f"({worst[1]})."
    )


def main() -> None:
    parser = support.arguments("Bandwidth of the disk tier against fio.", rounds=3)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where to write")
    options = parser.parse_args()
    if shutil.which("fio") is None:
        raise support.BenchmarkFailed("fio is missing; on Debian and Ubuntu: apt-get install fio")
    program = support.build_program("disk_tier")
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as folder,
        reserved_huge_pages(FIO_BUFFER_BYTES) as has_huge_pages,
    ):
        results = measure(program, Path(folder), has_huge_pages, options)
        file_system = support.run_program(["findmnt", "-n", "-o", "FSTYPE", "-T", folder]).strip()
    first = str(PATTERNS[0])
    report = Report(
        "disk_tier",
        "Does the disk tier reach what the disk gives? Against fio on the same pattern: 1 MiB "
        "requests, 16 in flight, O_DIRECT, io_uring, same directory, same bytes, alternating.",
        "python benchmarks/disk_tier.py",
        {**support.machine_facts(()), "file system": file_system},
        verdicts=[verdict(results, each) for each in ("fio", HUGE) if each in results[first]],
        tables=[table(pattern, results[str(pattern)]) for pattern in PATTERNS],
        notes=[
            f"Medians of {options.rounds} rounds. The first write goes to blocks that the file "
            "system has reserved and never written.",
            "fio has registered buffers. The tier has them only where it copies, which differs in "
            "writing alone; else it moves the extents themselves, another memory each time. It "
            "computes the hash on the submitting thread. Extents of 2 MiB and more are on huge "
            "pages; ratios are to the best fio of the table.",
            *(f"{pattern}: {support.foreign_note(rounds)}" for pattern, rounds in results.items()),
        ],
        data={"rounds": results},
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
