# SPDX-License-Identifier: Apache-2.0
"""The files that a user asks for, from the option to the disk, and values that no file can have.

What becomes of each kind of file is tested in the core (tests/allocator/output_file_test.cpp). Here
whole programs write them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import clean_environment
from test_cli import assert_refused

import tencache
from tencache import _drawing, _options, _runtime
from tencache._library import OptionError, TencacheError, core
from tencache._messages import shortened

# These tests do not depend on the installed torch.
pytestmark = pytest.mark.any_torch

ON = {"TENCACHE": "1", "TENCACHE_DEVICE_MEMORY": "64MiB", "TENCACHE_QUIET": "1"}
PROGRAM = "import torch; torch.ones(1 << 20).add_(1)"


# ---- What has the name already -------------------------------------------------------------------


def test_what_is_no_regular_file_is_written_to_and_stays(run_python, tmp_path):
    """`--stats /dev/null`, as root, once replaced the device."""
    device, pipe, link = (tmp_path / name for name in ("null", "pipe", "link"))
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        device = Path("/dev/null")  # this user could not destroy it
    os.mkfifo(pipe)
    (tmp_path / "file").write_text("an older one")
    link.symlink_to("file")
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
    reader.start()
    outputs = {"TENCACHE_STATS": link, "TENCACHE_TRACE": pipe, "TENCACHE_RECORD": device}
    done = run_python(PROGRAM, env={**ON, **{name: str(path) for name, path in outputs.items()}})
    assert stat.S_ISCHR(device.stat().st_mode)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()
    reader.join(timeout=60)
    assert json.loads((tmp_path / "file").read_text())["extents"] == 1
    assert json.loads(received[0].splitlines()[0])["format"] == "tencache-events"
    # The program does not repeat anything.
    assert done.stderr.count("\n") == 1 and "no repeating period" in done.stderr, done.stderr


def test_stdout_gets_the_stats_after_what_the_program_printed(run_python, tmp_path):
    # The name /dev/stdout would not do: a mistake in what is tested could replace it here.
    done = run_python(PROGRAM, "print('printed')", env={**ON, "TENCACHE_STATS": "/dev/fd/1"})
    printed, content = done.stdout.split("\n", 1)
    assert printed == "printed"
    assert json.loads(content)["extents"] == 1
    # The same holds where stdout is a file.
    with (tmp_path / "log").open("w") as log:
        subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env=clean_environment({**ON, "TENCACHE_STATS": "/dev/fd/1"}),
            stdout=log,
            check=True,
        )
    printed, content = (tmp_path / "log").read_text().split("\n", 1)
    assert printed == "printed"
    assert json.loads(content)["extents"] == 1


def test_links_that_others_put_beside_the_files_are_left_alone(run_python, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("victim")
    run_python(
        """
        import os
        for name in (f".run.json.{os.getpid()}.tmp", "run.json.tmp", "run.trace.unfinished"):
            os.symlink("victim", name)
        """,
        PROGRAM,
        env={**ON, "TENCACHE_STATS": "run.json", "TENCACHE_TRACE": "run.trace"},
    )
    assert victim.read_text() == "victim"
    assert json.loads((tmp_path / "run.json").read_text())["extents"] == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tencache-")]


def test_pipe_that_nobody_reads_costs_one_line_and_no_time(run_python, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = run_python(PROGRAM, env={**ON, "TENCACHE_STATS": "pipe"})
    (line,) = done.stderr.splitlines()
    assert f"the stats file {tmp_path}/pipe could not be written: nobody reads" in line


def test_drawing_replaces_a_file_as_a_whole_and_keeps_a_link(tmp_path):
    matplotlib = pytest.importorskip("matplotlib.figure")
    figure = matplotlib.Figure()
    (tmp_path / "older.svg").write_text("an older one")
    link = tmp_path / "step.svg"
    link.symlink_to("older.svg")
    _drawing.check_path(link, "--plot")
    _drawing.save(figure, link)
    assert link.is_symlink()
    assert "<svg" in (tmp_path / "older.svg").read_text()
    _drawing.save(figure, tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"older.svg", "step.svg", "step.png"}


def test_drawing_that_cannot_be_written_is_refused_before_the_planning(tmp_path):
    pytest.importorskip("matplotlib")
    for name, reason in [
        ("none/step.svg", f"the directory {tmp_path}/none does not exist"),
        ("x" * 252 + ".svg", "File name too long"),
    ]:
        with pytest.raises(TencacheError, match=f"cannot be written: {re.escape(reason)}.*--plot"):
            _drawing.check_path(tmp_path / name, "--plot")


# ---- Known at the start --------------------------------------------------------------------------


def test_name_is_tried_as_the_rank_will_write_it(run_python):
    """A name with room for itself, but not for the rank: the end of the training is too late."""
    name = "x" * 245 + ".json"
    done = run_python(PROGRAM, "print('ran')", env={**ON, "TENCACHE_STATS": name})
    assert done.stdout == "ran\n"
    ranks = {"RANK": "10", "WORLD_SIZE": "11"}
    done = run_python(
        PROGRAM, "print('ran')", env={**ON, **ranks, "TENCACHE_STATS": name}, status=2
    )
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert "File name too long" in first and "TENCACHE_STATS" in first
    assert "The program ends here" in second


def test_worker_goes_without_a_file_that_has_no_room_for_its_number(tmp_path, monkeypatch, capsys):
    name = str(tmp_path / ("x" * 245 + ".json"))
    core().set_option("stats", name)
    _runtime.check_output_files(core())
    assert core().option_text("stats") == name
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    _runtime.check_output_files(core())
    assert core().option_text("stats") == "off"
    assert f"tencache: pid {os.getpid()}: warning: Option stats" in capsys.readouterr().err
    assert tencache.options()  # forgets the value


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_that_starts_while_it_imports_the_program_records_under_its_own_name(
    run_python, method
):
    done = run_python(
        f"""
        import multiprocessing, os
        import torch, tencache

        def show():
            assert f".pid{{os.getpid()}}." in tencache.options()["record"]

        if __name__ == "__main__":
            worker = multiprocessing.get_context("{method}").Process(target=show)
            worker.start()
            worker.join()
            assert worker.exitcode == 0
        """,
        env={**ON, "TENCACHE_RECORD": "run.jsonl"},
    )
    assert "Traceback" not in done.stderr


def test_a_fork_server_that_imports_torch_leaves_the_programs_files_alone(run_python, tmp_path):
    done = run_python(
        """
        import multiprocessing
        from multiprocessing import forkserver
        import torch

        def work():
            pass

        if __name__ == "__main__":
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["torch"])
            worker = context.Process(target=work)
            worker.start()
            worker.join()
            print(forkserver._forkserver._forkserver_pid)
        """,
        env={**ON, "TENCACHE_STATS": "run.json"},
    )
    server = Path("/proc", done.stdout.split()[-1], "stat")
    with contextlib.suppress(OSError):  # it is gone
        while server.read_text().rsplit(")", 1)[1].split()[0] != "Z":
            time.sleep(0.05)
    assert json.loads((tmp_path / "run.json").read_text())["program"].endswith(".py")


def test_a_module_that_is_not_whole_yet_is_no_reason_to_fail(run_python, tmp_path):
    run_python(
        """
        import torch
        model, unused = torch.nn.Linear(8, 8), torch.nn.LazyLinear(8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        """,
        env={**ON, "TENCACHE_TRACE": "run.trace", "TENCACHE_STATS": "run.json"},
    )
    assert (tmp_path / "run.json").exists()
    assert (tmp_path / "run.trace").exists()


def test_working_directory_that_is_gone_is_a_refusal(run_python):
    run_python(
        """
        import os, tencache, torch
        os.mkdir("folder")
        os.chdir("folder")
        os.rmdir("../folder")
        try:
            tencache.enable(stats="run.json")
        except tencache.OptionError as error:
            assert "run.json" in str(error) and "does not exist" in str(error), error
        else:
            raise AssertionError
        """
    )


# ---- A file of its own ---------------------------------------------------------------------------

PERIOD = """\
{"format": "tencache-period", "version": 1}
{"id": 0, "bytes": 4096}
{"name": "aten::mm", "compute_ns": 1, "writes": [0]}
"""


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.combinations(_runtime.OUTPUT_OPTIONS, 2))
)
def test_two_options_cannot_have_one_file(run_tencache, tmp_path, first, second):
    """`--stats out --trace out --record out` once kept the trace alone."""
    (tmp_path / "out").write_text("an older one")
    (tmp_path / "link").symlink_to("out")
    done = run_tencache("run", f"--{first}=link", f"--{second}=./out", "--", "true")
    assert_refused(
        done,
        f"Option {second} does not take the value './out': ",
        f"{tmp_path}/link is also the file of the option {first}, and one would replace the other",
        f"Give a file of its own with --{second} or TENCACHE_{second.upper()}.",
    )
    assert (tmp_path / "out").read_text() == "an older one"


@pytest.mark.parametrize("ranks", [{}, {"RANK": "1", "WORLD_SIZE": "2"}])
def test_variables_and_keywords_cannot_give_one_file_twice(run_python, tmp_path, ranks):
    both = {"TENCACHE_STATS": "out", "TENCACHE_TRACE": str(tmp_path / "out")}
    done = run_python(PROGRAM, "print('ran')", env={**ON, **ranks, **both}, status=2)
    assert_refused(done, "Option trace", "is also the file of the option stats")
    run_python(
        """
        import tencache, torch
        try:
            tencache.enable(trace="out", record="./out")
        except tencache.OptionError as error:
            assert "the option trace" in str(error), error
        assert not tencache.is_enabled()
        tencache.enable(trace="out", record="other", quiet=True)
        """,
        env=ranks,
    )


@pytest.mark.parametrize("name", ["stats", "trace"])
def test_what_is_followed_is_not_replaced_by_another_kind_of_file(run_tencache, tmp_path, name):
    path = tmp_path / "run.period"
    path.write_text(PERIOD)
    given = ("--learn-from=run.period", f"--{name}=run.period")
    assert_refused(
        run_tencache("run", *given, "--", "true"),
        f"Option {name} ",
        f"{path} is also the file of the option learn_from",
        f"with --{name} or ",
    )
    assert path.read_text() == PERIOD
    # The newest period may take the place of the followed one.
    done = run_tencache("run", given[0], "--record=run.period", "--", "true")
    assert done.returncode == 0, done.stderr


def test_a_device_takes_every_file(run_tencache):
    given = [f"--{name}=/dev/null" for name in _runtime.OUTPUT_OPTIONS]
    done = run_tencache("run", *given, "--", "true")
    assert done.returncode == 0, done.stderr


# ---- Values that no text in C, no path and no terminal can have ----------------------------------


@pytest.mark.parametrize("name", [row.name for row in _options.table()])
@pytest.mark.parametrize(
    "value", ["2GiB\0", "a\0b", "\0", "a\ud800b"], ids=["end", "middle", "alone", "surrogate"]
)
def test_text_that_c_would_cut_is_refused(name, value):
    for refuse in (core().check_option, core().set_option):
        with pytest.raises(OptionError) as caught:
            refuse(name, value)
        message = str(caught.value)
        assert message.startswith(f"Option {name} does not take the value ")
        assert "zero character" in message or "no character" in message
        assert "Leave that character out." in message
        assert "\0" not in message


def test_size_that_c_would_cut_is_refused():
    with pytest.raises(OptionError, match="zero character"):
        core().parse_bytes("1\0GiB")


@pytest.mark.parametrize(
    "value",
    ["A" * 10_000_000, "%n%s" * 1_000_000, "a\n" * 1000],
    ids=["letters", "formats", "lines"],
)
@pytest.mark.parametrize("name", ["device_memory", "log_level", "stats", "TENCACHE"])
def test_huge_value_gives_one_short_line_with_the_remedy(name, value):
    library = core()
    with pytest.raises(OptionError) as caught:
        if name == "TENCACHE":
            _options.switch_is_on(value)
        _runtime.set_checked(library, {name: value})
        _runtime.check_output_files(library)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1500
    assert "left out" in message
    assert name.upper() in message
    assert tencache.options()  # forgets the value


def test_option_of_a_huge_name_or_type_gives_a_short_line():
    with pytest.raises(TypeError) as caught:
        _options.find("x" * 10_000_000)
    assert len(str(caught.value)) < 1500
    with pytest.raises(TypeError) as caught:
        _options.to_text(_options.find("strict"), ["x"] * 1_000_000)
    assert len(str(caught.value)) < 1500 and "list" in str(caught.value)


def test_path_of_bytes_and_of_any_encoding_reaches_the_core():
    class Folder:
        def __fspath__(self):
            return b"/var/tmp/\xff"

    text = _options.to_text(_options.find("spill_dir"), Folder())
    core().set_option("spill_dir", text)
    assert os.fsencode(core().option_text("spill_dir")) == b"/var/tmp/\xff"
    core().read_environment()


def test_text_in_messages_is_short_and_on_one_line():
    assert shortened("/var/tmp/a b'\"é") == "/var/tmp/a b'\"é"
    assert shortened("a\nb\x1b[31m\0\udcff") == r"a\nb\x1b[31m\x00\udcff"
    assert shortened("x" * 240) == "x" * 240
    assert shortened("b" * 1000 + "e" * 1000) == (
        "b" * 160 + " [1760 characters left out] " + "e" * 80
    )


# ---- Without standard streams --------------------------------------------------------------------


@pytest.mark.parametrize("streams", ["1>&- 2>&-", "0<&- 1>&- 2>&-"])
def test_program_without_streams_runs_and_writes_its_files(streams, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ["/bin/sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "program.py"]
    environment = clean_environment({**ON, "TENCACHE_QUIET": "0", "TENCACHE_STATS": "run.json"})
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0
    assert json.loads((tmp_path / "run.json").read_text())["extents"] == 1


def test_program_without_streams_ends_when_tencache_cannot_start(tmp_path):
    (tmp_path / "program.py").write_text("import torch; open('ran', 'w')")
    command = ["/bin/sh", "-c", 'exec "$@" 1>&- 2>&-', "sh", sys.executable, "program.py"]
    environment = clean_environment({**ON, "TENCACHE_DEVICE_MEMORY": "lots"})
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == 2
    assert not (tmp_path / "ran").exists()
