# SPDX-License-Identifier: Apache-2.0
"""What the user gets when the program ends: the summary, the stats file and the trace file.

The core writes the file of a learned period while the program runs; here we only look for it.

`summary_lines` is a pure function from the stats (schema 1) to a few lines; `finish` prints them on
stderr and has the core write the files. In a distributed run each rank writes its own file, unless
the name stands for a device or a pipe. A file that cannot be written costs one line on stderr and
never changes the program's exit status. Units: bytes and seconds. Threads: the one that runs
Python's exit handlers.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tencache._library import Core, TencacheError, core
from tencache._messages import counted, is_spawned, rank_of, say, shortened
from tencache._units import format_bytes, format_rate, format_seconds, format_time, option_bytes

# Why there is no recorded period, by what Core.recorded() returns.
_NOT_RECORDED = {
    0: "no repeating period was seen; run more iterations, or with a smaller --device-memory so "
    "that tencache arms",
    -1: "an earlier line tells why",
}
# Figures of the stats whose names tell no unit: groups that hold sizes, but for these counts, and
# shares from 0 to 1.
_SIZE_GROUPS, _COUNTS = ("budget", "peak", "now", "bytes"), ("cold_extents",)
_SHARES = ("coverage",)


def ranked_path(path: Path, environment: Mapping[str, str]) -> Path:
    """This process's file name, among those of all processes of one launch.

    With more than one rank, run.json becomes run.rank1.json. In a process that multiprocessing
    started it becomes run.pid4711.json, since its parent writes run.json. A device or a pipe keeps
    its name: all write to it.
    """
    if core().is_shared_output(path):
        return path
    rank = rank_of(environment)
    if rank is not None:
        path = path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
    if is_spawned():
        path = path.with_name(f"{path.stem}.pid{os.getpid()}{path.suffix}")
    return path


def summary_lines(stats: Mapping[str, Any]) -> list[str]:
    """The summary, without prefix; empty if no extent was ever used."""
    if not stats["extents"]:
        return []
    moved = stats["bytes"]
    lines = [_first_line(stats)]
    if moved["evicted"] == 0 and moved["fetched"] == 0:
        lines[0] += "; nothing was evicted"
    else:
        lines.append(_moved_line(stats))
        lines.append(_wait_line(stats))
        lines.extend(_stored_lines(stats))
        lines.extend(_plan_lines(stats))
    lines.extend(trouble_lines(stats))
    return lines


def stat_rows(stats: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of every figure; what only `tencache report` shows is left out."""
    for name, value in stats.items():
        if name in ("history", "files"):
            continue
        if name == "gpus":
            yield from _gpu_rows(value)
        else:
            yield from _rows_of(name, value)


def _rows_of(name: str, value: object) -> Iterator[tuple[str, str]]:
    """The rows of one figure, or of a group of them: "plan.simulated.bytes_read"."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _rows_of(f"{name}.{key}", item)
    else:
        yield name, _stat_text(name, value)


def _gpu_rows(gpus: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for gpu in gpus:
        for group in ("budget", "peak", "now", "bytes"):
            for name, text in _rows_of(group, gpu.get(group, {})):
                yield f"gpu {gpu['ordinal']}: {name}", text


def _stat_text(name: str, value: object) -> str:
    """A figure in its unit, which its name tells (docs/stats.md)."""
    group, _, key = name.rpartition(".")
    words = key.split("_")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if key.endswith("_bytes_per_s"):
            return format_rate(value)
        if key in _SHARES:
            return f"{value:.1%}"
        if words[-1] == "s":
            return format_time(value * 1e9)
        if (group in _SIZE_GROUPS and key not in _COUNTS) or "bytes" in words:
            return format_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else shortened(str(value))


def finish(stats: Mapping[str, Any], files: Mapping[str, Path], quiet: bool, library: Core) -> None:
    """Writes the requested files, then prints the summary unless quiet.

    `files` has paths by the name of their option: `record` is this process's own file, the others
    are what the user named. Even if quiet, a line says which file was not written.
    """
    if "stats" in files:
        content = (json.dumps(stats, indent=2) + "\n").encode()
        _write(files["stats"], "stats", lambda path: library.write_file(path, content))
    trace_size = _write(files["trace"], "trace", library.write_trace) if "trace" in files else None
    recorded = library.recorded() if "record" in files else 0
    if "record" in files and recorded <= 0:
        say(f"error: {files['record']} was not written: {_NOT_RECORDED[recorded]}")
    if quiet:
        return
    for line in summary_lines(stats):
        say(line)
    if recorded > 0:
        say(f"one period was recorded: tencache plan {files['record']}")
    if trace_size is not None:
        own_path = ranked_path(files["trace"], os.environ)
        say(f"the trace is in {own_path} ({format_bytes(trace_size)})")


def _write(path: Path, what: str, write: Callable[[Path], None]) -> int | None:
    """Returns the file's size; None for what is no file, and where it could not be written."""
    path = ranked_path(path, os.environ)
    _flush_stdout()  # If the path is stdout, the program's own text comes first.
    try:
        write(path)
        status = path.stat()
    except TencacheError as error:
        say(f"error: the {what} file {path} could not be written: {error}")
        return None
    except OSError:
        return None  # Somebody took it away already.
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _flush_stdout() -> None:
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        return  # stdout is closed, or broken; Python tells that at its own end.


