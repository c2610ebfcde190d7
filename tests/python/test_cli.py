# SPDX-License-Identifier: Apache-2.0
"""The `tencache` command as a user types it: what it passes on, refuses and shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import clean_environment, run_command

from tencache import _cli, _options

# What the command passes on and says does not depend on the torch that is installed.
pytestmark = pytest.mark.any_torch

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


def test_a_relative_spill_directory_is_found_from_everywhere(run_tencache, tmp_path):
    (tmp_path / "spill").mkdir()
    done = run_tencache("run", "--spill-dir", "spill", "--", sys.executable, "-c", SHOW)
    assert json.loads(done.stdout)[1]["TENCACHE_SPILL_DIR"] == str(tmp_path / "spill")
    done = run_tencache("run", "--spill-dir", "auto", "--", sys.executable, "-c", SHOW)
    assert json.loads(done.stdout)[1]["TENCACHE_SPILL_DIR"] == "auto"


def test_entry_point_of_the_image_runs_programs(run_tencache, tmp_path):
    dockerfile = (Path(__file__).resolve().parents[2] / "Dockerfile").read_text(encoding="utf-8")
    entry, shown = (
        json.loads(re.search(rf"(?m)^{word} (\[.*\])$", dockerfile)[1])
        for word in ("ENTRYPOINT", "CMD")
    )
    assert entry[0] == "tencache" and "VOLUME /spill\n" in dockerfile
    words = [str(tmp_path) if word == "/spill" else word for word in entry[1:]]
    done = run_tencache(*words, "--", sys.executable, "-c", SHOW)
    assert json.loads(done.stdout)[1]["TENCACHE_SPILL_DIR"] == str(tmp_path)
    assert "Run PROGRAM" in run_tencache(*words, *shown).stdout


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


def test_program_out_of_reach_is_one_line_as_a_shell_says_it(run_tencache, tmp_path):
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "folder").mkdir()
    for name, reason in [
        ("./round", "./round cannot be reached: Too many levels of symbolic links"),
        ("./" + "x" * 300, "cannot be reached: File name too long"),
        ("./a\nb" + "x" * 100_000, "characters left out"),
        ("./folder", "./folder is a directory"),
    ]:
        done = run_tencache("run", "--", name)
        assert_refused(done, reason, status=126)
        assert done.stderr.count("\n") == 1 and len(done.stderr) < 1000
    done = run_tencache("run", "--", "./none\n/x")
    assert_refused(done, "./none\\n/x", "not found", status=127)
    assert done.stderr.count("\n") == 1


def test_program_in_a_folder_of_another_user_is_one_line():
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    # The folder that the tests have from pytest lets nobody else in.
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        (folder / "program").write_text("#!/bin/sh\n")
        (folder / "program").chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", BECOME_NOBODY, "run", "--", str(folder / "program")],
            capture_output=True,
            text=True,
            cwd="/",
            env=clean_environment(),
            check=False,
        )
    finally:
        shutil.rmtree(folder)
    assert_refused(done, f"{folder}/program cannot be reached: Permission denied", status=126)
    assert done.stderr.count("\n") == 1


def test_script_whose_python_is_missing_is_told_which(run_tencache, tmp_path):
    script = tmp_path / "train"
    script.write_text("#!/no/such/python3\n")
    script.chmod(0o755)
    done = run_tencache("run", "--", "./train")
    assert_refused(done, "/no/such/python3", "cannot be started", "first line of ./train")
    assert done.stderr.count("\n") == 1


def test_usage_error_about_a_huge_word_is_short(run_tencache):
    for arguments in (["run", "--" + "x" * 100_000, "--", "true"], ["stats", "x" * 100_000]):
        done = run_tencache(*arguments)
        assert_refused(done, "Usage: tencache", "xxx", "characters left out")
        assert len(done.stderr) < 2000


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
        (["--stats", "x" * 256], ["stats", "File name too long"]),
        (["--record", "/dev/fd/987"], ["record", "descriptor 987 is not open"]),
        (["--spill-dir", "x" * 100_000], ["xxx", "bytes left out", "File name too long"]),
        (["--device-memory", "x" * 100_000], ["xxx", "bytes left out", "--device-memory"]),
        (["--spill-dir", "a\n\033[31mb"], ["a\\n\\x1b[31mb: it does not exist", "--spill-dir"]),
        (["--stats", "no\nfolder/x.json"], ["no\\nfolder", "does not exist", "--stats"]),
        (["--stats", "~no-such-user/x.json"], ["~no-such-user does not exist", "--stats"]),
    ],
)
def test_value_that_cannot_be_used_stops_before_the_program(run_tencache, arguments, parts):
    done = run_tencache("run", *arguments, "--", sys.executable, "-c", "print('ran')")
    assert_refused(done, *parts)
    assert done.stderr.startswith("tencache: error: ")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 1500


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


@pytest.mark.parametrize("flag", ["--stats", "--record", "--spill-dir"])
def test_flag_without_its_value_is_named(run_tencache, tmp_path, flag):
    assert_refused(run_tencache("run", flag, "--", sys.executable, "-c", "print(1)"), flag, "`--`")
    assert not (tmp_path / "--").exists()


def test_run_without_a_program_shows_the_usage(run_tencache):
    assert_refused(run_tencache("run", "--strict"), "Usage: tencache run", "PROGRAM")


def test_run_refuses_when_torch_would_not_load_it(run_tencache):
    done = run_tencache(
        "run", "--", sys.executable, "-c", "print(1)", env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    )
    assert_refused(done, "TORCH_DEVICE_BACKEND_AUTOLOAD=0", "Unset", "env -u", "tencache.enable()")
    assert done.stderr.count("\n") == 1


def test_doctor_is_blocked_when_torch_would_not_load_it(run_tencache):
    done = run_tencache("doctor", "--json", env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert done.returncode == 1, done.stderr
    section = json.loads(done.stdout)["torch"]
    assert section["loads_extensions"] is False
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in section["loads_extensions_reason"]


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
        ("#!/opt/python_job.sh", None),
        ("no script", None),
        ("#!", None),
    ]:
        script.write_text(first + "\n")
        assert _cli.interpreter_of(str(script)) == expected, first
    assert _cli.interpreter_of(str(python)) == str(python)


# This program runs the command as the user nobody. First it opens what the interpreter needs, while
# the program still may.
BECOME_NOBODY = """
import os, sys
from tencache import _cli
_cli.core()
os.setresuid(65534, 65534, 65534)
_cli.main()
"""

# ---- without standard streams -------------------------------------------------------------------


def run_closed(closed, *arguments, cwd, env=None):
    """Runs the command in a process that starts without these descriptors."""
    streams = " ".join(f"{number}>&-" for number in closed)
    command = [sys.executable, "-m", "tencache", *arguments]
    return run_command(["/bin/sh", "-c", f'exec "$@" {streams}', "sh", *command], cwd=cwd, env=env)


# This program writes to a file which descriptors are open.
TELL_OPEN = """
import os, sys
found = []
for number in (0, 1, 2):
    try:
        os.fstat(number)
        found.append(number)
    except OSError:
        pass
