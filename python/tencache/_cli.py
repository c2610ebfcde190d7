# SPDX-License-Identifier: Apache-2.0
"""The `tencache` command: run, doctor, stats, report, top, trace, plan, preload, cmake-dir.

`run` is only a launcher. It checks every value, opens the tiers once to be sure that this machine
can, writes the options into the environment and becomes the program through exec. So exit status,
signals, terminal and process id are the program's own, and tencache itself starts in the program
when torch is imported (_autoload.py). Flags come from the option table.

Statuses: 2 for something the user must change, 126 and 127 as in shells for a program that cannot
be executed or found, 1 for a report that says no, an interrupt or a closed pipe. Nothing here
imports torch.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tencache import (
    _autoload,
    _backend,
    _cli_cpp,
    _cli_look,
    _cli_plan,
    _doctor,
    _openmp,
    _options,
    _preload,
    _report,
    _runtime,
    _trace,
)
from tencache._library import (
    Core,
    TencacheError,
    core,
    guard_path,
    package_version,
    preload_path,
)
from tencache._messages import say, shortened

_USAGE_STATUS = 2
_NOT_EXECUTABLE_STATUS = 126
_NOT_FOUND_STATUS = 127
_USAGE_LETTERS_MAX = 1000
_PERIOD_FILE = "period.jsonl"
# This fits python3 and python3.13t, but not python_job.sh.
_PYTHON_NAME = re.compile(r"python[0-9.]*[a-z]?")
# The question ends with status 3 if this Python would not load tencache. A folder or script that
# only has the same name does not count.
_QUESTION = """
import importlib.util, os, sys
spec = importlib.util.find_spec("tencache")
folders = (spec and spec.submodule_search_locations) or ()
files = [os.path.join(folder, "_autoload.py") for folder in folders]
sys.exit(0 if any(map(os.path.isfile, files)) else 3)
"""


def main() -> None:
    """The console script."""
    _replace_closed_streams()
    # A locale that has no letter for "…" must not end the command.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # Options are added here and not at import, so that a library that cannot be loaded becomes
        # a message.
        for target in (run, doctor):
            target.params.extend(_option_parameters())
        record.params.extend(_option_parameters(without="record"))
        sys.exit(command.main(prog_name="tencache", standalone_mode=False) or 0)
    except TencacheError as error:
        _fail(str(error), _USAGE_STATUS)
    except click.ClickException as error:
        if len(error.message) > _USAGE_LETTERS_MAX:
            error.message = shortened(error.message)  # type: ignore[misc]
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        _fail("interrupted", 1)
    except BrokenPipeError:
        # `tencache trace dump FILE | head` closed the pipe; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _replace_closed_streams() -> None:
    """Puts /dev/null where this process was started without stdin, stdout or stderr.

    Otherwise a file that is opened later would take that descriptor and get what is printed. The
    descriptor closes on exec, so the program of `run` finds it closed, as without tencache.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def _fail(message: str, status: int) -> NoReturn:
    say(f"error: {message}")
    sys.exit(status)


def _option_parameters(without: str = "") -> list[click.Parameter]:
    """One flag for each row of the option table; None is the value of a flag that is not given."""
    parameters: list[click.Parameter] = []
    for option in _options.table():
        if option.name == without:
            continue
        names = [option.flag, option.name]
        keywords: dict[str, Any] = {"help": f"{option.help}  [default: {option.default}]"}
        if option.kind == "flag":
            names[0] = f"{option.flag}/--no-{option.flag.removeprefix('--')}"
            keywords["default"] = None
        else:
            keywords["metavar"] = option.choices or option.kind.upper()
        parameters.append(click.Option(names, **keywords))
    return parameters


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Every option of `run` can also be given as a variable: TENCACHE_DEVICE_MEMORY=2GiB.",
)
@click.version_option(package_version(), prog_name="tencache")
def command() -> None:
    """Train beyond the memory budget: same bits, no code change.

    \b
    tencache run --device-memory 2GiB -- python train.py
    tencache doctor
    """


command.add_command(_cli_plan.plan)
command.add_command(_cli_look.report)
command.add_command(_cli_look.top)
command.add_command(_cli_cpp.preload)
command.add_command(_cli_cpp.cmake_dir)


