"""PyTorch for the laws of tests/framework_laws: hvd.DistributedOptimizer and its functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from hvd_sparse.compression import Compression
from hvd_sparse.errors import NonFiniteGradientError
from hvd_sparse.stats.step_stats import StepStats
from hvd_sparse.torch import load_checkpoint, replan, save_checkpoint, stats, tuning
from hvd_sparse.tuning.tuner import Tuning
from tests import frameworks
from tests.frameworks import SHAPES, Arrays, Framework, Shapes
from tests.parallel.torch_ranks import Toy, a_name, residuals, velocities


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns a copy of a tensor as float64."""
    return tensor.detach().double().numpy().copy()


class Model(frameworks.Model):
    """A module with its optimizer."""

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
        self.compression = compression
        self._dtype = getattr(torch, dtype)
        self._module = Toy(shapes, self._dtype)
        self._passes = passes
        self._scaler: torch.amp.GradScaler | None = None
        if loss_scale is not None:
            self._scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale)
            compression = replace(compression, loss_scale=self._scaler)
        kind = getattr(torch.optim, optimizer)
        self._optimizer = hvd.DistributedOptimizer(
            kind(self._module.parameters(), lr=rate),
            named_parameters=self._module.named_parameters(),
            compression=hvd.Compression.none if compression is None else compression,
            backward_passes_per_step=passes,
            **options,
        )
        self._steps = 0

    def step(self, gradients: Arrays) -> Arrays | None:
        self._steps += 1
        if self.compression is None:  # Horovod's optimizer knows one way only
            self._optimizer.zero_grad()
        else:
            self._optimizer.zero_grad(set_to_none=self._steps % 2 == 0)
        given = {name: torch.from_numpy(one).to(self._dtype) for name, one in gradients.items()}
        for _ in range(self._passes):
            loss = sum((getattr(self._module, name) * one).sum() for name, one in given.items())
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        if self._scaler is None:
            self._optimizer.step()
        elif self._scaled_step(self._scaler):
            return None
        found = dict(self._module.named_parameters())
        found = {name: one.grad for name, one in found.items() if one.grad is not None}
        assert all(one.dtype == self._dtype for one in found.values())
        return {name: array_of(one) for name, one in found.items()}

    def _scaled_step(self, scaler: torch.amp.GradScaler) -> bool:
        """Takes a step in the way that Horovod documents; returns true if it was skipped."""
        before = scaler.get_scale()
        self._optimizer.synchronize()
        scaler.unscale_(self._optimizer)
        with self._optimizer.skip_synchronize():
            scaler.step(self._optimizer)
        scaler.update()
        return scaler.get_scale() < before

    def prepare(self) -> None:
        pass  # the exchange is built with the optimizer

    def residuals(self) -> Arrays:
        return {name: one.numpy() for name, one in residuals(self._optimizer).items()}

    def velocities(self) -> Arrays:
        return {name: one.numpy() for name, one in velocities(self._optimizer).items()}

    def weights(self) -> Arrays:
        return {name: array_of(one) for name, one in self._module.named_parameters()}

    def moments(self) -> list[np.ndarray]:
        states = self._optimizer.state_dict()["state"].values()
        return [array_of(one) for state in states for one in state.values() if one is not None]

    def fill(self, value: float) -> None:
        for parameter in self._module.parameters():
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
        save_checkpoint(folder, self._module, self._optimizer, **extra)

    def load(self, folder: str | Path, **options: Any) -> dict[str, Any] | None:
        return load_checkpoint(folder, self._module, self._optimizer, **options)


class Torch(Framework):
    """PyTorch on the CPU."""

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

    def dense_refusal(self, name: str) -> str:
        return f"'{name}' over the ranks is not finite"

    def gathered(self, values: np.ndarray, ranks: Any = None) -> np.ndarray:
        ranks = self.everyone if ranks is None else ranks
        row = torch.from_numpy(values.astype(np.float64)[None])
        return hvd.allgather(row, name=a_name(ranks), process_set=ranks).numpy()

    def reduced(self, values: np.ndarray, dtype: str, op: str, predivide: float) -> np.ndarray:
        given = torch.from_numpy(values).to(getattr(torch, dtype))
        wide = given.float() if dtype == "bfloat16" else given  # which Horovod does not know
        summed = hvd.allreduce(
            wide,
            op=getattr(hvd, op),
            name=a_name(self.everyone),
            prescale_factor=1 / predivide,
            postscale_factor=predivide,
        )
        return array_of(summed.to(given.dtype))

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def coin_flips(self, shape: tuple[int, ...]) -> np.ndarray:
        return torch.randint(0, 2, shape).double().numpy()
