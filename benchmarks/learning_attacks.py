"""Ranks that send wrong gradients, as robust averages are tested with.

The attacks are those of AggregaThor's evaluation and of its kin: a gradient that points the other
way, noise, and one that is out of date.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from learning_methods import Hooked, Setup
from learning_tasks import Batch

from hvd_sparse.errors import NonFiniteGradientError

Attack = Callable[[torch.Tensor], torch.Tensor]

FACTOR = 10.0  # of a gradient that is turned round, and of the norm of noise
STALE = 20  # steps


def reversed_(gradient: torch.Tensor) -> torch.Tensor:
    """Returns a gradient that points the other way, ten times as long."""
    return -FACTOR * gradient


def noise(gradient: torch.Tensor) -> torch.Tensor:
    """Returns noise ten times as long as the gradient."""
    drawn = torch.randn_like(gradient)
    return drawn * (FACTOR * gradient.norm() / drawn.norm())


def stale() -> Attack:
    """Returns an attack that sends the gradient of some steps before."""
    former: deque[torch.Tensor] = deque(maxlen=STALE + 1)

    def before(gradient: torch.Tensor) -> torch.Tensor:
        former.append(gradient.clone())
        return former[0]

    return before


ATTACKS: dict[str, Callable[[], Attack]] = {
    "reversed": lambda: reversed_,
    "noise": lambda: noise,
    "stale": stale,
}


class Attacked(Hooked):
    """DDP with a compression of hvd_sparse, whose last ranks send wrong gradients.

    Args:
        setup: The starting point.
        mode: The compression, as modes.compression_of reads it.
        attack: One of ATTACKS.
        bad: Number of ranks that send them.
    """

    def __init__(self, setup: Setup, *, mode: str, attack: str, bad: int) -> None:
        super().__init__(setup, mode=mode)
        if self._dist.get_rank() >= self._dist.get_world_size() - bad:
            for weight in self.model.parameters():
                weight.register_hook(ATTACKS[attack]())

    def step(self, batch: Batch) -> torch.Tensor:
        """Learns from a batch, unless the step is refused: weights have diverged, on all ranks."""
        try:
            return super().step(batch)
        except NonFiniteGradientError:
            self.taken += 1
            return torch.tensor(torch.nan)

    def report(self) -> dict[str, Any]:
        total = self.optimizer.exchange.stats.total
        shares = [entries / max(1, total.averaged) for entries in total.left_out]
        return super().report() | {"left_out": shares}
