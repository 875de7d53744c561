"""PyTorch for the laws of tests/framework_laws: hvd.DistributedOptimizer and its functions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from hvd_sparse.compression import Compression
from hvd_sparse.errors import NonFiniteGradientError
from tests.frameworks import SHAPES, Arrays, Shapes
from tests.gpus import DEVICE
from tests.parallel.torch_ranks import Toy, a_name
from tests.torch_model import TorchFramework, TorchModel, array_of


class Model(TorchModel):
    """A module with its DistributedOptimizer."""

    def __init__(
        self,
        compression: Compression | None,
        shapes: Shapes,
        *,
        dtype: str,
        passes: int,
        loss_scale: float | None,
        rate: float,
        optimizer: str,
        **options: Any,
    ) -> None:
        self._dtype = getattr(torch, dtype)
        super().__init__(
            compression,
            Toy(shapes, self._dtype).to(DEVICE),
            optimizer=optimizer,
            rate=rate,
            loss_scale=loss_scale,
        )
        self._passes = passes
        self._optimizer = hvd.DistributedOptimizer(
            self._optimizer,
            named_parameters=self._module.named_parameters(),
            compression=hvd.Compression.none if compression is None else compression,
            backward_passes_per_step=passes,
            **({} if self._scaler is None else {"grad_scaler": self._scaler}),
            **options,
        )

    def _zero(self) -> None:
        if self.compression is None:  # Horovod's optimizer knows one way only
            self._optimizer.zero_grad()
        else:
            super()._zero()

    def _backward(self, gradients: Arrays) -> None:
        given = {
            name: torch.from_numpy(one).to(DEVICE, self._dtype) for name, one in gradients.items()
        }
        for _ in range(self._passes):
            loss = sum((getattr(self._module, name) * one).sum() for name, one in given.items())
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def _average(self) -> None:
        self._optimizer.synchronize()

    def _not_synchronizing(self) -> AbstractContextManager[None]:
        return self._optimizer.skip_synchronize()

    def _scaled_step(self, scaler: torch.amp.GradScaler) -> None:
        """Takes a step in the way that Horovod documents."""
        self._optimizer.synchronize()
        scaler.unscale_(self._optimizer)
        with self._optimizer.skip_synchronize():
            scaler.step(self._optimizer)

    def save(self, folder: str | Path, **extra: Any) -> None:
        self._optimizer.exchange.save_checkpoint(folder, self._module, **extra)

    def load(self, folder: str | Path, **options: Any) -> dict[str, Any] | None:
        return self._optimizer.exchange.load_checkpoint(folder, self._module, **options)


class Torch(TorchFramework):
    """PyTorch under Horovod."""

    refusal = NonFiniteGradientError

    def __init__(self) -> None:
        self.rank, self.size = hvd.rank(), hvd.size()
        self.everyone = hvd.global_process_set

    def model(
        self,
        compression: Compression | None,
        shapes: Shapes = SHAPES,
        *,
        dtype: str = "float32",
        op: str = "Sum",
        predivide: float = 1.0,
        passes: int = 1,
        loss_scale: float | None = None,
        rate: float = 1.0,
        optimizer: str = "SGD",
        ranks: Any = None,
    ) -> Model:
        return Model(
            compression,
            shapes,
            dtype=dtype,
            passes=passes,
            loss_scale=loss_scale,
            rate=rate,
            optimizer=optimizer,
            op=getattr(hvd, op),
            gradient_predivide_factor=predivide,
            process_set=self.everyone if ranks is None else ranks,
        )

    def gathered(self, values: np.ndarray, ranks: Any = None) -> np.ndarray:
        ranks = self.everyone if ranks is None else ranks
        row = torch.from_numpy(values.astype(np.float64)[None])
        return hvd.allgather(row, name=a_name(ranks), process_set=ranks).numpy()

    def reduced(self, values: np.ndarray, dtype: str, op: str, predivide: float) -> np.ndarray:
        given = torch.from_numpy(values).to(DEVICE, getattr(torch, dtype))
        wide = given.float() if dtype == "bfloat16" else given  # which Horovod does not know
        summed = hvd.allreduce(
            wide,
            op=getattr(hvd, op),
            name=a_name(self.everyone),
            prescale_factor=1 / predivide,
            postscale_factor=predivide,
        )
        return array_of(summed.to(given.dtype))
