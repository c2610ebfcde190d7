# SPDX-License-Identifier: Apache-2.0
"""The `tencache` command between a user's shell and the program: names, paths, letters, levels."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from test_cli import assert_refused

pytestmark = pytest.mark.any_torch


def test_run_leaves_other_programs_to_the_preload_library(run_tencache):
    done = run_tencache("run", "--", "true", env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert done.returncode == 0, done.stderr


def test_a_folder_of_that_name_is_not_an_installed_tencache(run_tencache, tmp_path):
    base = Path(sys.base_prefix) / "bin" / "python3"
    if sys.prefix == sys.base_prefix or not base.exists():
        pytest.skip("no Python without tencache beside this one")
    (tmp_path / "tencache").mkdir()
    done = run_tencache("run", "--", str(base), "-c", "print('ran')")
    assert_refused(done, str(base), "tencache is not installed there")


def test_run_starts_a_script_once_whatever_its_name(run_tencache, tmp_path):
    script = tmp_path / "python_job.sh"
    script.write_text("#!/bin/sh\necho ran >> log\n")
    script.chmod(0o755)
    done = run_tencache("run", "--", "./python_job.sh")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_text() == "ran\n"


def test_paths_in_variables_hold_in_every_folder(run_tencache, tmp_path):
    (tmp_path / "spill").mkdir()
    code = "import os; print(*(os.environ['TENCACHE_' + name] for name in ('SPILL_DIR', 'STATS')))"
    done = run_tencache(
        *("run", "--quiet", "--", sys.executable, "-c", code),
        env={"TENCACHE_SPILL_DIR": "spill", "TENCACHE_STATS": "run.json"},
    )
    assert done.stdout == f"{tmp_path}/spill {tmp_path}/run.json\n", done.stderr


def test_the_home_directory_may_be_written_as_a_tilde(run_tencache, tmp_path):
    (tmp_path / "spill").mkdir()
    code = "import os; print(os.environ['TENCACHE_SPILL_DIR'])"
    done = run_tencache(
        *("run", "--spill-dir=~/spill", "--", sys.executable, "-c", code),
        env={"HOME": str(tmp_path)},
    )
    assert done.stdout == f"{tmp_path}/spill\n", done.stderr


def test_a_locale_without_our_letters_gets_help_all_the_same(run_tencache):
    for codec in ("latin-1", "ascii"):
        done = run_tencache("run", "--help", env={"PYTHONIOENCODING": codec})
        assert done.returncode == 0, done.stderr
        assert "PROGRAM" in done.stdout


def test_log_level_holds_for_the_last_lines(run_tencache, tmp_path):
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(1 << 20)\n")
    program = ("--", sys.executable, "train.py")
    assert "device peak" in run_tencache("run", *program).stderr
    assert run_tencache("run", "--log-level=error", *program).stderr == ""


def test_doctor_tries_what_a_run_would_refuse(run_tencache):
    for flags in (["--stats=/no/such/run.json"], ["--learn-from=/no/such/period"]):
        assert_refused(run_tencache("doctor", *flags), "/no/such")
        assert_refused(run_tencache("run", *flags, "--", "true"), "/no/such")


def test_doctor_starts_the_core_with_the_options(run_tencache):
    # Nothing is spilled where everything must fit.
    assert run_tencache("doctor", "--strict", "--spill-dir=/dev/shm").returncode == 0
    assert run_tencache("run", "--strict", "--spill-dir=/dev/shm", "--", "true").returncode == 0
    section = json.loads(run_tencache("doctor", "--json").stdout)["start"]
    assert section == {"works": True}


def test_record_takes_its_file_from_the_variable_too(run_tencache, tmp_path):
    code = "import os; print(os.environ['TENCACHE_RECORD'])"
    done = run_tencache(
        *("trace", "record", "--quiet", "--", sys.executable, "-c", code),
        env={"TENCACHE_RECORD": "mine.period"},
    )
    assert done.stdout == f"{tmp_path}/mine.period\n", done.stderr


def test_enable_twice_with_one_directory_however_it_is_written(run_python, tmp_path):
    (tmp_path / "spill").mkdir()
    code = """
        import os, tencache
        tencache.enable(spill_dir="./spill/")
        tencache.enable(spill_dir="spill")
        print(os.environ["TENCACHE_SPILL_DIR"])
    """
    done = run_python(code, env={"TENCACHE_SPILL_DIR": "other"})
    assert done.stdout == f"{tmp_path}/other\n", done.stderr


def test_a_refused_enable_leaves_the_variables_alone(run_python):
    code = """
        import os, tencache
        try:
            tencache.enable(spill_dir="/no/such")
        except tencache.TencacheError:
            print(os.environ["TENCACHE_SPILL_DIR"])
    """
    assert run_python(code, env={"TENCACHE_SPILL_DIR": "mine"}).stdout == "mine\n"


def test_record_has_a_file_even_where_the_variable_says_off(run_tencache, tmp_path):
    code = "import os; print(os.environ['TENCACHE_RECORD'])"
    done = run_tencache(
        *("trace", "record", "--quiet", "--", sys.executable, "-c", code),
        env={"TENCACHE_RECORD": "off"},
    )
    assert done.stdout == f"{tmp_path}/period.jsonl\n", done.stderr
