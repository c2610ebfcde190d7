# SPDX-License-Identifier: Apache-2.0
"""The `tencache` command as a user types it: what it passes on, refuses and shows."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tencache import _cli, _options

# A program without torch that shows its arguments and variables.
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def assert_refused(done, *parts, status=2):
    """Asserts one clear message, no traceback, and that the program did not run."""
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


# ---- run ---------------------------------------------------------------------------------------


def test_run_passes_arguments_and_options_on(run_tencache, tmp_path):
    done = run_tencache(
        "run",
        "--device-memory=2GiB",
        "--strict",
        "--no-quiet",
        "--stats=run.json",
        "--",
        sys.executable,
        "-c",
        SHOW,
        "--lr",
        "1e-3",
        "--",
        "--strict",
    )
    assert done.returncode == 0, done.stderr
    arguments, environment = json.loads(done.stdout)
    assert arguments == ["--lr", "1e-3", "--", "--strict"]
    ours = {name: text for name, text in environment.items() if name.startswith("TENCACHE")}
    assert ours == {
        "TENCACHE": "1",
        "TENCACHE_DEVICE_MEMORY": "2GiB",
        "TENCACHE_STRICT": "on",
        "TENCACHE_QUIET": "off",
        "TENCACHE_STATS": str(tmp_path / "run.json"),
    }


def test_run_needs_no_dashes_and_flags_win_over_variables(run_tencache):
    done = run_tencache(
        "run",
        "--device-memory",
        "2GiB",
        sys.executable,
        "-c",
        SHOW,
        env={"TENCACHE": "0", "TENCACHE_DEVICE_MEMORY": "3GiB", "TENCACHE_LOG_LEVEL": "error"},
    )
    assert done.returncode == 0, done.stderr
    _, environment = json.loads(done.stdout)
    assert environment["TENCACHE"] == "1"
    assert environment["TENCACHE_DEVICE_MEMORY"] == "2GiB"
    assert environment["TENCACHE_LOG_LEVEL"] == "error"


def test_run_becomes_the_program():
    """The process id stays the same, so signals and job control reach the program itself."""
    command = [sys.executable, "-m", "tencache", "run", "--", sys.executable, "-c"]
    code = "import os; print(os.getpid())"
    with subprocess.Popen([*command, code], stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate(timeout=60)
    assert int(output) == process.pid


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_exit_status_passes_through(run_tencache, status):
    done = run_tencache("run", "--", sys.executable, "-c", f"raise SystemExit({status})")
    assert done.returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_signals_pass_through(run_tencache, number):
    code = (
        "import os, signal;"
        f"signal.signal({int(number)}, signal.SIG_DFL) if {int(number)} != 9 else None;"
        f"os.kill(os.getpid(), {int(number)})"
    )
    done = run_tencache("run", "--", sys.executable, "-c", code)
    assert done.returncode == -number


def test_command_that_is_not_found_gives_127(run_tencache):
    done = run_tencache("run", "--", "no-such-program-here")
    assert_refused(done, "no-such-program-here", "not found", sys.executable, status=127)


def test_script_that_is_not_executable_is_told_how_to_run_it(run_tencache, tmp_path):
    (tmp_path / "train.py").write_text("print(1)\n")
    done = run_tencache("run", "--", "./train.py")
    assert_refused(done, "not executable", f"-- {sys.executable} ./train.py", status=126)
    done = run_tencache("run", "--", "train.py")
    assert_refused(done, "not found", f"-- {sys.executable} train.py", status=127)


def test_file_that_the_kernel_cannot_execute_gives_126(run_tencache, tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\x00\x01 no program\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert_refused(run_tencache("run", "--", "./program"), "cannot be executed", status=126)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--device-memory", "2Gib0"], ["device_memory", '"2Gib0"', "--device-memory", "1.5GiB"]),
        (["--device-memory", "-1"], ["device_memory", '"-1"', "negative"]),
        (["--log-level", "loud"], ["log_level", '"loud"', "warning"]),
        (["--arm-at", "2"], ["arm_at", '"2"', "at most 1"]),
        (["--spill-dir", "/no/such/dir"], ["/no/such/dir"]),
        (["--stats", "/no/such/dir/x.json"], ["stats", "/no/such/dir does not exist"]),
        (["--trace", "/"], ["trace", "it is a directory"]),
    ],
)
def test_value_that_cannot_be_used_stops_before_the_program(run_tencache, arguments, parts):
    done = run_tencache("run", *arguments, "--", sys.executable, "-c", "print('ran')")
    assert_refused(done, *parts)
    assert done.stderr.startswith("tencache: error: ")
    assert done.stderr.count("\n") == 1


def test_variable_that_cannot_be_used_stops_before_the_program(run_tencache):
    program = ("run", "--", sys.executable, "-c", "print('ran')")
    done = run_tencache(*program, env={"TENCACHE_DEVICE_MEMORY": "lots"})
    assert_refused(done, "device_memory", '"lots"')
    done = run_tencache(*program, env={"TENCACHE_DEVICE_MEM": "2GiB"})
    assert_refused(done, "TENCACHE_DEVICE_MEM", "Did you mean", "TENCACHE_DEVICE_MEMORY")


def test_spill_directory_that_is_a_file_or_in_memory_is_refused(run_tencache, tmp_path):
    (tmp_path / "file").write_text("")
    done = run_tencache("run", "--spill-dir", "file", "--", sys.executable, "-c", "print('ran')")
    assert_refused(done, "file")
    if not Path("/dev/shm").is_dir():
        pytest.skip("this machine has no /dev/shm")
    done = run_tencache("run", "--spill-dir=/dev/shm", "--", sys.executable, "-c", "print('ran')")
    assert_refused(done, "/dev/shm", "tmpfs")


def test_unknown_option_names_the_nearest(run_tencache):
    done = run_tencache("run", "--device-mem", "2GiB", "--", "true")
    assert_refused(done, "--device-mem", "--device-memory")


def test_run_without_a_program_shows_the_usage(run_tencache):
    assert_refused(run_tencache("run", "--strict"), "Usage: tencache run", "PROGRAM")


def test_run_refuses_when_torch_would_not_load_it(run_tencache):
    done = run_tencache(
        "run", "--", sys.executable, "-c", "print(1)", env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    )
    assert_refused(done, "TORCH_DEVICE_BACKEND_AUTOLOAD=0", "Unset")


def test_run_refuses_a_python_that_has_no_tencache(run_tencache, tmp_path):
    base = Path(sys.base_prefix) / "bin" / "python3"
    if sys.prefix == sys.base_prefix or not base.exists():
        pytest.skip("no Python without tencache beside this one")
    script = tmp_path / "launch"
    script.write_text(f"#!{base}\nprint('ran')\n")
    script.chmod(0o755)
    for program in (str(base), "./launch"):
        done = run_tencache("run", "--", program)
        assert_refused(done, str(base), "tencache is not installed there", sys.executable)


def test_interpreter_is_found_through_the_first_line(tmp_path, monkeypatch):
    python = tmp_path / "python3"
    python.write_text("")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    script = tmp_path / "tool"
    for first, expected in [
        (f"#!{python} -u", str(python)),
        ("#!/usr/bin/env python3", str(python)),
        ("#!/usr/bin/env -S python3 -u", str(python)),
        ("#!/bin/sh", None),
        ("no script", None),
        ("#!", None),
    ]:
        script.write_text(first + "\n")
        assert _cli.interpreter_of(str(script)) == expected, first
    assert _cli.interpreter_of(str(python)) == str(python)


# ---- help, doctor, stats, trace -----------------------------------------------------------------


def test_help_shows_every_option_and_imports_no_torch(run_python):
    done = run_python(
        """
        import sys
        from tencache import _cli
        sys.argv = ["tencache", "run", "--help"]
        try:
            _cli.main()
        except SystemExit as end:
            assert end.code == 0, end.code
        assert "torch" not in sys.modules
        """,
        env={"COLUMNS": "200"},
    )
    for option in _options.table():
        assert option.flag in done.stdout
        assert option.environment.removeprefix("TENCACHE_").lower() == option.name
        assert f"[default: {option.default}]" in done.stdout


def test_version(run_tencache):
    import tencache

    done = run_tencache("--version")
    assert done.stdout.split()[-1] == tencache.__version__


def test_doctor_as_json_holds_what_was_probed(run_tencache):
    done = run_tencache("doctor", "--json", "--device-memory=3GiB")
    report = json.loads(done.stdout)
    assert report["memory"]["total_bytes"] > 0
    assert report["default_device_budget"]["bytes"] > 0
    assert report["default_device_budget"]["reason"]
    assert Path(report["disk"]["directory"]).is_dir()
    assert isinstance(report["disk"]["io_uring"], bool)
    assert isinstance(report["disk"]["direct_io"], bool)
    # They are registered, or there is a reason why not.
    assert report["disk"]["registered_buffers"] is (not report["disk"]["registered_buffers_reason"])
    assert report["torch"]["fits"] is True
    assert report["torch"]["installed"] == report["torch"]["built_for"]
    assert isinstance(report["gpu"]["devices"], list)
    assert report["gpu"]["reason"]
    assert report["options"]["device_memory"] == "3GiB"
    assert set(report["options"]) == {option.name for option in _options.table()}
    assert done.returncode == 0


def test_doctor_as_a_table_shows_the_same(run_tencache):
    done = run_tencache("doctor", env={"COLUMNS": "150"})
    assert done.returncode == 0, done.stderr
    disk = ("disk", "io uring", "registered buffers", "direct io")
    for part in ("memory", "default device budget", *disk, "gpu", "torch"):
        assert part in done.stdout


def test_doctor_says_no_for_a_directory_that_cannot_be_used(run_tencache):
    done = run_tencache("doctor", "--spill-dir", "/no/such/dir", env={"COLUMNS": "150"})
    assert done.returncode == 1
    assert "Blocked" in done.stdout
    assert "/no/such/dir" in done.stdout


def test_stats_and_trace_of_a_run_are_shown(run_tencache, tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "x = [torch.ones(1 << 20) for _ in range(24)]\n"
        "for _ in range(2):\n"
        "    for t in x: t.add_(1)\n"
        "assert all(bool((t == 3).all()) for t in x)\n"
    )
    done = run_tencache(
        "run",
        "--device-memory=32MiB",
        "--stats=run.json",
        "--trace=run.trace",
        "--",
        sys.executable,
        "train.py",
    )
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["bytes"]["evicted"] > 0

    shown = run_tencache("stats", "run.json")
    assert shown.returncode == 0, shown.stderr
    assert "bytes.evicted" in shown.stdout
    assert "device peak" in shown.stdout

    raw = run_tencache("trace", "dump", "--json", "--op", "add_", "--kind", "op_begin", "run.trace")
    events = [json.loads(line) for line in raw.stdout.splitlines()]
    assert events
    assert {event["op"] for event in events} == {"aten::add_.Tensor"}
    table = run_tencache("trace", "dump", "--limit", "5", "run.trace")
    assert len(table.stdout.splitlines()) == 6


def test_record_says_when_there_was_no_period(run_tencache, tmp_path):
    (tmp_path / "period.jsonl").write_text("an older one")
    (tmp_path / "once.py").write_text(
        "import os, torch\ntorch.ones(1 << 20)\nprint(os.environ['TENCACHE_RECORD'])\n"
    )
    done = run_tencache(
        "trace", "record", "--quiet", "--device-memory=1GiB", "--", sys.executable, "once.py"
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "period.jsonl"
    assert done.stdout == f"{path}\n"
    assert done.stderr == (
        f"tencache: error: {path} was not written: no repeating period was seen; run more "
        "iterations, or with a smaller --device-memory so that tencache arms\n"
    )
    assert path.read_text() == "an older one"


def test_record_refuses_a_file_that_could_not_be_written(run_tencache):
    done = run_tencache("trace", "record", "-o", "/no/such/p.jsonl", "--", "true")
    assert_refused(done, "record", "/no/such does not exist")


def test_file_that_is_no_stats_is_refused(run_tencache, tmp_path):
    for content in ("hello", "[]", '{"extents": 1}'):
        (tmp_path / "x.json").write_text(content)
        assert_refused(run_tencache("stats", "x.json"), "x.json", "--stats FILE")


def test_closed_pipe_is_no_traceback(tmp_path):
    path = tmp_path / "run.trace"
    head = {"format": "tencache-events", "version": 1, "threads": 1, "events": 1, "lost": 0}
    event = {"ns": 1, "thread": 0, "kind": "step"}
    path.write_text("\n".join([json.dumps(head), *([json.dumps(event)] * 100_000)]) + "\n")
    command = [sys.executable, "-m", "tencache", "trace", "dump", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
        process.wait(timeout=60)
    assert error == ""
    assert process.returncode == 1
