# SPDX-License-Identifier: Apache-2.0
"""The examples of training frameworks: at a budget below what they need, they give the bits that
they give without tencache, and show tencache's figures where the framework shows its own.

Each example runs as the documents say: started by `tencache run` or, for stock, plainly.
"""

from __future__ import annotations

import csv
import json
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Finished, run_command

# What a framework starts and shows does not depend on torch's version.
pytestmark = pytest.mark.any_torch

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = Path(sysconfig.get_path("scripts"))
FIGURES = {
    "tencache_early_share",
    "tencache_evicted_bytes",
    "tencache_fetched_bytes",
    "tencache_peak_device_bytes",
    "tencache_stall_s",
}
BUDGET_BYTES = 40 << 20


def run_example(
    folder: Path, *command: str | Path, stats: Path | None = None, under_tencache: bool
) -> str:
    """Runs the command in the folder, and under tencache at the budget. Returns what it printed."""
    words = [str(word) for word in command]
    if under_tencache:
        options = ["--device-memory", str(BUDGET_BYTES)]
        if stats is not None:
            options += ["--stats", str(stats)]
        words = [str(SCRIPTS / "tencache"), "run", *options, "--", *words]
    folder.mkdir(exist_ok=True)
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    done = run_command(words, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def assert_held(stats: dict[str, Any], printed: str) -> None:
    """Tensors moved, and the budget held. What was printed names the cause if it did not."""
    told = f"{json.dumps(stats)}\n{printed}"
    assert stats["bytes"]["fetched"] > 0, told
    assert stats["over_budget"]["events"] == 0, told
    assert stats["peak"]["device"] <= BUDGET_BYTES, told


def tensorboard_scalars(folder: Path) -> dict[str, list[float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_the_trainer_shows_figures_in_tensorboard(tmp_path: Path) -> None:
    scalars = {}
    for name in ("stock", "tencache"):
        folder = tmp_path / name
        example = [sys.executable, EXAMPLES / "trainer_logs.py", "--steps", "10"]
        run_example(folder, *example, under_tencache=name == "tencache")
        scalars[name] = tensorboard_scalars(folder / "trainer_logs" / "runs")
    assert scalars["tencache"]["train/loss"] == scalars["stock"]["train/loss"]
    shown = {f"train/{figure}" for figure in FIGURES}
    assert shown <= scalars["tencache"].keys()
    # Each figure is of the steps of one log; what sums up all of them has another name.
    logs = len(scalars["stock"]["train/loss"])
    for figure in FIGURES - {"tencache_peak_device_bytes"}:
        assert len(scalars["tencache"][f"train/{figure}"]) == logs
        total = f"train/{figure.replace('tencache_', 'tencache_total_')}"
        assert len(scalars["tencache"][total]) == 1
    fetched = scalars["tencache"]["train/tencache_fetched_bytes"]
    # TensorBoard rounds to 24 bits.
    assert scalars["tencache"]["train/tencache_total_fetched_bytes"][0] >= 0.999 * sum(fetched)
    assert not shown & scalars["stock"].keys()
    assert min(scalars["tencache"]["train/tencache_fetched_bytes"][:2]) > 0
    assert max(scalars["tencache"]["train/tencache_peak_device_bytes"]) <= BUDGET_BYTES


def test_what_an_evaluation_returns_is_left_alone() -> None:
    integration = pytest.importorskip("tencache.integrations.transformers")
    # A search for hyperparameters adds these metrics up.
    metrics = {"eval_loss": 1.0, "epoch": 2.0}
    state = SimpleNamespace(log_history=[dict(metrics)])
    integration.TencacheCallback().on_log(None, state, None, logs=metrics)
    assert metrics == {"eval_loss": 1.0, "epoch": 2.0}


def test_lightning_shows_figures_in_its_logger(tmp_path: Path) -> None:
    rows = {}
    for name in ("stock", "tencache"):
        folder = tmp_path / name
        example = [sys.executable, EXAMPLES / "lightning_logs.py", "--steps", "10"]
        run_example(folder, *example, under_tencache=name == "tencache")
        (metrics,) = folder.rglob("metrics.csv")
        with metrics.open(encoding="utf-8") as file:
            rows[name] = list(csv.DictReader(file))
    losses = {
        name: [(row["step"], row["loss"]) for row in of_run if row["loss"]]
        for name, of_run in rows.items()
    }
    assert losses["tencache"] == losses["stock"]
    assert not FIGURES & rows["stock"][0].keys()
    shown = [row for row in rows["tencache"] if row["tencache_stall_s"]]
    assert [row["step"] for row in shown] == [step for step, _ in losses["stock"]]
    for row in shown:
        assert float(row["tencache_fetched_bytes"]) > 0
        assert 0 <= float(row["tencache_early_share"]) <= 1
        assert float(row["tencache_peak_device_bytes"]) <= BUDGET_BYTES


# Two optimizers make a step for each batch, as in adversarial training.
MANUAL = """
    import csv, pathlib
    import lightning, torch, tencache
    from lightning.pytorch.loggers import CSVLogger
    from tencache.integrations.lightning import TencacheCallback

    class Two(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def training_step(self, batch, _):
            loss = self.second(self.first(batch)).square().mean()
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
            self.log("loss", loss)

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters()) for part in (self.first, self.second)]

    trainer = lightning.Trainer(
        max_epochs=1, log_every_n_steps=3, logger=CSVLogger("logs"), callbacks=[TencacheCallback()],
        accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False,
    )
    trainer.fit(Two(), torch.utils.data.DataLoader(torch.randn(10, 4)))
    (path,) = pathlib.Path("logs").rglob("metrics.csv")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    for name in ("loss", "tencache_stall_s"):
        print([row["step"] for row in rows if row[name]])
"""


def test_lightning_counts_batches_where_several_optimizers_make_a_step(
    run_python: Callable[..., Finished],
) -> None:
    pytest.importorskip("lightning")
    env = {"TENCACHE": "1", "TENCACHE_BACKEND": "cpu", "TENCACHE_QUIET": "on"}
    losses, figures = run_python(MANUAL, env=env).stdout.splitlines()[-2:]
    assert figures == losses == "['2', '5', '8']"


LAUNCHERS = {
    # Each launcher takes a port that is free: tests run side by side.
    "torchrun": ["torchrun", "--standalone", "--nproc-per-node", "2"],
    "accelerate": [
        *("accelerate", "launch", "--multi_gpu", "--num_processes", "2"),
        *("--main_process_port", "0"),
    ],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_rank_of_a_launcher_has_its_budget_and_its_stats(
    tmp_path: Path, launcher: str
) -> None:
    first, *words = LAUNCHERS[launcher]
    losses = {}
    for name in ("stock", "tencache"):
        printed = run_example(
            tmp_path,
            *(SCRIPTS / first, *words, EXAMPLES / "distributed.py"),
            *("--losses", tmp_path / f"{name}.json"),
            stats=tmp_path / "run.json",
            under_tencache=name == "tencache",
        )
        losses[name] = json.loads((tmp_path / f"{name}.json").read_text())
    assert losses["tencache"] == losses["stock"]
    for rank in range(2):
        assert_held(json.loads((tmp_path / f"run.rank{rank}.json").read_text()), printed)


def test_each_worker_of_ray_train_has_its_budget(tmp_path: Path) -> None:
    losses = {}
    for name in ("stock", "tencache"):
        results = tmp_path / name
        results.mkdir()
        example = [sys.executable, EXAMPLES / "ray_train.py", "--results", results]
        printed = run_example(tmp_path, *example, under_tencache=name == "tencache")
        ranks = [json.loads((results / f"rank{rank}.json").read_text()) for rank in range(2)]
        losses[name] = [rank["losses"] for rank in ranks]
    for rank in ranks:
        assert_held(rank["stats"], printed)
    assert losses["tencache"] == losses["stock"]


def test_callbacks_say_that_tencache_is_not_enabled(run_python: Any) -> None:
    done = run_python(
        """
        from tencache.integrations.transformers import TencacheCallback

        class State:
            log_history = [{"loss": 1.0}]

        logs = {"loss": 1.0}
        callback = TencacheCallback()
        callback.on_train_begin(None, State, None)
        callback.on_log(None, State, None, logs=logs)
        assert logs == {"loss": 1.0}
        """
    )
    assert "TencacheCallback logs nothing, because tencache is not enabled" in done.stderr
