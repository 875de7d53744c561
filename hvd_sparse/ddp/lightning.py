"""The sparse exchange in Lightning: a strategy, which writes and reads checkpoints with all ranks.

    trainer = lightning.Trainer(strategy=SparseDDPStrategy(LAGS), devices=4)

Lightning's own DDPStrategy(ddp_comm_hook=...) leaves a hook out without a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer  # type: ignore[import-not-found]
from lightning.pytorch.strategies import DDPStrategy  # type: ignore[import-not-found]
from lightning.pytorch.trainer.states import TrainerFn  # type: ignore[import-not-found]

from hvd_sparse.ddp import rank_state
from hvd_sparse.ddp.attaching import attach
from hvd_sparse.errors import UnsupportedError


class SparseDDPStrategy(DDPStrategy):  # type: ignore[misc]
    """Lightning's DDPStrategy, with a sparse exchange of gradients on the CPU and on GPUs.

    A checkpoint FILE of Lightning gets a folder FILE.hvd_sparse beside it, with the residuals of
    every rank, and with local steps its weights and moments: move, copy and delete both together.
    `trainer.optimizers[0].exchange` is the exchange, with `stats`, `summary()` and `watch()`.

    Args:
        compression: A sparse compression, as a class or an instance.
        residuals: The policy for residuals of a checkpoint that fit() resumes from. "own": every
            rank continues with its own, as if nothing had happened; the number of ranks must be
            that of the checkpoint. "reset": residuals are dropped, for any number of ranks.
        **options: Those of DDPStrategy.

    Raises:
        InvalidArgumentError: `residuals` is neither; or, from fit(), see `attach`.
        UnsupportedError: From fit(): the module has several optimizers; a checkpoint is not on a
            file system; or see `attach`.
        CheckpointMismatchError: From fit(): a checkpoint does not fit; says how to continue.
    """

    def __init__(self, compression: Any, *, residuals: str = "own", **options: Any) -> None:
        super().__init__(**options)
        self._compression = compression
        self._residuals = rank_state.checked(residuals)
        self._loaded_from: str | Path = ""

    def setup(self, trainer: Trainer) -> None:
        """Wraps the module, makes its optimizer, and attaches the exchange."""
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if len(self.optimizers) != 1:
            raise UnsupportedError(
                "a sparse exchange takes the gradients of one optimizer, and configure_optimizers "
                f"returned {len(self.optimizers)}"
            )
        assert self.model is not None
        scaler = getattr(self.precision_plugin, "scaler", None)
        attach(self.model, self.optimizers[0], self._compression, grad_scaler=scaler)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Returns the optimizer's state for Lightning's file, without residuals."""
        return rank_state.emptied(super().optimizer_state(optimizer))

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        filepath: str | Path,
        storage_options: Any = None,
    ) -> None:
        """Saves a checkpoint of Lightning's, and every rank's residuals beside it."""
        if "optimizer_states" in checkpoint:
            if "://" in str(filepath):
                raise UnsupportedError(
                    "every rank writes its residuals to a file system: a checkpoint must have a "
                    f"path, got '{filepath}'"
                )
            assert self.model is not None
            rank_state.save(_beside(Path(filepath).resolve()), self.model, self.optimizers[0])
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def remove_checkpoint(self, filepath: str | Path) -> None:
        """Removes a checkpoint of Lightning's, and the residuals beside it."""
        super().remove_checkpoint(filepath)
        if self.local_rank == 0:
            shutil.rmtree(_beside(Path(filepath)), ignore_errors=True)

    def load_checkpoint(
        self, checkpoint_path: str | Path, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Loads a checkpoint of Lightning's; `load_optimizer_state_dict` adds the residuals."""
        self._loaded_from = checkpoint_path
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        return checkpoint

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restores the optimizer, with this rank's residuals."""
        optimizer, state_dict = self.optimizers[0], checkpoint["optimizer_states"][0]
        place = _beside(Path(self._loaded_from).resolve())  # of the target, if it is a link
        assert self.model is not None
        own = rank_state.restored(place, self.model, optimizer, state_dict, self._residuals)
        super().load_optimizer_state_dict({**checkpoint, "optimizer_states": [own]})


def _beside(filepath: Path) -> Path:
    """Returns the folder of the residuals that belong to a checkpoint."""
    return filepath.with_name(f"{filepath.name}.{rank_state.NAME}")
