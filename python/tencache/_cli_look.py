# SPDX-License-Identifier: Apache-2.0
"""The commands that look at a run: `tencache report`, `tencache top`, `tencache trace export`.

The commands parse their flags and leave the work to _page.py, _top.py and _perfetto.py. None of
them needs torch. Statuses are those of the other commands (_cli.py); `top` ends with 1 if there is
nothing to look at.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tencache import (
    _file_kinds,
    _live,
    _page,
    _perfetto,
    _period_file,
    _pipe,
    _plan,
    _report,
    _story,
    _top,
)
from tencache._library import TencacheError, core
from tencache._messages import say
from tencache._outputs import check_output, write_output

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUTPUT = click.Path(dir_okay=False, path_type=Path)
_BUDGETS = "100%,75%,50%,25%"
# The groups that every stats file has.
_GROUPS = (
    "backend",
    "budget",
    "peak",
    "bytes",
    "fetches",
    "steps",
    "wall_s",
    "stall_s",
    "versions",
)


# ---- report ------------------------------------------------------------------------------------


@click.command("report")
@click.argument("run", type=_FILE, metavar="RUN.json")
@click.option("-o", "--output", type=_OUTPUT, metavar="FILE", help="The page. [default: RUN.html]")
@click.option(
    "--trace",
    type=_FILE,
    metavar="FILE",
    help="Trace of the same run, for what moved when and what waited. [default: as the run says]",
)
@click.option(
    "--period",
    type=_FILE,
    metavar="FILE",
    help="Period that the run recorded, for other budgets. [default: as the run says]",
)
def report(run: Path, output: Path | None, trace: Path | None, period: Path | None) -> None:
    """Make one HTML page of RUN.json, which `tencache run --stats RUN.json` wrote.

    It needs no network, and nothing beside it. With --trace and --record in the same run it shows
    everything: tencache run --stats run.json --trace run.trace --record run.period -- python …
    """
    output = output or run.with_suffix(".html")
    check_output(output, "--output", run)
    stats = read_stats(run)
    trace = trace or _file_of(stats, "trace")
    period = period or _file_of(stats, "record")
    check_output(output, "--output", trace, period)
    with Console(stderr=True).status(f"reading {run}"):
        page = _page.render(_sources(run, stats, trace, period))
    # The names of files need not be UTF-8.
    write_output(output, page.encode(errors="backslashreplace"))
    say_written(output)


def say_written(output: Path, what_next: str = "") -> None:
    """Names the written file on stdout, unless stdout is that file."""
    if str(output) not in ("/dev/stdout", "/dev/fd/1"):
        click.echo(f"wrote {output}{what_next}")


def read_stats(path: Path) -> dict[str, Any]:
    """The stats file's object; raises TencacheError if it is none."""
    kind = _file_kinds.kind_of(path)
    if kind not in (None, _file_kinds.STATS):
        raise _no_stats(path, f"it is {kind}")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _no_stats(path, "it is not JSON") from error
    try:
        _report.summary_lines(content)
        for name in _GROUPS:
            content[name]
    except KeyError as error:
        raise _no_stats(path, f"it lacks {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _no_stats(path, "it is JSON of another kind") from error
    return content


def _no_stats(path: Path, reason: str) -> TencacheError:
    return TencacheError(
        f"{path} holds no stats of tencache ({reason}). Give a file written by `tencache run "
        "--stats FILE -- …`."
    )


def _file_of(stats: Mapping[str, Any], name: str) -> Path | None:
    """The run's other file of that name, if it is still there and this user may read it."""
    text = stats.get("files", {}).get(name)
    # Path.is_file() raises where a folder may not be searched.
    if not text or not os.path.isfile(text):
        return None
    if not os.access(text, os.R_OK):
        say(f"warning: {text} may not be read by this user, so the page goes without it.")
        return None
    return Path(text)


def _sources(
    run: Path, stats: Mapping[str, Any], trace: Path | None, period: Path | None
) -> _page.Sources:
    """All that is known of the run; a file of another run counts as missing."""
    story = _story.tell(trace) if trace is not None else None
    steps = _period_file.read_period(period) if period is not None else None
    other_trace = other_period = None
    if story is not None and _is_of_another_run(story.run_id, stats):
        story, other_trace = None, trace
    if steps is not None and _is_of_another_run(steps.run_id, stats):
        steps, other_period = None, period
    for path, flag in ((other_trace, "--trace"), (other_period, "--period")):
        if path is not None:
            say(
                f"warning: {path} is of another run than {run}, so the page goes without it. Name "
                f"the file of this run with {flag}, or run the program again with other names."
            )
    return _page.Sources(
        path=run,
        stats=stats,
        story=story,
        forecast=_forecast(period, steps) if period is not None and steps is not None else None,
        period=period if steps is not None else None,
        other_trace=other_trace,
        other_period=other_period,
    )


def _is_of_another_run(run_id: object, stats: Mapping[str, Any]) -> bool:
    """Whether the two ids are known and differ; earlier builds wrote none."""
    own = stats.get("run_id")
    return own is not None and run_id is not None and run_id != own


def _forecast(path: Path, period: _period_file.Period) -> _plan.Report | None:
    """None where too little moved during the recording to tell how fast the tier below is."""
    try:
        pipe = _pipe.Pipe.of(period, _pipe.Given())
    except TencacheError:
        return None
    planner = _plan.Planner(core(), period, pipe)
    return _plan.make_report(planner, path, _plan.parse_budgets(_BUDGETS))


# ---- top ---------------------------------------------------------------------------------------


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    """Refuses nan, which a range lets through."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds.")
    return value


@click.command("top")
@click.argument("pid", type=click.IntRange(min=1), required=False)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2, max=86400),
    callback=_finite,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time from one look to the next.",
)
@click.option("--once", is_flag=True, help="Look once, print the table and end.")
@click.option("--json", "as_json", is_flag=True, help="Look once and print JSON.")
def top(pid: int | None, interval: float, once: bool, as_json: bool) -> None:
    """Show what the processes under tencache do now: memory, traffic, stall.

    All that may be looked at on this machine, or the one with the number PID. Ctrl-C ends it; the
    programs notice nothing of it. Into a file or a pipe it prints a table for each look.
    """
    console = Console()
    if not (once or as_json):
        # SIGTERM becomes an exception, which leaves the terminal as it was.
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
        try:
            _top.run(pid, interval, console)
        except KeyboardInterrupt:
            return
        return
    look = _top.Look(_live.processes(pid))
    shown = _top.all_rates(look, None)
    if as_json:
        click.echo(json.dumps(_top.to_json(look, shown), indent=2))
    else:
        _top.print_look(look, shown, console)
    sys.exit(0 if look.processes else 1)


# ---- trace export ------------------------------------------------------------------------------


@click.command("export")
@click.argument("file", type=_FILE)
@click.option(
    "--perfetto", is_flag=True, help="For Perfetto's viewer (ui.perfetto.dev), the only format."
)
@click.option(
    "-o",
    "--output",
    type=_OUTPUT,
    metavar="OUTPUT",
    help="The file to write. [default: FILE.perfetto.json]",
)
def export(file: Path, perfetto: bool, output: Path | None) -> None:
    """Write FILE, which `tencache run --trace FILE` wrote, for another program to show.

    Ops, waits and moves become tracks, memory becomes counters, and an arrow leads from each late
    fetch to the op that waited for it.
    """
    if not perfetto:
        raise click.UsageError("Say for whom: `tencache trace export --perfetto FILE`.")
    output = output or file.with_name(f"{file.name}.perfetto.json")
    check_output(output, "--output", file)
    story = _story.tell(file)
    write_output(output, _perfetto.to_json(story))
    say_written(output, ": open it at https://ui.perfetto.dev (it stays on this machine)")
