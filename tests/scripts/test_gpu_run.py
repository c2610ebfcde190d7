# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu: a part that fails or hangs costs the others nothing, and steps are measured.

After each part all results so far are on disk. The parts themselves need a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"


def imported(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gpu_run() -> ModuleType:
    return imported("gpu_run", "run.py")


def test_a_thread_that_ends_while_threads_are_listed_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = imported("gpu_step", "step.py")
    living = Path(f"/proc/self/task/{os.getpid()}")
    monkeypatch.setattr(Path, "iterdir", lambda _: iter([Path("/proc/self/task/0"), living]))
    assert list(step.thread_seconds()) == [(living / "comm").read_text().strip()]


def test_parts_are_independent(
    gpu_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_run, "PART_S_MIN", 0)
    run = gpu_run.Run(tmp_path, 60)

    def hangs(_part: object) -> None:
        run.command(
            [sys.executable, "-c", "import time; print('began', flush=True); time.sleep(60)"], 5
        )

    def breaks(_part: object) -> None:
        run.command([sys.executable, "-c", "raise SystemExit('no such kernel')"], 30)

    def works(part: object) -> None:
        part.figures["summary"] = "3 passed"  # type: ignore[attr-defined]

    assert [run.part(work.__name__, work) for work in (hangs, breaks, works)] == [
        False,
        False,
        True,
    ]
    parts = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert [part["status"] for part in parts] == ["failed", "failed", "passed"]
    assert parts[0]["reason"] == "ran past 5 s"
    assert "no such kernel" in parts[1]["reason"]
    log = (tmp_path / "logs.txt").read_text()
    assert "began" in log and "no such kernel" in log
    assert "3 passed" in (tmp_path / "results.md").read_text()


def test_no_part_starts_when_the_time_is_over(gpu_run: ModuleType, tmp_path: Path) -> None:
    run = gpu_run.Run(tmp_path, 0)
    assert not run.part("late", lambda _part: run.command([sys.executable, "-c", ""], 30))
    assert run.parts[0].reason == "no time was left"


def test_steps_are_told_against_stock(gpu_run: ModuleType) -> None:
    def row(name: str, step_s: float, losses: list[str]) -> dict[str, object]:
        figures = {"step_s": step_s, "peak_bytes": 3 << 30, "moved_bytes": 0, "late": 0}
        return {"name": name, "losses": losses, **figures}

    part = gpu_run.Part("gpt")
    part.figures["steps"] = [
        row("stock", 0.5, ["aa", "bb"]),
        row("tencache 50%", 0.6, ["aa", "bb"]),
        row("tencache 25%", 0.75, ["aa", "bc"]),
    ]
    (table,) = gpu_run.step_tables([part])
    assert [(line[2], line[6]) for line in table.rows] == [
        ("1.00", "yes"),
        ("1.20", "yes"),
        ("1.50", "no"),
    ]


def test_other_losses_than_stocks_fail_the_part(
    gpu_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losses_of(variant: str) -> list[str]:
        return ["aa", "bc" if variant in ("tencache 25%", "save_on_cpu") else "bb"]

    def run_worker(
        _script: str, job: dict[str, object], variant: object, timeout_s: float
    ) -> dict[str, object]:
        assert timeout_s > 0
        name = str(job.get("instead", variant.name))  # type: ignore[attr-defined]
        counts = {"bytes": {"evicted": 0, "fetched": 0}, "fetches": {"late": 0}}
        stats = None if variant.is_stock else {**counts, "peak": {"device": 1}}  # type: ignore[attr-defined]
        figures = {"seconds": [0.5], "losses": losses_of(name), "allocated_peak_bytes": 400}
        figures |= {"thread_seconds": {}, "parameters": 1}
        return {**figures, "stats": stats, "stats_before": stats}

    monkeypatch.setattr(gpu_run.support, "run_worker", run_worker)
    run = gpu_run.Run(tmp_path, 60)
    assert not run.part("gpt", lambda part: gpu_run.training(run, part, "gpt-1.3b"))
    assert run.parts[0].reason == "tencache 25%: its losses differ from stock's"
    # Another program may have other losses.
    assert run.part("alternatives", lambda part: gpu_run.alternatives(run, part))
    names = [row["name"] for row in run.parts[1].figures["steps"]]
    assert names == ["stock", "checkpoint", "save_on_cpu"]


def test_the_carried_package_replaces_an_installed_one(
    gpu_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def record(_run: object, words: list[object], _limit_s: float) -> str:
        commands.append([str(word) for word in words])
        return ""

    monkeypatch.setattr(gpu_run.Run, "command", record)
    own, other = tmp_path / "tencache-0.1.0-py3-none-any.whl", tmp_path / "click-8.1-py3.whl"
    own.touch()
    other.touch()
    run = gpu_run.Run(tmp_path / "out", 60)
    assert run.part("install", lambda part: gpu_run.install(run, part, tmp_path))
    forced = {command[-1]: "--force-reinstall" in command for command in commands}
    assert forced == {str(own): True, str(other): False}
    assert all("--no-deps" in command for command in commands)


def test_a_driver_that_does_not_answer_costs_no_result(
    gpu_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = tmp_path / "nvidia-smi"
    hangs.write_text("#!/bin/sh\nexec sleep 5\n")
    hangs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(gpu_run, "GPU_NAME_S", 0.2, raising=False)
    begin = time.monotonic()
    assert gpu_run.gpu_name.__wrapped__() == "unknown"
    assert time.monotonic() - begin < 4
