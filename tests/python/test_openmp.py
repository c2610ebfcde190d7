# SPDX-License-Identifier: Apache-2.0
"""OpenMP's threads sleep soon where they wait, unless the environment says how they wait."""

from __future__ import annotations

import json
import sys

import pytest

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ("30000", None)),
        ({"GOMP_SPINCOUNT": "7"}, ("7", None)),
        ({"OMP_WAIT_POLICY": "active"}, (None, "active")),
    ],
)
def test_run_asks_for_it(run_tencache, asked, expected):
    done = run_tencache("run", "--", sys.executable, "-c", SHOW, env=asked)
    environment = json.loads(done.stdout)
    assert (environment.get("GOMP_SPINCOUNT"), environment.get("OMP_WAIT_POLICY")) == expected


@pytest.mark.any_torch
def test_enable_asks_for_it_as_long_as_openmp_is_not_loaded(run_python):
    enable = """
        import os, tencache
        tencache.enable(device_memory="32MiB")
        print(os.environ.get("GOMP_SPINCOUNT"))
    """
    assert run_python(enable).stdout.strip() == "30000"
    assert run_python("import torch", enable).stdout.strip() == "None"
