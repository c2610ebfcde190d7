# SPDX-License-Identifier: Apache-2.0
"""Steps: what the output shows when one passes, fails or is skipped."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import dev
import steps


@pytest.fixture(autouse=True)
def own_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "ROOT", tmp_path)
    monkeypatch.setattr(steps, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(steps, "_finished", [])


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_a_quiet_step_keeps_its_output_in_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps.run("Say hello (twice)", python("print('hello'); print('hello')"))
    printed = capsys.readouterr().out
    assert "==> Say hello (twice)" in printed
    assert "done in" in printed
    assert "hello\n" not in printed
    assert (tmp_path / "logs" / "say-hello-twice.log").read_text() == "hello\nhello\n"


def test_a_failed_step_shows_the_end_of_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    many = "import sys\nfor i in range(100): print('line', i)\nprint('bad', file=sys.stderr)"
    with pytest.raises(steps.StepFailed, match="status 3"):
        steps.run("Fail", python(f"{many}\nsys.exit(3)"))
    printed = capsys.readouterr().out
    assert "bad" in printed
    assert "line 99\n" in printed
    assert "line 1\n" not in printed


def test_a_live_step_may_be_skipped_and_a_quiet_one_may_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps.run("Skip", python("raise SystemExit(77)"), live=True)
    with pytest.raises(steps.StepFailed):
        steps.run("Fail", python("raise SystemExit(77)"))
    steps.run("Pass", python(""))
    steps.summary()
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert [line.split()[0] for line in table] == ["skipped", "FAILED", "ok", "total"]


def test_a_failed_step_does_not_keep_the_others_from_running(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = [
        ("Fail", python("raise SystemExit(3)")),
        ("Pass", python("print('here')")),
        ("Be absent", ["no-such-program"]),
    ]
    with pytest.raises(steps.StepFailed, match="Fail; Be absent"):
        steps.run_all(chosen)
    printed = capsys.readouterr().out
    assert "==> Pass" in printed
    assert "no-such-program cannot be run" in printed


def test_every_benchmark_runs_and_the_summary_names_those_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "benchmarks").mkdir()
    for name, status in (("first", 1), ("second", 0)):
        (tmp_path / "benchmarks" / f"{name}.py").write_text(
            f"# python benchmarks/{name}.py\nraise SystemExit({status})\n"
        )
    (tmp_path / "benchmarks" / "support.py").write_text("")
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "MAIN", SimpleNamespace(python=sys.executable))
    for name in ("ready", "install_package"):
        monkeypatch.setattr(dev, name, lambda *_: None)
    with pytest.raises(steps.StepFailed):
        dev.bench()
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert [(line.split()[0], line.split()[-1]) for line in table[:-1]] == [
        ("FAILED", "first"),
        ("ok", "second"),
    ]


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(steps.StepFailed, match="no-such-program cannot be run"):
        steps.run("Run nothing", ["no-such-program"])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (9.94, "9.9 s"), (12.3, "12 s"), (200, "3 min 20 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert steps.duration(seconds) == text