open("open", "w").write(f"{found}")
"""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
def test_run_becomes_the_program_with_the_same_streams(closed, tmp_path):
    program = [sys.executable, "-c", TELL_OPEN]
    done = run_closed(closed, "run", "--quiet", "--", *program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    left = [number for number in (0, 1, 2) if number not in closed]
    assert (tmp_path / "open").read_text() == f"{left}"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["doctor"], 0),
        (["doctor", "--json"], 0),
        (["--help"], 0),
        (["run"], 2),
        (["run", "--device-memory", "lots", "--", "true"], 2),
        (["run", "--", "no-such-program-here"], 127),
        (["stats", "run.json"], 2),
        (["trace", "dump", "run.trace"], 0),
        (["plan", "period.jsonl", "--disk=1GB/s"], 0),
    ],
)
def test_no_command_needs_standard_streams(arguments, status, tmp_path):
    head = {"format": "tencache-events", "version": 1, "threads": 1, "events": 1, "lost": 1}
    event = {"ns": 1, "thread": 0, "kind": "step"}
    (tmp_path / "run.trace").write_text(f"{json.dumps(head)}\n{json.dumps(event)}\n")
    (tmp_path / "run.json").write_text("[]")
    period = [
        {"format": "tencache-period", "version": 1},
        {"id": 0, "bytes": 4096},
        {"name": "forward", "compute_ns": 1000, "reads": [0]},
    ]
    (tmp_path / "period.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in period))
    for closed in [(1,), (0, 1, 2)]:
        done = run_closed(closed, *arguments, cwd=tmp_path)
        assert done.returncode == status, (closed, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        assert "Exception" not in done.stderr


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
    # Buffers are registered, or there is a reason why not.
    assert report["disk"]["registered_buffers"] is (not report["disk"]["registered_buffers_reason"])
    assert report["torch"]["fits"] is True
    installed = report["torch"]["installed"]
    assert any(installed.startswith(f"{minor}.") for minor in report["torch"]["supported"])
    assert isinstance(report["gpu"]["devices"], list)
    assert report["gpu"]["reason"]
    assert report["options"]["device_memory"] == "3GiB"
    assert set(report["options"]) == {option.name for option in _options.table()}
    assert done.returncode == 0


def test_doctor_as_a_table_shows_the_same(run_tencache):
    done = run_tencache("doctor", "--device-memory=3GiB", env={"COLUMNS": "150"})
    assert done.returncode == 0, done.stderr
    assert "Nothing is blocked" in done.stdout
    assert "device memory" in done.stdout
    assert "chunk share" not in done.stdout  # the option has its default
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
