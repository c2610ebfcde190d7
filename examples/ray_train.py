# SPDX-License-Identifier: Apache-2.0
"""Ray Train, each of its workers under a memory budget of its own.

    tencache run --device-memory 64MiB -- python ray_train.py

Ray starts its workers in processes that inherit the environment, in which `tencache run` says what
is asked for. On a cluster that others have started, the workers get it from Ray instead:
`ray.init(runtime_env={"env_vars": {"TENCACHE": "1", "TENCACHE_DEVICE_MEMORY": "64MiB"}})`.

Ray ends its workers without letting them write files at their exit. So what `--stats` would say is
asked for while they run: `tencache.stats()`. Needs ray[train].
"""

import argparse
import json
from pathlib import Path

import ray
import torch
from ray.train import ScalingConfig, get_context, report
from ray.train.torch import TorchTrainer, prepare_model

import tencache

WIDTH, DEPTH = 768, 8


def train(options):
    """What each worker runs."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
    model = prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(get_context().get_world_rank())
    losses = []
    for _ in range(options["steps"]):
        inputs = torch.randn(16, WIDTH, generator=generator)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if options["results"]:
        rank = get_context().get_world_rank()
        results = {
            "losses": [loss.hex() for loss in losses],
            "stats": tencache.stats() if tencache.is_enabled() else None,
        }
        (Path(options["results"]) / f"rank{rank}.json").write_text(json.dumps(results))
    report({"loss": losses[-1]})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--results", type=Path, help="folder for losses and stats of each rank")
    parser.add_argument("--output", type=Path, default=Path("ray_results"), help="folder for Ray")
    options = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={
            "steps": options.steps,
            "results": str(options.results.resolve()) if options.results else "",
        },
        scaling_config=ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=str(options.output.resolve())),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
