# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: worker processes, interleaving, figures, machine facts.

A benchmark compares variants of one program (stock PyTorch, tencache with some budget). Each
measurement is a process of its own, because an allocator is chosen once in the life of a process,
and because the heap of a process remembers what ran before. Variants alternate, and every other
round reverses the order, so that a machine that slows down slows all of them. Compared figures
always come from one run of the benchmark.

Other programs that run meanwhile spoil timings. So each measurement also records the share of the
machine's processor time that others took, and the result shows it. `--quiet-wait` makes a benchmark
wait for a quiet machine before each measurement.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# A worker prints its result as one line of JSON after this word.
RESULT_MARK = "BENCHMARK-RESULT "
# If others take more than this share of the machine's processor time, do not trust a timing.
FOREIGN_SHARE_MAX = 0.10
_QUIET_SAMPLE_S = 3.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class BenchmarkFailed(Exception):
    """A benchmark cannot go on; the message says why."""


@dataclass(frozen=True)
class Variant:
    """One way to run a program. `options` are those of tencache; None means stock PyTorch."""

    name: str
    options: Mapping[str, object] | None = None

    @property
    def is_stock(self) -> bool:
        return self.options is None

    def environment(self) -> dict[str, str]:
        result = {k: v for k, v in os.environ.items() if not k.startswith("TENCACHE")}
        # No worker asks the hub: models are built from configurations.
        result.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", PYTHONHASHSEED="0")
        if self.options is not None:
            from tencache import _openmp

            _openmp.let_threads_sleep(result)  # as `tencache run` does
            result.update(TENCACHE="1", TENCACHE_QUIET="on")
            result.update({f"TENCACHE_{k.upper()}": str(v) for k, v in self.options.items()})
        return result


STOCK = Variant("stock")


# ---- Worker processes --------------------------------------------------------------------------


def answer(result: Mapping[str, Any]) -> None:
    """A worker calls this once, when it is done."""
    print(RESULT_MARK + json.dumps({**result, "tencache": tencache_is_enabled()}), flush=True)


def tencache_is_enabled() -> bool:
    module = sys.modules.get("tencache")
    return module is not None and module.is_enabled()


def tencache_stats() -> dict[str, Any] | None:
    """The counters of tencache in this process; None if stock."""
    return sys.modules["tencache"].stats() if tencache_is_enabled() else None