def _first_line(stats: Mapping[str, Any]) -> str:
    wall_s, steps = stats["wall_s"], stats["steps"]
    peak, budget = stats["peak"]["device"], stats["budget"]["device"]
    line = format_seconds(wall_s)
    if steps:
        line += f" in all, {counted(steps, 'step')}"
    return f"{line}; device peak {format_bytes(peak)} of a budget of {format_bytes(budget)}"


def _moved_line(stats: Mapping[str, Any]) -> str:
    moved = stats["bytes"]
    line = f"evicted {format_bytes(moved['evicted'])}, fetched {format_bytes(moved['fetched'])}; "
    clean = f"{format_bytes(moved['clean_dropped'])} clean and not"
    if stats.get("backend") == "cuda":
        return (
            f"{line}host memory: peak {format_bytes(stats['peak']['host'])}; {clean} copied again"
        )
    return (
        f"{line}disk: {format_bytes(moved['disk_written'])} written, "
        f"{format_bytes(moved['disk_read'])} read, {clean} written again"
    )


def _wait_line(stats: Mapping[str, Any]) -> str:
    fetches, stall_s, wall_s = stats["fetches"], stats["stall_s"], stats["wall_s"]
    share = f" ({stall_s / wall_s:.0%} of the time)" if wall_s > 0 else ""
    who = "threads"
    if stats.get("backend") == "cuda":  # threads run ahead, and wait while the GPU computes
        who = "the GPU"
        share += f", threads {format_seconds(stats['thread_wait_s'])}"
    return (
        f"{who} waited {format_seconds(stall_s)}{share}; "
        f"fetches: {fetches['late']} late, {fetches['early']} early, {fetches['wasted']} wasted"
    )


def _plan_lines(stats: Mapping[str, Any]) -> list[str]:
    """How far a period is from the limits; nothing if none was learned or followed."""
    plan = stats.get("plan")
    if not plan or not plan.get("step_s"):
        return []
    line = (
        f"plans foresaw {plan['coverage']:.0%} of the ops; the period that was learned last took "
        f"{format_seconds(plan['step_s'])}{timed_clause(plan)}, predicted "
        f"{format_seconds(plan['predicted_step_s'])}; "
        f"computing alone {format_seconds(plan['ideal_step_s'])}, no schedule could beat "
        f"{format_seconds(plan['bound_step_s'])}"
    )
    # Where ops alone exceed the budget, another line names the budget that would hold them.
    stall_free = stall_free_budget(
        one for one in by_budget(stats) if not one["over_budget"]["events"]
    )
    if stall_free:
        line += (
            f"; learned periods would hardly wait with --device-memory {option_bytes(stall_free)}"
        )
    return [line]


