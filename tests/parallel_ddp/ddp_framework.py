"""DistributedDataParallel for the laws of tests/framework_laws: attach and its functions."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.compression import Compression
from hvd_sparse.ddp import Exchange, attach
from hvd_sparse.errors import NonFiniteGradientError
from tests.frameworks import SHAPES, Arrays, Shapes
from tests.gpus import DEVICE
from tests.parallel_ddp.groups import TorchDistributed
from tests.torch_model import TorchFramework, TorchModel, array_of

# Smaller than the toys, so that DDP has several buckets after its first step.
BUCKET_MB = 0.004
OPS = {"Sum": dist.ReduceOp.SUM, "Average": dist.ReduceOp.AVG}


class Toy(torch.nn.Module):
    """A module with gradients chosen by the test: its output sums their products with parameters.

    Gradients that are missing are zero: DDP waits for all.
    """

    def __init__(self, shapes: Shapes = SHAPES, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum(
            (param * gradients.get(name, torch.zeros_like(param))).sum()
            for name, param in self.named_parameters()
        )


class Model(TorchModel):
    """A DDP module with its attached optimizer."""

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
        op: str,
        predivide: float,
        module_options: dict[str, Any],
    ) -> None:
        self._dtype = getattr(torch, dtype)
        toy = Toy(shapes, self._dtype).to(DEVICE)
        super().__init__(compression, toy, optimizer=optimizer, rate=rate, loss_scale=loss_scale)
        self._passes = passes
        self._ddp = DistributedDataParallel(toy, **module_options)
        if compression is not None:
            attach(
                self._ddp,
                self._optimizer,
                compression,
                op=OPS[op],
                gradient_predivide_factor=predivide,
                grad_scaler=self._scaler,
            )

    def _backward(self, gradients: Arrays) -> None:
        given = {
            name: torch.from_numpy(one).to(DEVICE, self._dtype) for name, one in gradients.items()
        }
        for left in reversed(range(self._passes)):
            with self._ddp.no_sync() if left else nullcontext():
                loss = self._ddp(given)
                (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def _scaled_step(self, scaler: torch.amp.GradScaler) -> None:
        scaler.unscale_(self._optimizer)
        scaler.step(self._optimizer)

    def save(self, folder: str | Path, **extra: Any) -> None:
        Exchange(self._optimizer).save_checkpoint(folder, self._ddp, **extra)

    def load(self, folder: str | Path, **options: Any) -> dict[str, Any] | None:
        return Exchange(self._optimizer).load_checkpoint(folder, self._ddp, **options)


class Ddp(TorchFramework):
    """DistributedDataParallel, on `gpus.DEVICE`.

    Args:
        **module_options: Options of DistributedDataParallel.
    """

    refusal = NonFiniteGradientError
    fuses = True

    def __init__(self, **module_options: Any) -> None:
        self.module_options = module_options
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.everyone = TorchDistributed().everyone()

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
            op=op,
            predivide=predivide,
            module_options={
                "bucket_cap_mb": BUCKET_MB,
                "process_group": (ranks or self.everyone).group,
                **self.module_options,
            },
        )

    def gathered(self, values: np.ndarray, ranks: Any = None) -> np.ndarray:
        row = torch.from_numpy(values.astype(np.float64))
        group = (ranks or self.everyone).group
        rows = [torch.empty_like(row) for _ in range(dist.get_world_size(group))]
        dist.all_gather(rows, row, group=group)
        return torch.stack(rows).numpy()

    def reduced(self, values: np.ndarray, dtype: str, op: str, predivide: float) -> np.ndarray:
        given = torch.from_numpy(values).to(DEVICE, getattr(torch, dtype)).mul_(1 / predivide)
        dist.all_reduce(given, group=self.everyone.group)
        return array_of(given.mul_(predivide / self.size if op == "Average" else 1.0))
