# SPDX-License-Identifier: Apache-2.0
"""`tencache top`: what running processes publish, and what is shown of it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pty
import pwd
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import clean_environment, run_command
from rich.console import Console

from tencache import _live, _top
from tencache._library import TencacheError

# What is published and shown does not depend on the torch that is installed.
pytestmark = pytest.mark.any_torch

# This program moves tensors, tells its stats for each line it reads, and ends when its input does.
PROGRAM = """
import json, os, sys
import tencache, torch

tencache.enable(device_memory="32MiB", quiet=True)
tensors = [torch.ones(1 << 20) for _ in range(24)]
for tensor in tensors:
    tensor.add_(1)
waiting, ending = os.pipe()
child = os.fork()
if child == 0:
    os.close(ending)
    os.read(waiting, 1)
    os._exit(0)
print(child, flush=True)
for line in sys.stdin:
    print(json.dumps(tencache.stats()), flush=True)
os.close(ending)
os.waitpid(child, 0)
"""
TRIES = 20_000


class Program:
    """A program that runs and answers."""

    def __init__(self, process):
        self._process = process
        self.pid = process.pid
        self.child = int(process.stdout.readline())

    def stats(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def agreed(self):
        """The page and the stats, once both tell the same: the page is a fifth of a second old."""
        for _ in range(TRIES):
            stats = self.stats()
            [process] = _live.processes(self.pid)
            [engine] = process.engines
            shown = engine.counters
            if (
                shown["device_used"] == stats["now"]["device"]
                and shown["disk_used"] == stats["now"]["disk"]
                and shown["evicted"] == stats["bytes"]["evicted"]
                and shown["fetched"] == stats["bytes"]["fetched"]
                and shown["disk_written"] == stats["bytes"]["disk_written"]
                and shown["late_fetches"] == stats["fetches"]["late"]
            ):
                return process, stats
        raise AssertionError(f"{shown} and {stats}")


@contextlib.contextmanager
def program(**variables):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(variables),
    ) as process:
        yield Program(process)
        process.stdin.close()
        assert process.wait() == 0


def test_running_processes_are_seen_with_their_counters():
    with program(RANK="1", WORLD_SIZE="2") as running:
        process, stats = running.agreed()
        assert process.rank == 1
        assert process.user == pwd.getpwuid(os.getuid()).pw_name
        assert process.program.endswith(" -c")
        assert "tencache.enable" in process.command
        assert process.is_armed
        assert process.age_s > 0
        [engine] = process.engines
        assert engine.gpu is None
        assert engine.counters["evicted"] > 0
        assert engine.counters["device_budget"] == stats["budget"]["device"] == 32 << 20
        assert engine.counters["ops"] == stats["ops"]
        everyone = [one.pid for one in _live.processes()]
        assert running.pid in everyone
        assert running.child not in everyone, "a forked child has its parent's page"
        with pytest.raises(TencacheError, match="does not run under tencache"):
            _live.processes(running.child)
    with pytest.raises(TencacheError, match=f"there is no process {running.pid}"):
        _live.processes(running.pid)


def test_top_shows_one_look_as_a_table_and_as_json(tmp_path):
    with program() as running:
        _, stats = running.agreed()
        command = [sys.executable, "-m", "tencache", "top", str(running.pid)]
        done = run_command([*command, "--json"], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        [process] = json.loads(done.stdout)["processes"]
        assert process["pid"] == running.pid and process["rank"] is None
        [engine] = process["engines"]
        assert engine["counters"]["disk_written"] >= stats["bytes"]["disk_written"]
        assert engine["rates"]["evicted_bytes_per_s"] > 0
        done = run_command([*command, "--once"], cwd=tmp_path, env={"COLUMNS": "200"})
        assert done.returncode == 0, done.stderr
        assert str(running.pid) in done.stdout
        assert "of 32.0 MiB" in done.stdout


@pytest.mark.parametrize("number", ["999999999", str(os.getpid())], ids=["nobody", "stock"])
def test_top_of_another_process_says_what_is_wrong(tmp_path, number):
    done = run_command([sys.executable, "-m", "tencache", "top", number, "--once"], cwd=tmp_path)
    assert done.returncode == 2
    assert number in done.stderr and "tencache top" in done.stderr
    assert "Traceback" not in done.stderr


def engine_of(**counters):
    names = [name for name in _live._COUNTERS if name != "ordinal"]
    return _live.LiveEngine(None, {**dict.fromkeys(names, 0), **counters})


def process_of(pid, engine, *, age_s=1.0, user="ann", program="train.py"):
    return _live.LiveProcess(
        pid=pid,
        rank=None,
        user=user,
        program=program,
        command="python train.py",
        age_s=age_s,
        is_armed=True,
        engines=(engine,),
    )


@pytest.mark.parametrize("interval", ["nan", "inf", "1e300", "0"])
def test_an_interval_that_is_none_is_refused(tmp_path, interval):
    command = [sys.executable, "-m", "tencache", "top", "--interval", interval]
    done = run_command(command, cwd=tmp_path)
    assert done.returncode == 2
    assert "--interval" in done.stderr and "Traceback" not in done.stderr


def test_rates_are_those_between_two_looks():
    before = (10.0, engine_of(fetched=100, evicted=50, stall_ns=10**9, early_fetches=1))
    now = (
        12.0,
        engine_of(fetched=300, evicted=50, stall_ns=2 * 10**9, early_fetches=4, late_fetches=1),
    )
    assert _top.rates(now, before) == _top.Rates(100.0, 0.0, 0.5, 0.75)
    # Without an earlier look, rates are those since the start. Without news since the earlier look,
    # there are no rates.
    assert _top.rates(now, None) == _top.Rates(25.0, 50 / 12, 2 / 12, 0.8)
    assert _top.rates(now, now) is None
    idle = (20.0, now[1])
    assert _top.rates(idle, now) == _top.Rates(0.0, 0.0, 0.0, None)


class Screen(io.StringIO):
    """A terminal that keeps what it is told."""

    def isatty(self):
        return True


def test_top_redraws_until_the_process_has_ended(monkeypatch):
    looks = [1.0, 2.0, None]

    def processes(_pid):
        age_s = looks.pop(0)
        if age_s is None:
            raise TencacheError("gone")
        engine = engine_of(fetched=int(age_s) << 20, device_used=1 << 20, device_budget=1 << 21)
        return [process_of(4711, engine, age_s=age_s)]

    monkeypatch.setattr(_live, "processes", processes)
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    _top.run(4711, 0.0, Console(file=screen, width=200, force_terminal=True))
    assert looks == []
    text = screen.getvalue()
    assert "50% of 2.00 MiB" in text
    for column in ("rank", "host", "user", "program"):
        assert column not in text
    assert "python train.py" in text


BUSY = {
    "device_budget": 100 << 20,
    "device_used": 100 << 20,
    "host_budget": 1 << 30,
    "host_used": 1000 << 20,
    "disk_budget": 1 << 40,
    "disk_used": 1000 << 20,
    "fetched": 1000 << 20,
    "evicted": 1000 << 20,
    "stall_ns": 2 * 10**9,
    "late_fetches": 1,
    "steps": 123456,
}


def shown_in(width: int | None, *processes: _live.LiveProcess) -> list[str]:
    look, screen = _top.Look(processes), io.StringIO()
    rows, lines = _top.table(look, _top.all_rates(look, None), width)
    Console(file=screen, width=width or 500, color_system=None).print(rows, lines, sep="\n")
    return screen.getvalue().splitlines()


def ranks(**counters) -> list[_live.LiveProcess]:
    engine = dataclasses.replace(engine_of(**{**BUSY, **counters}), gpu=0)
    return [
        dataclasses.replace(process_of(4190000 + rank, engine, user=user), rank=rank)
        for rank, user in enumerate(["ann", "a_long_name_of_a_user"])
    ]


@pytest.mark.parametrize("width", [80, 60, 40])
def test_a_narrow_terminal_gets_fewer_columns_and_no_figure_is_cut(width):
    processes = ranks()
    every_head = shown_in(None, *processes)[0].split()
    head, *rows = shown_in(width, *processes)
    assert len(head) <= width
    names = head.replace("in use", "in_use").split()
    assert set(names) < set(" ".join(every_head).replace("in use", "in_use").split())
    assert names[:1] == ["pid"] and {"memory", "in_use", "stall"} <= set(names)
    for rank in range(2):
        assert rows[rank].split()[0] == str(4190000 + rank)
        assert "100% of 100 MiB" in rows[rank] and "200%" in rows[rank]
        assert "…" not in rows[rank]
    told = " ".join(" ".join(rows[2:]).split())
    assert "left out, for lack of width: " in told and "program" in told and "steps" in told
    assert ("in/s" in names) == (width >= 60)


def test_from_24_columns_on_no_figure_is_cut():
    widest = {"device_budget": 1023 << 20, "device_used": 1023 << 20}
    for width in range(24, 100):
        head, *rows = shown_in(width, *ranks(**widest))
        assert max(map(len, (head, *rows))) <= width
        for rank in range(2):
            assert str(4190000 + rank) in rows[rank] and "100% of 1023 MiB" in rows[rank]
            assert "…" not in rows[rank]


def printed(console: Console, *processes: _live.LiveProcess) -> list[str]:
    look = _top.Look(processes)
    _top.print_look(look, _top.all_rates(look, None), console)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("columns", [None, "abc", "0", "-80"])
@pytest.mark.parametrize("force_color", [None, "1"])
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_file_gets_whole_tables_and_lines(monkeypatch, columns, force_color, term):
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    variables = {"COLUMNS": columns, "FORCE_COLOR": force_color, "TERM": term, "NO_COLOR": "1"}
    for name, value in variables.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    command = "python train.py " + "--flag " * 12
    processes = [dataclasses.replace(one, command=command) for one in ranks()]
    head, *rows = printed(Console(file=io.StringIO(), color_system=None), *processes)
    for name in ("user", "program", "rank", "host", "disk", "in/s", "early", "steps"):
        assert name in head
    assert len(rows) == 4, "a row and a line for each rank"
    assert not any("…" in row for row in rows)
    for rank in range(2):
        assert f"{4190000 + rank}" in rows[rank] and "GPU 0" in rows[rank]
        assert "123456" in rows[rank] and command in rows[2 + rank]


@pytest.mark.parametrize("file", [io.StringIO, Screen])
def test_columns_says_how_wide_a_table_may_be(monkeypatch, file):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    console = Console(file=file(), force_terminal=file is Screen, color_system=None)
    rows = printed(console, *ranks())
    assert max(map(len, rows[:3])) <= 60
    assert "left out, for lack of width" in rows[-1]


def test_a_terminal_is_as_wide_as_it_is_where_columns_is_0(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((130, 40)))
    console = Console(file=Screen(), force_terminal=True)
    assert _top.is_screen(console) and _top.fit(console) == 130


@pytest.mark.parametrize("name", ["train[old].py", "a[/b]", "[red]x", ":smile:"])
def test_a_name_is_shown_as_it_is(name):
    processes = [process_of(4711, engine_of(), program=name, user=name)]
    processes.append(process_of(4712, engine_of()))
    _, row, *_ = printed(Console(file=io.StringIO(), color_system=None), *processes)
    assert row.split()[1:3] == [name, name]


def test_one_program_on_a_cpu_fits_80_columns_whole():
    busy = {name: count for name, count in BUSY.items() if name != "host_budget"}
    head, row, *rest = shown_in(80, process_of(4190000, engine_of(**busy)))
    assert "lack of width" not in " ".join(rest)
    assert head.split()[-3:] == ["stall", "early", "steps"]
    assert row.split()[0] == "4190000" and row.split()[-1] == "123456"


def top_environment(**variables) -> dict[str, str]:
    """An environment that tells rich of no other terminal than there is."""
    environment = clean_environment({})
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        environment.pop(name, None)
    return {**environment, **variables}


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}], ids=["plain", "forced"])
def test_a_pipe_gets_a_table_for_each_look_until_the_command_is_ended(variables):
    with program() as running:
        running.agreed()
        command = [sys.executable, "-m", "tencache", "top", str(running.pid), "--interval", "0.2"]
        environment = top_environment(**variables)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as top:
            lines: list[str] = []
            while sum(" of 32.0 MiB" in line for line in lines) < 3:  # as they come
                lines.append(top.stdout.readline())
                assert lines[-1], top.stderr.read()
            top.terminate()
            assert top.wait() == 128 + signal.SIGTERM
            assert top.stderr.read() == ""
        times = [line for line in lines if re.fullmatch(r"\d{4}-\d\d-\d\d [\d:]{8}\n", line)]
        assert len(times) == 3
        assert not any("lack of width" in line for line in lines)
        assert "\x1b[?" not in "".join(lines)


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """What comes until it holds `wanted`, or until the other end is closed."""
    text = b""
    with contextlib.suppress(OSError):  # how Linux tells that nobody has the terminal any more
        while wanted not in text:
            text += os.read(descriptor, 65536)
    return text


@contextlib.contextmanager
def top_on_a_terminal(term: str):
    """The command over a program, on a terminal; yields its process and the other end."""
    ours, theirs = pty.openpty()
    with program() as running, os.fdopen(ours, "rb", buffering=0):
        running.agreed()
        try:
            top = subprocess.Popen(
                [sys.executable, "-m", "tencache", "top", str(running.pid), "--interval", "0.2"],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=top_environment(TERM=term),
            )
        finally:
            os.close(theirs)
        with top:
            try:
                yield top, ours
            finally:
                top.kill()


def test_sigterm_leaves_the_terminal_as_it_was():
    with top_on_a_terminal("xterm") as (top, terminal):
        before = read_until(terminal, b" of 32.0 MiB")
        assert b"\x1b[?1049h" in before and b"\x1b[?25l" in before
        top.terminate()
        after = read_until(terminal, b"no such text")
        assert b"\x1b[?1049l" in after and b"\x1b[?25h" in after
        assert b"Traceback" not in after
        assert top.wait() == 128 + signal.SIGTERM == 143


def test_a_dumb_terminal_gets_a_table_for_each_look():
    with top_on_a_terminal("dumb") as (top, terminal):
        text = b"".join(read_until(terminal, b" of 32.0 MiB") for _ in range(2))
        top.terminate()
        text += read_until(terminal, b"no such text")
        assert top.wait() == 143
        assert b"\x1b" not in text and b"lack of width" not in text


def test_rows_of_several_processes_say_which_is_which():
    look = _top.Look(
        [
            process_of(4711, engine_of(), user="ann"),
            process_of(4712, engine_of(), user="ann", program="worker of 4711"),
            process_of(4713, engine_of(), user="bob", program="a_very_long_name_of_a_script.py"),
        ]
    )
    screen = io.StringIO()
    Console(file=screen, width=200, color_system=None).print(*_top.table(look, {}), sep="\n")
    head, *rows = screen.getvalue().splitlines()
    assert head.split()[:3] == ["pid", "user", "program"]
    for row, words in zip(
        rows,
        (("4711", "ann", "train.py"), ("4712", "ann", "worker of 4711"), ("4713", "bob", "a_very")),
        strict=False,
    ):
        assert all(word in row for word in words), row
    assert "a_very_long_name_of…" in rows[2]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["/venv/bin/python", "-u", "-X", "dev", "src/train.py", "--lr", "1"], "train.py"),
        (["python3.11", "-m", "pkg.train", "x"], "pkg.train"),
        (["python", "-c", "import torch"], "python -c"),
        (["python", "-mpkg.train", "cfg.yaml"], "pkg.train"),
        (["python", "-uc", "import torch", "cfg.yaml"], "python -c"),
        (["python", "-Wignore", "-Xdev", "-uW", "error", "train.py"], "train.py"),
        (["python"], "python"),
        (["./build/plain", "8"], "plain"),
        (
            [
                "/venv/bin/python",
                "-c",
                "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, "
                "pipe_handle=7)",
                "--multiprocessing-fork",
            ],
            "worker of 4711",
        ),
        (
            ["python", "-c", "from multiprocessing.forkserver import main; main(5, 7)"],
            "worker of 4711",
        ),
        ([""], ""),
    ],
)
def test_a_process_is_named_by_what_it_runs(words, name):
    assert _live.program_name(words, 4711) == name


def test_top_with_nobody_to_show_says_so():
    look = _top.Look([])
    screen = io.StringIO()
    Console(file=screen, width=200, color_system=None).print(*_top.table(look, {}), sep="\n")
    assert "no process of yours runs under tencache" in screen.getvalue()


def test_pages_of_another_kind_are_left_alone(tmp_path):
    path = tmp_path / "page"
    for content in (b"", b"x" * 10000, bytes(10000)):
        path.write_bytes(content)
        assert _live._whole_page(path) is None


def test_the_layout_is_that_of_the_core():
    header = Path(__file__).resolve().parents[2] / "allocator" / "abi" / "live_page.h"
    text = header.read_text()
    for name, struct in (("LiveEngine", _live._EngineStruct), ("LivePage", _live._PageStruct)):
        body = text.split(f"struct {name} {{")[1].split("};")[0]
        fields = [line.split()[1].split("[")[0].rstrip(";") for line in body.strip().splitlines()]
        assert fields == [field for field, _ in struct._fields_]