def by_budget(stats: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The stats of each device that has a budget of its own, as `--device-memory` gives it.

    On cuda these are the GPUs; the outer figures are sums. On cpu there is one such device, memory.
    """
    # Files of earlier builds tell less of a GPU.
    return [gpu for gpu in stats.get("gpus", ()) if "over_budget" in gpu] or [stats]


def stall_free_budget(devices: Iterable[Mapping[str, Any]]) -> int | None:
    """The `--device-memory` with which learned steps would hardly wait on any of these devices.

    0 where they hardly wait already, and None where that is not known.
    """
    found = [
        # The stall-free budget equals the given one if a period hardly waits already, and is 0 if
        # not known.
        ((one.get("plan") or {}).get("stall_free_budget_bytes", 0), one["budget"]["device"])
        for one in devices
    ]
    larger: list[int] = [stall_free for stall_free, budget in found if stall_free > budget]
    if larger:
        return max(larger)
    return 0 if found and all(stall_free for stall_free, _ in found) else None


def timed_clause(plan: Mapping[str, Any]) -> str:
    """What the measured time of a period is: " (median of 5)", or that of a single one."""
    count = plan.get("timed_periods", 0)  # files of earlier builds lack it
    return f" (median of {count})" if count > 1 else " (measured once)" if count else ""


def _stored_lines(stats: Mapping[str, Any]) -> list[str]:
    """What became of the option learn_from; nothing if it was not given."""
    stored = (stats.get("plan") or {}).get("stored")
    if not stored:
        return []
    if not stored["ticks_followed"]:
        return [
            "learn_from: the recorded period was not followed; perhaps it is of another program, "
            "or its tensors have other sizes (--record FILE records this one)"
        ]
    ops = counted(stored["ticks_followed"], "op")
    return [
        f"learn_from: the recorded period was followed for {ops}, until this run had shown its own"
    ]


def trouble_lines(stats: Mapping[str, Any]) -> list[str]:
    """What went wrong, each with its remedy."""
    lines = _failed_gpus(stats)
    has_failed = bool(lines)
    exceeded = [one for one in by_budget(stats) if one["over_budget"]["events"]]
    if exceeded and not has_failed:
        count = sum(one["over_budget"]["events"] for one in exceeded)
        excess = max(one["over_budget"]["peak_bytes"] for one in exceeded)
        need = max(one["budget"]["device"] + one["over_budget"]["peak_bytes"] for one in exceeded)
        lines.append(
            f"over budget {counted(count, 'time')}, by up to {format_bytes(excess)} "
            "(a warning has named the cause): "
            f"--device-memory {option_bytes(need)} would hold them"
        )
    unannounced = stats["unannounced"]
    if unannounced["reads"] or unannounced["writes"]:
        lines.append(
            "cold tensors were touched outside of ops: "
            f"{counted(unannounced['reads'], 'read')} and "
            f"{counted(unannounced['writes'], 'write')} (right, but slow), as by NumPy views "
            "that are kept, extensions or data_ptr()"
        )
    launches = stats.get("launches", {}).get("unannounced", 0)
    if launches:
        lines.append(
            f"{counted(launches, 'launch', 'launches')} used tensors that no op had announced, and "
            "passed the gate as ops of their own (right), as kernels of extensions do"
        )
    failures = stats.get("eviction_failures", 0)
    if failures and not has_failed:
        on_cuda = stats.get("backend") == "cuda"
        lines.append(
            f"{counted(failures, 'eviction')} failed, since "
            f"{'host memory' if on_cuda else 'the spill file'} could not take them; the tensors "
            f"stayed {'on the GPU' if on_cuda else 'in memory'}. `tencache doctor` shows the "
            f"{'memory that is left' if on_cuda else 'disk tier'}"
        )
    return lines


def _failed_gpus(stats: Mapping[str, Any]) -> list[str]:
    """A line for each GPU that takes no more work: later failures come from that."""
    return [
        f"GPU {gpu['ordinal']} has failed: {gpu['failure']}; evictions and allocations that failed "
        "after that say nothing about memory. The program's first CUDA error tells why "
        "(CUDA_LAUNCH_BLOCKING=1 tells where)"
        for gpu in stats.get("gpus", ())
        if gpu.get("failure")  # files of earlier builds lack it
    ]
