# SPDX-License-Identifier: Apache-2.0
"""Lightning's loggers get what tencache costs, beside the program's own figures.

    trainer = lightning.Trainer(callbacks=[TencacheCallback()], ...)

This module needs lightning (or pytorch_lightning, its older name). Threads: that of the Trainer.
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from tencache.integrations._figures import StepFigures


class TencacheCallback(Callback):  # type: ignore[misc]
    """Sends the figures of `StepFigures.take` to the loggers, every `log_every_n_steps` steps.

    In a distributed run the figures are those of the process that logs.
    """

    def __init__(self) -> None:
        self._figures = StepFigures()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Starts counting."""
        self._figures.begin()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs what happened since the last time."""
        loop, every = trainer.fit_loop.epoch_loop, trainer.log_every_n_steps
        # Where gradients are accumulated, several batches end at one step.
        if loop._should_accumulate():
            return
        # Lightning's own number of a step, for logs: how many batches before have ended in a step.
        # A batch counts once, however many optimizers have made a step.
        number = loop._batches_that_stepped
        if every == 0 or (number + 1) % every != 0:
            return
        figures = self._figures.take()
        for logger in trainer.loggers if figures else []:
            logger.log_metrics(figures, step=number)
