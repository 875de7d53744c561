"""DistributedDataParallel for the laws of tests/framework_laws: attach and its functions."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.compression import Compression
from hvd_sparse.ddp import attach, load_checkpoint, replan, save_checkpoint, stats, tuning
from hvd_sparse.errors import NonFiniteGradientError
from hvd_sparse.stats.step_stats import StepStats
from hvd_sparse.tuning.tuner import Tuning
from tests import frameworks
from tests.frameworks import SHAPES, Arrays, Framework, Shapes
from tests.parallel_ddp.groups import TorchDistributed

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


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns a copy of a tensor as float64."""
    return tensor.detach().double().numpy().copy()


def residuals(optimizer: torch.optim.Optimizer) -> Arrays:
    """Returns this rank's residuals by parameter, float64, flat."""
    saved = optimizer.state_dict().get("hvd_sparse")
    if saved is None:
        return {}
    return {
        name: array_of(saved["residuals"].get(name, torch.zeros(numel)))
        for name, numel in saved["layers"].items()
    }


class Model(frameworks.Model):
    """A DDP module with its optimizer."""

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
        self.compression = compression
        self._dtype = getattr(torch, dtype)
        self._ddp = DistributedDataParallel(Toy(shapes, self._dtype), **module_options)
        self._passes = passes
        self._scaler: torch.amp.GradScaler | None = None
        if loss_scale is not None:
            self._scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale)
            compression = replace(compression, loss_scale=self._scaler)
        self._optimizer = getattr(torch.optim, optimizer)(self._ddp.parameters(), lr=rate)
        if compression is not None:
            attach(
                self._ddp,
                self._optimizer,
                compression,
                op=OPS[op],
                gradient_predivide_factor=predivide,
            )
        self._steps = 0

    def step(self, gradients: Arrays) -> Arrays | None:
        self._steps += 1
        self._optimizer.zero_grad(set_to_none=self._steps % 2 == 0)
        given = {name: torch.from_numpy(one).to(self._dtype) for name, one in gradients.items()}
        for left in reversed(range(self._passes)):
            with self._ddp.no_sync() if left else nullcontext():
                loss = self._ddp(given)
                (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        if self._scaler is None:
            self._optimizer.step()
        elif self._scaled_step(self._scaler):
            return None
        found = dict(self._ddp.module.named_parameters())
        assert all(one.grad.dtype == self._dtype for one in found.values())
        return {name: array_of(one.grad) for name, one in found.items()}

    def _scaled_step(self, scaler: torch.amp.GradScaler) -> bool:
        """Takes a step; returns true if it was skipped."""
        before = scaler.get_scale()
        scaler.unscale_(self._optimizer)
        scaler.step(self._optimizer)
        scaler.update()
        return scaler.get_scale() < before

    def prepare(self) -> None:
        pass  # attach has built the exchange

    def residuals(self) -> Arrays:
        return residuals(self._optimizer)

    def velocities(self) -> Arrays:
        saved = self._optimizer.state_dict().get("hvd_sparse", {}).get("velocities", {})
        return {name: array_of(part) for name, part in saved.items()}

    def weights(self) -> Arrays:
        return {name: array_of(one) for name, one in self._ddp.module.named_parameters()}

    def moments(self) -> list[np.ndarray]:
        states = self._optimizer.state_dict()["state"].values()
        return [array_of(one) for state in states for one in state.values() if one is not None]

    def fill(self, value: float) -> None:
        for parameter in self._ddp.parameters():
            torch.nn.init.constant_(parameter, value)

    def set_rate(self, rate: float) -> None:
        self._optimizer.param_groups[0]["lr"] = rate

    def loss_scale(self) -> float:
        return 1.0 if self._scaler is None else self._scaler.get_scale()

    def stats(self) -> StepStats | None:
        return stats(self._optimizer).last

    def tuning(self) -> Tuning | None:
        return tuning(self._optimizer)

    def replan(self) -> None:
        replan(self._optimizer)

    def save(self, folder: str | Path, **extra: Any) -> None:
        save_checkpoint(folder, self._ddp, self._optimizer, **extra)

    def load(self, folder: str | Path, **options: Any) -> dict[str, Any] | None:
        return load_checkpoint(folder, self._ddp, self._optimizer, **options)


class Ddp(Framework):
    """DistributedDataParallel on the CPU.

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

    def dense_refusal(self, name: str) -> str:
        return f"'{name}' over the ranks is not finite"

    def gathered(self, values: np.ndarray, ranks: Any = None) -> np.ndarray:
        row = torch.from_numpy(values.astype(np.float64))
        group = (ranks or self.everyone).group
        rows = [torch.empty_like(row) for _ in range(dist.get_world_size(group))]
        dist.all_gather(rows, row, group=group)
        return torch.stack(rows).numpy()

    def reduced(self, values: np.ndarray, dtype: str, op: str, predivide: float) -> np.ndarray:
        given = torch.from_numpy(values).to(getattr(torch, dtype)).mul_(1 / predivide)
        dist.all_reduce(given)
        return array_of(given.mul_(predivide / self.size if op == "Average" else 1.0))

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def coin_flips(self, shape: tuple[int, ...]) -> np.ndarray:
        return torch.randint(0, 2, shape).double().numpy()
