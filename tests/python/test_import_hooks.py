# SPDX-License-Identifier: Apache-2.0
"""Modules that tencache patches are found whenever and however they are imported."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tencache import _import_hooks
from tencache._import_hooks import when_imported

NAME = "watched_module"


@pytest.fixture
def seen() -> list[int]:
    return []


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the source of the module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(source: str) -> None:
        (tmp_path / f"{NAME}.py").write_text(source)
        importlib.invalidate_caches()

    yield write
    sys.modules.pop(NAME, None)


def watch(seen: list[int]) -> None:
    when_imported(NAME, "value", lambda module: seen.append(module.value))


def watchers() -> list[Any]:
    return [finder for finder in sys.meta_path if isinstance(finder, _import_hooks._ImportWatcher)]


def is_ordinary(module: ModuleType) -> bool:
    spec = module.__spec__
    assert spec is not None
    types = (type(spec).__name__, type(spec.loader).__name__, type(module.__loader__).__name__)
    return types == ("ModuleSpec", "SourceFileLoader", "SourceFileLoader")


def test_calls_once_after_the_import_and_leaves(
    write: Callable[[str], None], seen: list[int]
) -> None:
    write("value = 1\n")
    before = watchers()
    watch(seen)
    importlib.import_module("json")
    assert len(watchers()) == len(before) + 1
    module = importlib.import_module(NAME)
    assert seen == [1]
    assert watchers() == before
    assert is_ordinary(module)
    importlib.reload(module)
    assert seen == [1]
    watch(seen)
    assert seen == [1, 1], "it is there"


def test_whoever_looks_for_the_module_takes_nothing_away(
    write: Callable[[str], None], seen: list[int]
) -> None:
    write("value = 1\n")
    watch(seen)
    watch(seen)
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader.get_source(NAME) == "value = 1\n"  # type: ignore[union-attr]
    assert seen == []
    assert is_ordinary(importlib.import_module(NAME))
    assert seen == [1, 1]


def test_an_import_that_fails_may_be_tried_again(
    write: Callable[[str], None], seen: list[int]
) -> None:
    write("raise ImportError('not today')\n")
    watch(seen)
    with pytest.raises(ImportError, match="not today"):
        importlib.import_module(NAME)
    assert seen == []
    write("value = 2\n")
    importlib.import_module(NAME)
    assert seen == [2]


UNDER_WAY = """
from test_import_hooks import watch_under_way, asked
watch_under_way()
"""
asked: list[int] = []


def watch_under_way() -> None:
    def ask(module: ModuleType) -> None:
        # The import counts as under way, so another thread waits for it, and does not find what is
        # not patched yet.
        assert module.__spec__._initializing  # type: ignore[union-attr]
        asked.append(module.value)

    when_imported(NAME, "value", ask)


@pytest.mark.parametrize("fails_first", [False, True])
def test_an_import_that_is_under_way_is_awaited(
    write: Callable[[str], None], fails_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "test_import_hooks", sys.modules[__name__])
    asked.clear()
    if fails_first:
        write(UNDER_WAY + "raise ImportError('not today')\n")
        with pytest.raises(ImportError, match="not today"):
            importlib.import_module(NAME)
        assert asked == []
        write("value = 1\n")
    else:
        write(UNDER_WAY + "assert asked == []\nvalue = 1\n")
    module = importlib.import_module(NAME)
    assert asked == [1]
    assert is_ordinary(module)


def test_a_copy_of_the_programs_own_is_not_the_module(
    write: Callable[[str], None], seen: list[int]
) -> None:
    write("value = 1\n")
    watch(seen)
    spec = importlib.util.find_spec(NAME)
    assert spec is not None and spec.loader is not None
    copy.copy(spec.loader)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert seen == []
    importlib.import_module(NAME)
    assert seen == [1]


@pytest.mark.parametrize("under_way", [False, True])
def test_a_callback_that_fails_is_told_and_the_import_goes_on(
    write: Callable[[str], None],
    under_way: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "test_import_hooks", sys.modules[__name__])
    if under_way:
        write("from test_import_hooks import watch_failing\nwatch_failing()\nvalue = 1\n")
    else:
        write("value = 1\n")
        watch_failing()
    before = watchers()
    assert importlib.import_module(NAME).value == 1
    assert f"{NAME} is not as tencache knows it (ZeroDivisionError" in capfd.readouterr().err
    assert len(watchers()) <= len(before)


def watch_failing() -> None:
    when_imported(NAME, "value", lambda _: print(1 // 0))


def test_a_module_that_lacks_what_is_wanted_is_no_error(
    write: Callable[[str], None], seen: list[int]
) -> None:
    write("other = 1\n")
    importlib.import_module(NAME)
    watch(seen)
    assert seen == []
    sys.modules.pop(NAME)
    write("value = 3\n")
    importlib.import_module(NAME)
    assert seen == [3]
