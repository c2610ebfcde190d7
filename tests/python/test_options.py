# SPDX-License-Identifier: Apache-2.0
"""One option table for the core, the keywords, the flags, the variables and docs/options.md."""

from __future__ import annotations

from pathlib import Path

import pytest

import tencache
from tencache import _options, _runtime
from tencache._library import OptionError, core

# These tests do not depend on the installed torch.
pytestmark = pytest.mark.any_torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"


def test_table_names_each_option_in_all_three_spellings():
    rows = _options.table()
    assert len(rows) >= 10
    for row in rows:
        assert row.environment == f"TENCACHE_{row.name.upper()}"
        assert row.flag == f"--{row.name.replace('_', '-')}"
        assert row.kind in {"bytes", "path", "flag", "choice", "number"}
        assert bool(row.choices) == (row.kind == "choice")
        assert row.help.endswith(".")


def test_core_accepts_every_default():
    for row in _options.table():
        core().check_option(row.name, row.default)


def test_documents_show_the_table():
    text = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- options:begin -->\n", "<!-- options:end -->"
    shown = text[text.index(begin) + len(begin) : text.index(end)]
    expected = "\n".join(_options.markdown_lines(_options.table())) + "\n"
    assert shown == expected, "put the output of `python -m tencache._options` into docs/options.md"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("device_memory", "2GiB", "2GiB"),
        ("device_memory", 2 << 30, "2147483648"),
        ("spill_dir", Path("/var/tmp"), "/var/tmp"),
        ("strict", True, "on"),
        ("strict", False, "off"),
        ("io_uring", False, "off"),
        ("arm_at", 0.5, "0.5"),
        ("chaos", 7, "7"),
    ],
)
def test_python_values_become_texts_that_the_core_takes(name, value, text):
    option = _options.find(name)
    assert _options.to_text(option, value) == text
    core().check_option(name, text)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("device_memory", 1.5, "2GiB"),
        ("device_memory", True, "2GiB"),
        ("spill_dir", 3, "a path"),
        ("strict", 1, "True or False"),
        ("log_level", True, "error, warning, info, debug"),
        ("arm_at", [], "a number"),
    ],
)
def test_value_of_a_wrong_type_is_named_with_what_is_wanted(name, value, wanted):
    with pytest.raises(TypeError) as caught:
        _options.to_text(_options.find(name), value)
    assert name in str(caught.value)
    assert type(value).__name__ in str(caught.value)
    assert wanted in str(caught.value)


def test_unknown_option_names_the_nearest():
    with pytest.raises(TypeError, match="did you mean 'device_memory'"):
        _options.find("device_mem")
    with pytest.raises(TypeError, match="the options are device_memory, "):
        _options.find("zzzzzzzz")


def test_a_value_without_a_name_is_refused_with_the_name_that_was_meant(run_python):
    done = run_python(
        """
        import tencache
        for values in (("203MiB",), (1 << 30,), ("1GiB", 5), ([],)):
            try:
                tencache.enable(*values)
            except TypeError as error:
                print(error)
        assert not tencache.is_enabled()
        """,
        env={"TENCACHE_DEVICE_MEMORY": "1GiB"},
    )
    text, number, several, other = done.stdout.splitlines()
    assert "enable('203MiB') gives a value without a name" in text
    assert "enable(device_memory='203MiB')" in text and "tencache run --help" in text
    assert "enable(device_memory=1073741824)" in number
    assert "enable('1GiB', 5)" in several and "enable(device_memory='2GiB')" in several
    assert "enable([])" in other and "enable(device_memory='2GiB')" in other
    # The program has asked, and knows what came of it.
    assert done.stderr == ""


@pytest.mark.parametrize("asked", ["memory", "gpu_memory", "Memory"])
def test_shared_words_count_for_more_than_letters(asked):
    with pytest.raises(TypeError, match="did you mean 'device_memory' or 'host_memory'\\?"):
        _options.find(asked)


@pytest.mark.parametrize("text", ["203Mb", "5 Gib", "1Kb", "2Tib"])
def test_bits_are_no_size(text):
    with pytest.raises(OptionError) as caught:
        core().check_option("device_memory", text)
    unit = text.lstrip("0123456789 ")
    assert f'"{text}" is not a size: {unit} counts bits' in str(caught.value)
    assert f"in bytes, {unit[:-1]}B" in str(caught.value)


@pytest.mark.parametrize("text", ["", "abc", "-1GiB", "2Gib0", "1e99999", "0"])
def test_core_refuses_what_is_no_budget(text):
    with pytest.raises(OptionError) as caught:
        core().check_option("device_memory", text)
    assert f'"{text}"' in str(caught.value)
    assert "TENCACHE_DEVICE_MEMORY" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("64KiB", 65536),
        ("64kB", 64000),
        ("1.5 MiB", 3 << 19),
        ("2m", 2 << 20),
        ("8G", 8 << 30),
        ("1gb", 10**9),
        ("12 B", 12),
    ],
)
def test_sizes_are_read_by_the_core(text, expected):
    assert core().parse_bytes(text) == expected


def test_text_in_force_is_given_else_variable_else_default(monkeypatch):
    variables = {"TENCACHE_STRICT": "YES", "TENCACHE_DEVICE_MEMORY": "3GiB", "TENCACHE_QUIET": ""}
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    _runtime.set_checked(core(), {"device_memory": "2048 MiB"})
    assert core().option_text("device_memory") == "2GiB"
    assert core().option_text("strict") == "on"
    assert core().option_text("quiet") == "off"
    assert set(tencache.options()) == {row.name for row in _options.table()}
    # The given value is forgotten, as after a failed enable().
    assert tencache.options()["device_memory"] == "3GiB"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), ("", False), ("0", False), ("off", False), ("1", True), ("True", True)],
)
def test_switch(value, expected):
    assert _options.switch_is_on(value) is expected


def test_switch_with_a_size_is_refused_with_the_variable_to_use():
    with pytest.raises(OptionError, match=r"TENCACHE=2GiB .* TENCACHE_DEVICE_MEMORY"):
        _options.switch_is_on("2GiB")


def test_options_before_enable_are_the_environment_and_the_defaults(monkeypatch):
    monkeypatch.setenv("TENCACHE_DEVICE_MEMORY", "5GiB")
    monkeypatch.delenv("TENCACHE_STRICT", raising=False)
    assert tencache.options()["device_memory"] == "5GiB"
    assert tencache.options()["strict"] == "off"


def test_version_is_the_same_everywhere():
    assert tencache.__version__ == core().doctor()["version"]
