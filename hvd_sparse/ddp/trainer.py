"""The sparse exchange in Hugging Face's Trainer.

class SparseTrainer(SparseExchange, Trainer): ...

SparseTrainer(model, args, compression=LAGS, ...).train()
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback  # type: ignore[import-not-found]

from hvd_sparse.ddp import rank_state
from hvd_sparse.ddp.attaching import attach
from hvd_sparse.ddp.user_exchange import Exchange


class SparseExchange:
    """Makes a Trainer exchange gradients sparsely; a base to name before Trainer, or a subclass.

    A checkpoint of the Trainer gets a folder `hvd_sparse` with the residuals of every rank and,
    with local steps, its weights and moments. `trainer.exchange` has `stats`, `summary()` and
    `watch()`, once train() has made the optimizer.

    Args:
        *args: Those of the Trainer.
        compression: A sparse compression, as a class or an instance.
        residuals: The policy for residuals of a checkpoint that train() resumes from. "own": every
            rank continues with its own, as if nothing had happened; the number of ranks must be
            that of the checkpoint. "reset": residuals are dropped, for any number of ranks.
        **kwargs: Those of the Trainer.

    Raises:
        InvalidArgumentError: `residuals` is neither; or, from train(), see `attach`.
        UnsupportedError: From train(), see `attach`.
        CheckpointMismatchError: From train(): a checkpoint does not fit; says how to continue.
    """

    accelerator: Any
    model_wrapped: torch.nn.Module
    optimizer: Any
    add_callback: Any

    def __init__(self, *args: Any, compression: Any, residuals: str = "own", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._compression = compression
        self._residuals = rank_state.checked(residuals)
        self._exchanged: torch.nn.Module | None = None
        self.add_callback(_AtBegin(self))

    @property
    def exchange(self) -> Exchange:
        """The exchange of the optimizer that train() has made."""
        exchange: Exchange = self.optimizer.optimizer.exchange
        return exchange

    def attach(self) -> torch.optim.Optimizer:
        """Attaches the exchange, unless that was done; returns the optimizer. Collective."""
        optimizer: torch.optim.Optimizer = self.optimizer.optimizer  # within Accelerate's
        if self._exchanged is not self.model_wrapped:  # train() may be called again
            scaler = self.accelerator.scaler
            attach(self.model_wrapped, optimizer, self._compression, grad_scaler=scaler)
            self._exchanged = self.model_wrapped
        return optimizer

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        optimizer = self.attach()
        rank_state.save(Path(output_dir, rank_state.NAME), self.model_wrapped, optimizer)
        handle = optimizer.register_state_dict_post_hook(lambda _, whole: rank_state.emptied(whole))
        try:
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
        finally:
            handle.remove()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        optimizer = self.attach()
        place, model = Path(checkpoint, rank_state.NAME), self.model_wrapped
        handle = optimizer.register_load_state_dict_pre_hook(
            lambda _, shared: rank_state.restored(place, model, optimizer, shared, self._residuals),
            prepend=True,
        )
        try:
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        finally:
            handle.remove()


class _AtBegin(TrainerCallback):  # type: ignore[misc]
    """Attaches the exchange when training begins, unless a checkpoint was loaded before."""

    def __init__(self, trainer: SparseExchange) -> None:
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._trainer.attach()
