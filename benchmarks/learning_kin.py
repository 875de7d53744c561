"""Methods that others published, as prototypes beside error feedback: learning_prototypes.py.

References:
    MicroAdam: Modoranu et al., https://arxiv.org/abs/2405.15593 (without its compressed residual).
    DeMo: Peng et al., https://arxiv.org/abs/2411.19870. EF21 with momentum: Fatkhullin et al.,
    https://arxiv.org/abs/2305.15155. Local steps: SparseLoCo, https://arxiv.org/abs/2508.15706.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from learning_methods import Setup
from learning_prototypes import Prototype, zeros_like


class DeMo(Prototype):
    """The residual is a momentum that decays; what is delivered moves the weights by its sign."""

    def __init__(self, setup: Setup, *, decay: float = 0.999, **options: Any) -> None:
        super().__init__(setup, **options)
        self._keep = decay
        self._weight_decay = self.optimizer.param_groups[0]["weight_decay"]

    @torch.no_grad()
    def update(self) -> None:
        self.clip_own()
        self.average_small()
        torch._foreach_mul_(self.residuals, self._keep)
        averages = self.average_large(self.gradients())
        self.move_by([average.sign() for average in averages], self._weight_decay)


class MicroAdam(Prototype):
    """Both moments are those of the last few sparse averages, and know nothing older.

    Args:
        setup: The starting point.
        window: Number of averages.
        options: Options of Prototype.
    """

    def __init__(self, setup: Setup, *, window: int = 10, **options: Any) -> None:
        super().__init__(setup, **options)
        self._averages: deque[list[torch.Tensor]] = deque(maxlen=window)
        group = self.optimizer.param_groups[0]
        self._betas, self._epsilon = group["betas"], group["eps"]
        self._decay = group["weight_decay"]

    @torch.no_grad()
    def update(self) -> None:
        self.clip_own()
        self.average_small()
        self._averages.append(self.average_large(self.gradients()))
        above, below = (self._moments(beta, power) for power, beta in enumerate(self._betas, 1))
        torch._foreach_sqrt_(below)
        torch._foreach_add_(below, self._epsilon)
        self.move_by(torch._foreach_div(above, below), self._decay)

    def _moments(self, beta: float, power: int) -> list[torch.Tensor]:
        moments = zeros_like(self.large)
        for averages in self._averages:
            torch._foreach_mul_(moments, beta)
            powers = torch._foreach_pow(averages, power)
            torch._foreach_add_(moments, powers, alpha=1 - beta)
        torch._foreach_div_(moments, 1 - beta ** len(self._averages))
        return moments


class EF21(Prototype):
    """Each rank sends the change of its gradient's estimate; the optimizer has the estimates' mean.

    Args:
        setup: The starting point.
        momentum: Momentum of the gradient, before its estimate; 0: none.
        options: Those of Prototype.
    """

    def __init__(self, setup: Setup, *, momentum: float = 0.0, **options: Any) -> None:
        super().__init__(setup, **options)
        self._momentum = momentum
        self._smoothed, self._own, self._mean = (zeros_like(self.large) for _ in range(3))

    @torch.no_grad()
    def update(self) -> None:
        self.average_small()
        torch._foreach_lerp_(self._smoothed, self.gradients(), 1 - self._momentum)
        changes = list(torch._foreach_sub(self._smoothed, self._own))
        torch._foreach_zero_(self.residuals)
        averages = self.average_large(changes)
        delivered = torch._foreach_sub(changes, self.residuals)
        torch._foreach_add_(self._own, delivered)
        torch._foreach_add_(self._mean, averages)
        self.learn_from(self._mean)


class SparseAverage(Prototype):
    """Ranks train by themselves and meet every so many steps; the change since then goes sparse.

    Args:
        setup: The starting point.
        every: Steps between two meetings.
        keep: Factor of the residual at each meeting; below 1 it forgets, as in SparseLoCo.
        options: Options of Prototype; steps of a warm-up are steps of training.
    """

    def __init__(self, setup: Setup, *, every: int, keep: float = 1.0, **options: Any) -> None:
        super().__init__(setup, **options)
        self._every, self._keep = every, keep
        self._met = [one.detach().clone() for one in self.large]  # weights, equal on all ranks

    @torch.no_grad()
    def update(self) -> None:
        self.clip()
        self.optimizer.step()
        if self.taken % self._every != self._every - 1:
            return
        self.average_densely(self._small)
        torch._foreach_mul_(self.residuals, self._keep)
        changes = list(torch._foreach_sub(self.large, self._met))
        torch._foreach_add_(self._met, self.average_large(changes))
        for weight, met in zip(self.large, self._met, strict=True):
            weight.copy_(met)

    is_local = True
