# SPDX-License-Identifier: Apache-2.0
"""The command `tencache plan`: parses its flags and makes a report (_plan.py).

It works without torch: the core alone predicts a period that was recorded elsewhere. Statuses are
those of the other commands (_cli.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tencache import _drawing, _period_file, _pipe, _plan, _plan_plot, _plan_timeline
from tencache._library import OptionError, TencacheError, core


def _parsed_by(parse: Callable[[str], object]) -> Callable[..., object]:
    """A click callback that parses the text; a text that `parse` refuses is a usage error."""

    def callback(context: click.Context, parameter: click.Parameter, text: str | None) -> object:
        try:
            return None if text is None else parse(text)
        except OptionError as error:
            raise click.BadParameter(str(error), context, parameter) from error

    return callback


_SPEED: dict[str, Any] = {"callback": _parsed_by(_pipe.parse_rate), "metavar": "SPEED"}


@click.command("plan")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--device-memory",
    "budgets",
    callback=_parsed_by(_plan.parse_budgets),
    metavar="BUDGETS",
    default="100%,75%,50%,25%",
    show_default=True,
    help="Budgets to predict for: sizes, or shares of the most that exists at one time.",
)
@click.option("--disk", **_SPEED, help="How fast the disk reads and writes, as in 5GB/s.")
@click.option("--disk-read", **_SPEED, help="How fast it reads; wins over --disk.")
@click.option("--disk-write", **_SPEED, help="How fast it writes; wins over --disk.")
@click.option("--link", **_SPEED, help="How fast the link to the device is in each direction.")
@click.option("--link-read", **_SPEED, help="How fast it is to the device; wins over --link.")
@click.option("--link-write", **_SPEED, help="How fast it is from the device; wins over --link.")
@click.option(
    "--host-memory",
    callback=_parsed_by(lambda text: core().parse_bytes(text)),
    metavar="SIZE",
    default="0",
    help="Host memory between the link and the disk; needs --link and --disk. 0: none.",
)
@click.option("--half-duplex", is_flag=True, help="Reads and writes take turns on the disk.")
@click.option(
    "--gpus",
    callback=_parsed_by(_pipe.parse_gpus),
    metavar="N",
    default="1",
    show_default=True,
    help="GPUs that each run FILE at the same time. Each has the budget and a link for itself, and "
    "an even part of the machine's --host-memory and --disk. More than one needs --disk.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw step time over budget into this file, .png or .svg.",
)
@click.option(
    "--timeline",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw memory, moves and stalls of one step under the first budget into this file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def plan(
    file: Path,
    budgets: Sequence[_plan.Budget],
    disk: float | None,
    disk_read: float | None,
    disk_write: float | None,
    link: float | None,
    link_read: float | None,
    link_write: float | None,
    host_memory: int,
    half_duplex: bool,
    gpus: int,
    plot: Path | None,
    timeline: Path | None,
    as_json: bool,
) -> None:
    """Predict how long a step of FILE would take with other memory, disks and links.

    FILE is a period that `tencache trace record` wrote, or that another tool wrote in the same
    format. Without --disk the speeds are those measured during the recording.
    """
    _check_drawings(file, plot, timeline)
    period = _period_file.read_period(file)
    given = _pipe.Given(
        disk_read=disk_read or disk,
        disk_write=disk_write or disk,
        link_read=link_read or link,
        link_write=link_write or link,
        is_half_duplex=half_duplex,
        host_bytes=host_memory,
        gpus=gpus,
    )
    pipe = _pipe.Pipe.of(period, given)
    # A large period takes a while. The status shows only on a terminal.
    with Console(stderr=True).status(f"planning {period.op_count} ops under several budgets"):
        planner = _plan.Planner(core(), period, pipe)
        report = _plan.make_report(planner, file, budgets)
        if plot is not None:
            _plan_plot.write_plot(plot, report)
        if timeline is not None:
            _plan_timeline.write_timeline(timeline, report)
    if as_json:
        click.echo(json.dumps(_plan.to_json(report), indent=2))
    else:
        _plan.show(report, Console())


def _check_drawings(file: Path, plot: Path | None, timeline: Path | None) -> None:
    """Raises TencacheError, before the planning, if a drawing could not be written."""
    for path, flag in ((plot, "--plot"), (timeline, "--timeline")):
        if path is not None:
            _drawing.check_path(path, flag, file)
    if plot is not None and timeline is not None and core().is_same_output(plot, timeline):
        raise TencacheError(
            f"{plot} is the file of both --plot and --timeline, and the second drawing would "
            "replace the first. Name two files."
        )