def run_worker(
    script: str,
    job: Mapping[str, Any],
    variant: Variant,
    *,
    prefix: Sequence[str] = (),
    timeout_s: float = 3600,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs `benchmarks/<script>` on the job in a process of its own and returns its answer.

    Adds `foreign_share`, the share of processor time that others took. `prefix` is a command that
    ends by executing what follows it. Raises BenchmarkFailed with the worker's last words.
    """
    command = [*prefix, sys.executable, str(Path(__file__).parent / script), json.dumps(dict(job))]
    with ForeignShare() as foreign:
        done = _run(command, {**variant.environment(), **(variables or {})}, timeout_s)
    lines = (done.stdout + done.stderr).splitlines()
    answers = [line for line in lines if line.startswith(RESULT_MARK)]
    if done.returncode != 0 or not answers:
        last_words = "\n".join([line for line in lines if line not in answers][-20:])
        raise BenchmarkFailed(
            f"{script} ({variant.name}) ended with status {done.returncode}:\n{last_words}"
        )
    result: dict[str, Any] = json.loads(answers[-1].removeprefix(RESULT_MARK))
    if result["tencache"] == variant.is_stock:
        raise BenchmarkFailed(
            f"{script} was to run as {variant.name}, but tencache was "
            f"{'on' if result['tencache'] else 'off'}: is it installed for {sys.executable}?\n"
            + done.stderr[-2000:]
        )
    result["foreign_share"] = foreign.share
    result["said"] = done.stderr.strip().splitlines()
    return result


def _run(
    command: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=dict(environment),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkFailed(f"no answer within {timeout_s:.0f} s from {command[-2]}") from error


def _busy_s() -> float:
    """Processor time that all programs of the machine have used since it started."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in words[:8])
    return (user + nice + system + irq + softirq + steal) / _CLOCK_TICKS


def _own_s() -> float:
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


class ForeignShare:
    """Measures, while entered, the share of processor time that others take.

    Finished children of this process count as its own. Kernel threads count as foreign: writing to
    disk costs some of their time.
    """

    share = 0.0

    def __enter__(self) -> ForeignShare:
        self._begin = (time.monotonic(), _busy_s(), _own_s())
        return self

    def __exit__(self, *_: object) -> None:
        wall, busy, own = (
            now - then
            for now, then in zip((time.monotonic(), _busy_s(), _own_s()), self._begin, strict=True)
        )
        cores = os.cpu_count() or 1
        self.share = min(1.0, max(0.0, (busy - own) / (wall * cores)))


def wait_for_quiet(limit_s: float) -> None:
    """Returns when others take little of the machine, or after the limit."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with ForeignShare() as foreign:
            time.sleep(_QUIET_SAMPLE_S)
        if foreign.share <= FOREIGN_SHARE_MAX:
            return


def interleave(
    variants: Sequence[Variant],
    rounds: int,
    measure: Callable[[Variant], dict[str, Any]],
    *,
    quiet_wait_s: float = 0,
) -> dict[str, list[dict[str, Any]]]:
    """Measures each variant once a round: A B, B A, A B, … Returns the results by name."""
    results: dict[str, list[dict[str, Any]]] = {variant.name: [] for variant in variants}
    for number in range(rounds):
        order = variants if number % 2 == 0 else list(reversed(variants))
        for variant in order:
            wait_for_quiet(quiet_wait_s)
            begin = time.monotonic()
            result = measure(variant)
            results[variant.name].append(result)
            progress(
                f"round {number + 1}/{rounds}  {variant.name}: {time.monotonic() - begin:.1f} s, "
                f"others {result['foreign_share']:.0%}"
            )
    return results


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- Programs of the core ----------------------------------------------------------------------


def build_program(name: str) -> Path:
    """Builds benchmarks/<name>.cpp with the core, without torch, in build/benchmarks."""
    folder = ROOT / "build" / "benchmarks"
    configure = ["cmake", "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Release"]
    configure += ["-DTENCACHE_BUILD_BENCHMARKS=ON", "-DTENCACHE_BUILD_TORCH=OFF"]
    run_program(configure)
    run_program(["cmake", "--build", folder, "--target", name, "-j2"])
    return folder / "benchmarks" / name


def run_program(command: Sequence[str | Path]) -> str:
    """Returns the program's output. Raises BenchmarkFailed with its last words."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last_words = (done.stdout + done.stderr)[-3000:]
        raise BenchmarkFailed(f"{Path(command[0]).name} failed:\n{last_words}")
    return done.stdout


# ---- Figures -----------------------------------------------------------------------------------


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


@dataclass(frozen=True)
class Spread:
    """A median and the range it was taken from."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(statistics.median(values), min(values), max(values))


def paired_ratio(ours: Sequence[float], stock: Sequence[float]) -> Spread:
    """ours / stock, round by round, so that a slowdown of the machine cancels out."""
    return Spread.of([a / b for a, b in zip(ours, stock, strict=True)])


@dataclass(frozen=True)
class MeanRatio:
    """The geometric mean of ratios taken round by round, and twice its relative standard error."""

    mean: float
    error: float

    @staticmethod
    def of(ours: Sequence[float], reference: Sequence[float]) -> MeanRatio:
        logs = [math.log(a / b) for a, b in zip(ours, reference, strict=True)]
        error = 2 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        return MeanRatio(math.exp(statistics.fmean(logs)), error)

    def __str__(self) -> str:
        return f"{self.mean:.3f} +- {self.mean * self.error:.3f}"

    def verdict(self, phase: str, goal: float, of: str = "the step time of stock") -> str:
        if self.mean * (1 + self.error) <= goal:
            outcome = "met"
        elif self.mean * (1 - self.error) > goal:
            outcome = "missed"
        else:
            outcome = "within what this machine resolves"
        return f"{phase}: {self} of {of} (goal: at most {goal}): {outcome}"


def format_bytes(count: float) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            value = count / unit
            return f"{value:.0f} {name}" if value == int(value) else f"{value:.2f} {name}"
    return f"{count:.0f} B"


def format_ns(ns: float) -> str:
    """Three digits with a suitable unit: "45.3 ns", "1.2 us", "34 ms"."""
    for factor, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns >= factor:
            return f"{ns / factor:.3g} {name}"
    return f"{ns:.3g} ns"


# ---- Facts about the machine -------------------------------------------------------------------


def machine_facts(python_packages: Sequence[str] = ("torch",)) -> dict[str, str]:
    """The facts a reader needs to judge the figures; no names, no paths."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    processor = re.search(r"model name\s*: (.*)", cpuinfo)
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts = {
        "date": datetime.date.today().isoformat(),
        "processor": f"{processor[1] if processor else platform.machine()}, "
        f"{len(os.sched_getaffinity(0))} cores",
        "machine": "virtual" if re.search(r"^flags.* hypervisor", cpuinfo, re.M) else "physical",
        "memory": format_bytes(memory_bytes),
        "kernel": f"Linux {platform.release()}",
        "huge pages": _chosen_word("/sys/kernel/mm/transparent_hugepage/enabled"),
        "python": platform.python_version(),
    }
    for package in python_packages:
        facts[package] = _package_version(package)
    facts["tencache"] = f"{_package_version('tencache')} ({_revision()})"
    return facts


def _package_version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _chosen_word(path: str) -> str:
    try:
        chosen = re.search(r"\[(\w+)\]", Path(path).read_text())
    except OSError:
        return "absent"
    return chosen[1] if chosen else "unknown"


def _revision() -> str:
    """The commit of the sources, and whether the measured sources differ from it."""

    def git(*words: str) -> str:
        command = ["git", *words]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return done.stdout.strip()

    commit = git("rev-parse", "--short", "HEAD") or "no repository"
    changed = git("status", "--porcelain", "--", "allocator", "shim", "python")
    return commit + (" with changes" if changed else "")


# ---- Programs ----------------------------------------------------------------------------------


def foreign_note(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """One line on how quiet the machine was."""
    shares = [result["foreign_share"] for runs in results.values() for result in runs]
    noisy = sum(share > FOREIGN_SHARE_MAX for share in shares)
    return (
        f"Processor time taken by other programs during a measurement: median "
        f"{statistics.median(shares):.0%}, at most {max(shares):.0%}; {noisy} of {len(shares)} "
        f"measurements above {FOREIGN_SHARE_MAX:.0%}."
    )


def arguments(description: str, *, rounds: int | None) -> argparse.ArgumentParser:
    """The flags that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="measurements of each variant")
    parser.add_argument(
        "--quiet-wait",
        type=float,
        default=0,
        metavar="SECONDS",
        help="wait this long at most before each measurement for other programs to pause",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).resolve().parent / "results",
        help="folder of the result files",
        metavar="DIR",
    )
    return parser


def run_main(main: Callable[[], None]) -> None:
    """Runs a benchmark; a failure becomes one message and status 1."""
    try:
        main()
    except BenchmarkFailed as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
