"""Models of PyTorch for the laws of tests/framework_laws, whoever runs the ranks."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from hvd_sparse.compression import Compression
from hvd_sparse.pytorch.attachment import require_attachment
from hvd_sparse.stats.step_stats import StepStats
from hvd_sparse.tuning.stages import Tuning
from tests import frameworks
from tests.frameworks import Arrays
from tests.gpus import DEVICE

# The ways in which a program throws gradients away.
WAYS_TO_DROP = ("optimizer", "optimizer, in place", "module", "module, in place", "missing")


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns a copy of a tensor as float64."""
    return tensor.detach().cpu().double().numpy().copy()


def residuals(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Returns this rank's residuals by parameter, in memory of the CPU."""
    saved = optimizer.state_dict().get("hvd_sparse")
    if saved is None:
        return {}
    return {
        name: saved["residuals"].get(name, torch.zeros(numel)).cpu().double()
        for name, numel in saved["layers"].items()
    }


def velocities(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Returns this rank's velocities by parameter, if a step with momentum correction was taken.

    They are in memory of the CPU.
    """
    saved = optimizer.state_dict().get("hvd_sparse", {}).get("velocities", {})
    return {name: part.cpu().double() for name, part in saved.items()}


class WithoutRate(torch.optim.Optimizer):
    """An optimizer whose groups have no learning rate; it moves weights by their gradients."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                param.sub_(param.grad)


class TorchModel(frameworks.Model):
    """A module with its optimizer; a subclass distributes it, takes steps, and saves.

    Args:
        compression: The compression; None for dense gradients.
        module: The module.
        optimizer: Name of the optimizer's class.
        rate: Learning rate.
        loss_scale: First scale of the loss; None without loss scaling.
    """

    def __init__(
        self,
        compression: Compression | None,
        module: torch.nn.Module,
        *,
        optimizer: str,
        rate: float,
        loss_scale: float | None,
    ) -> None:
        self.compression = compression
        self._module = module
        if optimizer == WithoutRate.__name__:
            self._optimizer: Any = WithoutRate(module.parameters())
        else:
            self._optimizer = getattr(torch.optim, optimizer)(module.parameters(), lr=rate)
        self._steps = 0
        self._scaler: torch.amp.GradScaler | None = None
        if loss_scale is not None:
            self._scaler = torch.amp.GradScaler(self._device().type, init_scale=loss_scale)

    def _device(self) -> torch.device:
        return next(self._module.parameters()).device

    def _results(self) -> Arrays:
        """Returns the gradients that there are."""
        found = {name: param.grad for name, param in self._module.named_parameters()}
        types = {param.dtype for param in self._module.parameters()}
        assert all(grad is None or grad.dtype in types for grad in found.values())
        return {name: array_of(grad) for name, grad in found.items() if grad is not None}

    def step(
        self, gradients: Arrays, *, explicitly: bool = False, without: str | None = None
    ) -> Arrays | None:
        """Takes a step; see `frameworks.Model`.

        Args:
            gradients: This rank's gradients.
            explicitly: True if the program asks for averages before it steps.
            without: A parameter whose average is thrown away then.
        """
        self._steps += 1
        self._zero()
        self._backward(gradients)
        if self._scaler is not None:
            before = self._scaler.get_scale()
            self._scaled_step(self._scaler)
            self._scaler.update()
            if self._scaler.get_scale() < before:
                return None
        elif explicitly:
            self._average()
            if without is not None:
                getattr(self._module, without).grad = None
            with self._not_synchronizing():
                self._optimizer.step()
        else:
            self._optimizer.step()
        return self._results()

    def drop(self, gradients: Arrays, way: str) -> None:
        """Computes averages and throws them away, in one of WAYS_TO_DROP."""
        self._zero()
        self._backward(gradients)
        self._average()
        if way == "missing":
            for parameter in self._module.parameters():
                parameter.grad = None
            return
        owner, _, how = way.partition(", ")
        dropping = self._optimizer if owner == "optimizer" else self._module
        dropping.zero_grad(set_to_none=not how)

    def _zero(self) -> None:
        self._optimizer.zero_grad(set_to_none=self._steps % 2 == 0)

    @abstractmethod
    def _backward(self, gradients: Arrays) -> None:
        """Computes the gradients of a step, in all its passes."""

    @abstractmethod
    def _scaled_step(self, scaler: torch.amp.GradScaler) -> None:
        """Takes a step with a scaler, but for its update()."""

    def _average(self) -> None:
        """Makes gradients averages, if backward has not."""

    def _not_synchronizing(self) -> AbstractContextManager[None]:
        """Returns a context in which step() takes the averages as they are."""
        return nullcontext()

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
        return self._optimizer.exchange.stats.last

    def tuning(self) -> Tuning | None:
        return self._optimizer.exchange.tuning

    def rate(self) -> float:
        """Returns the learning rate."""
        return self._optimizer.param_groups[0]["lr"]

    def replan(self) -> None:
        self._optimizer.exchange.replan()

    def set_masks(self, masks: Any) -> None:
        """Replaces the masks, given as arrays or tensors. Collective."""
        if isinstance(masks, dict):
            masks = {
                name: torch.from_numpy(one).to(DEVICE) if isinstance(one, np.ndarray) else one
                for name, one in masks.items()
            }
        self._optimizer.exchange.set_masks(masks)

    def meet(self, module: torch.nn.Module | None = None) -> None:
        """Ends an interval of local steps, and averages a module's buffers. Collective."""
        self._optimizer.exchange.meet(module)

    def waiting_bytes(self) -> int:
        """Returns the bytes whose sum by the host step() has left behind without starting it."""
        return require_attachment(self._optimizer).exchange.steps.dense.waiting_bytes

    def common_weights(self) -> AbstractContextManager[None]:
        """Returns a context in which the model has the last common weights."""
        return self._optimizer.exchange.common_weights()

    def report_loss(self, loss: float) -> None:
        """Reports the loss of a local step."""
        self._optimizer.exchange.report_loss(loss)

    def local_steps(self) -> int:
        """Returns the number of local steps of an interval."""
        return self._optimizer.exchange.local_steps


class TorchFramework(frameworks.Framework):
    """PyTorch on `gpus.DEVICE`, whoever runs the ranks."""

    tells_faults = DEVICE.type == "cpu"
    scales_narrow = DEVICE.type == "cpu"  # torch's GradScaler takes no such gradients on a GPU
    undoes_skipped = True
    shares_residuals = DEVICE.type == "cpu"

    def dense_refusal(self, name: str) -> str:
        return f"'{name}' over the ranks is not finite"

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def coin_flips(self, shape: tuple[int, ...]) -> np.ndarray:
        return torch.randint(0, 2, shape).double().numpy()