# ---- run ---------------------------------------------------------------------------------------


@command.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    short_help="Run a PyTorch program under a memory budget.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- PROGRAM …")
def run(program: tuple[str, ...], **values: object) -> None:
    """Run PROGRAM, a PyTorch program and its arguments, under a memory budget.

    Its exit status and signals are the program's own.
    """
    _become(program, values)


def _become(program: tuple[str, ...], values: Mapping[str, object]) -> NoReturn:
    """Checks every value, then becomes the program with the options in its environment."""
    library = core()
    given = _options.texts_of(values)
    for name, text in given.items():
        if text == "--":  # click takes whatever follows a flag
            raise click.UsageError(
                f"{_options.find(name).flag} stands before `--` without a value."
            )
    _runtime.set_checked(library, given)
    # This includes files that variables name; at exit an error would come too late.
    _runtime.check_output_files(library)
    _runtime.check_input_file(library)
    executable = _find_program(program[0])
    interpreter = interpreter_of(executable)
    reason = _autoload.why_not_loaded(os.environ)
    # A Python that another program starts is refused when it imports torch.
    if interpreter is not None and reason is not None:
        raise TencacheError(reason)
    _check_interpreter(executable, interpreter)
    environment = dict(os.environ)
    _write_environment(environment, library, given)
    _check_machine(library)  # This quietens the library.
    if interpreter is None:
        # The program may link libtorch, or start one that does.
        _preload.add_preload(environment, preload_path())
    _preload.add_guard(environment, library, guard_path())
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(executable, program, environment)
    except OSError as error:
        _fail(
            f"{shortened(executable)} cannot be executed: {error.strerror}. Name a program, for "
            f"example `tencache run -- {sys.executable} train.py`.",
            _NOT_EXECUTABLE_STATUS,
        )


def _find_program(name: str) -> str:
    found = shutil.which(name)
    if found is not None:
        return found
    shown = shortened(name)
    remedy = f"Check the name, or write its path; this Python is {sys.executable}."
    if os.sep in name:
        _check_reachable(name, remedy)
    if os.path.isfile(name):
        remedy = f"For a Python script write `tencache run -- {sys.executable} {shown}`."
        if os.sep in name:
            _fail(f"{shown} is not executable. {remedy}", _NOT_EXECUTABLE_STATUS)
    _fail(f"{shown}: command not found on PATH. {remedy}", _NOT_FOUND_STATUS)


def _check_reachable(path: str, remedy: str) -> None:
    """Fails, as a shell does, for a path that is there and is no file, or that is out of reach."""
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        _fail(
            f"{shortened(path)} cannot be reached: {error.strerror}. {remedy}",
            _NOT_EXECUTABLE_STATUS,
        )
    if is_folder:
        _fail(f"{shortened(path)} is a directory. {remedy}", _NOT_EXECUTABLE_STATUS)


def interpreter_of(executable: str) -> str | None:
    """The Python that will run: the executable itself, or the one that its first line names."""
    if _PYTHON_NAME.fullmatch(Path(executable).name):
        return executable
    try:
        with Path(executable).open("rb") as file:
            first = file.readline(512).decode("utf-8", "replace")
    except OSError:
        return None
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or not words:
        return None
    if Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        found = shutil.which(words[0]) if words else None
        words = [found] if found else []
    if words and _PYTHON_NAME.fullmatch(Path(words[0]).name):
        return words[0]
    return None


def _check_interpreter(executable: str, interpreter: str | None) -> None:
    """Refuses a Python that has no tencache: the program would silently run without it."""
    if interpreter is None or interpreter == sys.executable:
        return
    try:
        answer = subprocess.run([interpreter, "-c", _QUESTION], capture_output=True, check=False)
    except OSError as error:
        raise TencacheError(
            f"{shortened(interpreter)} would run this program and cannot be started: "
            f"{error.strerror}. Correct the first line of {shortened(executable)}, or write "
            f"`tencache run -- {sys.executable} …`."
        ) from error
    if answer.returncode == 3:
        raise TencacheError(
            f"{interpreter} would run this program, and tencache is not installed there: it would "
            f"run without a budget. Write `tencache run -- {sys.executable} …` for the Python that "
            f"has it, or install it there: `{interpreter} -m pip install`, with tencache's wheel."
        )


