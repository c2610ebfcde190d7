# SPDX-License-Identifier: Apache-2.0
"""The warm-up of transformers, which is left out on the cuda backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tencache import _warmup


def test_transformers_still_calls_it_as_a_global() -> None:
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        pytest.skip("transformers is not installed")
    source = Path(found.origin).with_name("modeling_utils.py").read_text(encoding="utf-8")
    assert f"\ndef {_warmup.FUNCTION}(" in source
    assert f" {_warmup.FUNCTION}(model" in source


def test_the_function_does_nothing_any_more() -> None:
    module = ModuleType("modeling_utils")
    exec(
        f"def {_warmup.FUNCTION}(model, devices, quantizer): raise AssertionError\n"
        f"def load(): return {_warmup.FUNCTION}(1, devices=2, quantizer=None)",
        module.__dict__,
    )
    _warmup.patch(module)
    assert module.load() is None
