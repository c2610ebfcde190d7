# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Trainer logs what tencache costs, beside the loss.

    trainer = Trainer(...)
    TencacheCallback.add_to(trainer)

This module needs transformers. Threads: that of the Trainer.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from tencache.integrations._figures import StepFigures


class TencacheCallback(TrainerCallback):  # type: ignore[misc]
    """Adds the figures of `StepFigures.take` to the Trainer's logs of training.

    The Trainer's last log, which sums up the training, gets those of `StepFigures.total`.

    The figures are then in `trainer.state.log_history` and in the progress bar. The Trainer tells
    its callbacks one after another, reporters such as TensorBoard or Weights & Biases before those
    that a program passes as `callbacks=[...]`. So use `add_to`, which puts this one first: then the
    reporters have the figures, too.

    In a distributed run the figures are those of the process that reports.
    """

    def __init__(self) -> None:
        self._figures = StepFigures()

    @classmethod
    def add_to(cls, trainer: Any) -> TencacheCallback:
        """Adds a callback to a `transformers.Trainer`, ahead of its reporters; returns it."""
        callback = cls()
        trainer.callback_handler.callbacks.insert(0, callback)
        return callback

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Starts counting."""
        self._figures.begin()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """Adds what happened since the log before; adds the totals to the last one, which sums up.

        What an evaluation costs is in the next log of the training.
        """
        is_sum = logs is not None and "train_runtime" in logs
        # The logs of an evaluation are the metrics that it returns, which a search for
        # hyperparameters adds up.
        if logs is None or not (is_sum or "loss" in logs):
            return
        figures = self._figures.total() if is_sum else self._figures.take()
        logs.update(figures)
        # The Trainer has entered a copy of the logs there already.
        if state.log_history:
            state.log_history[-1].update(figures)