def _check_machine(library: Core) -> None:
    """Opens the tiers as the program will, so that an error shows before the program runs.

    The exec that follows closes them. The core is kept quiet here, because it will say the same
    again in the program.
    """
    _backend.settle(library)
    library.set_option("quiet", "on")
    library.set_option("log_level", "error")
    library.start()


def _write_environment(
    environment: MutableMapping[str, str], library: Core, given: Iterable[str]
) -> None:
    environment[_options.SWITCH] = "1"
    for name in given:
        environment[_options.find(name).environment] = library.option_text(name)
    # The program may start others once it has changed its folder.
    _runtime.make_paths_absolute(environment)
    _openmp.let_threads_sleep(environment)


# ---- doctor ------------------------------------------------------------------------------------


@command.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def doctor(as_json: bool, **values: object) -> None:
    """Say what this machine offers, and whether tencache fits the installed torch.

    The options are those of `run`: `tencache doctor --spill-dir DIR` tries that directory. The exit
    status is 1 when a program could not be started under tencache, and 2, as with `run`, for an
    option that does not take its value.
    """
    library = core()
    _runtime.set_checked(library, _options.texts_of(values))
    _runtime.check_output_files(library)
    _runtime.check_input_file(library)
    report = _doctor.collect(library)
    if not _doctor.blockers(report):
        report["start"] = _try_start(library)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _doctor.show(report, Console())
    sys.exit(1 if _doctor.blockers(report) else 0)


def _try_start(library: Core) -> dict[str, Any]:
    """Whether the core starts with these options, as a section of the report."""
    try:
        _check_machine(library)
    except TencacheError as error:
        return {"works": False, "reason": str(error)}
    return {"works": True}


# ---- stats -------------------------------------------------------------------------------------


@command.command("stats")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def stats(file: Path) -> None:
    """Show a stats FILE that `tencache run --stats FILE` wrote."""
    content = _cli_look.read_stats(file)
    table = Table(show_header=False, title=escape(str(file)), title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for row in _report.stat_rows(content):
        table.add_row(*map(escape, row))
    Console().print(table)
    for line in _report.summary_lines(content):
        click.echo(line)


# ---- trace -------------------------------------------------------------------------------------


@command.group("trace")
def trace() -> None:
    """Record what a program does, op by op, and look at it."""


@trace.command(
    "record",
    context_settings={"allow_interspersed_args": False},
    short_help="Run a program and record one period of it.",
)
@click.option(
    "-o",
    "--output",
    envvar="TENCACHE_RECORD",
    default=_PERIOD_FILE,
    show_default=True,
    metavar="FILE",
    help="File that receives the period, as --record of `tencache run`.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- PROGRAM …")
def record(program: tuple[str, ...], output: str, **values: object) -> None:
    """Run PROGRAM as `tencache run` does, and record one period of it for `tencache plan`.

    A period is what the program does again and again, for example a training step. Ops are watched
    once use comes near the device memory, so give a --device-memory below what the program uses.
    """
    # A variable may say that there is no file, and this command is for the file.
    path = _PERIOD_FILE if output == "off" else output
    _become(program, {**values, "record": path})


trace.add_command(_cli_look.export)


@trace.command("dump")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of a table.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N events.")
@click.option("--op", metavar="TEXT", help="Only events of ops whose name contains TEXT.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(_trace.KINDS),
    metavar="KIND",
    help=f"Only events of this kind: {', '.join(_trace.KINDS)}. May be repeated.",
)
def dump(
    file: Path, as_json: bool, limit: int | None, op: str | None, kinds: Sequence[str]
) -> None:
    """Show the events of FILE, which `tencache run --trace FILE` wrote."""
    reader = _trace.TraceReader(file)
    events = _trace.select(reader.events(), op=op, kinds=frozenset(kinds))
    shown = itertools.islice(events, limit)
    if as_json:
        for event in shown:
            click.echo(json.dumps(event.written))
        return
    for line in _trace.table_lines(shown):
        click.echo(line)
    if reader.lost_count:
        click.echo(
            f"{reader.lost_count} older events are missing: only each thread's newest were kept.",
            err=True,
        )
