# SPDX-License-Identifier: Apache-2.0
"""OpenMP's threads sleep soon where they wait, unless the environment says how they wait."""

from __future__ import annotations

import json
import sys

import pytest
from conftest import run_command

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
# A command that takes away what the tests' own environment says about how OpenMP waits
# (conftest.clean_environment).
UNSET = ("env", "-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT")


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((), ("30000", None)),
        (("GOMP_SPINCOUNT=7",), ("7", None)),
        (("OMP_WAIT_POLICY=active",), (None, "active")),
    ],
)
def test_run_asks_for_it(tmp_path, asked, expected):
    run = (sys.executable, "-m", "tencache", "run", "--", sys.executable, "-c", SHOW)
    done = run_command([*UNSET, *asked, *run], cwd=tmp_path)
    environment = json.loads(done.stdout)
    assert (environment.get("GOMP_SPINCOUNT"), environment.get("OMP_WAIT_POLICY")) == expected


@pytest.mark.any_torch
@pytest.mark.parametrize(("before", "expected"), [("", "30000"), ("import torch", "None")])
def test_enable_asks_for_it_as_long_as_openmp_is_not_loaded(tmp_path, before, expected):
    enable = """
import os, tencache
tencache.enable(device_memory="32MiB")
print(os.environ.get("GOMP_SPINCOUNT"))
"""
    done = run_command([*UNSET, sys.executable, "-c", before + enable], cwd=tmp_path)
    assert done.stdout.strip() == expected, done.stderr
