"""Ways of making sparse training learn that the package does not have, over sparse_allreduce.

Large tensors (two dimensions, 1,024 entries) go through sparse_allreduce, one call for each, after
the backward pass; all others are averaged densely, as in the package. In every step a prototype
notes of rank 0's large tensors

    density   fraction of the entries that were delivered
    share     of the energy of what a rank had accumulated, what was delivered
    behind    norm of the residual, over the norm of what came in
    age       steps that a delivered entry had been waiting for on average, 1 if for none

References:
    Today: Stich et al., Sparsified SGD with Memory, https://arxiv.org/abs/1809.07599.
    Momentum in front: Lin et al., Deep Gradient Compression, https://arxiv.org/abs/1712.01887.
    A frozen second moment: Tang et al., 1-bit Adam, https://arxiv.org/abs/2102.02888, and
    APMSqueeze, https://arxiv.org/abs/2008.11343.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from learning_methods import WARMUP, OverHorovod, Setup
from torch import nn

from hvd_sparse.schedules import Warmup

FRONTS = ("gradient", "momentum", "adam")
SECONDS = ("behind", "aged", "own", "own/P", "frozen")
MOST_STEPS_OF_ADAM = 10.0  # what one entry may move by at once, in learning rates, where aged


class Prototype(OverHorovod):
    """Large tensors through sparse_allreduce, small ones dense.

    Args:
        setup: The starting point.
        density: Density of the large tensors.
        collective: "allgather" applies what any rank selects, "gtopk" the k largest of the sum.
        warmup: Steps at each of WARMUP's densities first.
        dense_steps: Steps before all that, in which all is averaged densely.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        density: float,
        collective: str = "allgather",
        warmup: int = 0,
        dense_steps: int = 0,
    ) -> None:
        import hvd_sparse.torch as hvd_sparse

        super().__init__(setup)
        self._package = hvd_sparse
        self._density, self._collective = density, collective
        self._warmup = Warmup(steps=warmup, densities=WARMUP) if warmup else None
        self.dense_steps = dense_steps
        every = [one for one in setup.model.parameters() if one.requires_grad]
        defaults = hvd_sparse.TopK()
        self.large = [one for one in every if defaults.takes(one.shape)]
        self._small = [one for one in every if not defaults.takes(one.shape)]
        self.optimizer = setup.task.optimizer(iter(every), setup.rate)
        self.residuals = zeros_like(self.large)
        self._last = [torch.zeros_like(one) for one in self.large]  # step of an entry's delivery

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.hvd.size()

    @property
    def is_dense(self) -> bool:
        """True if this step averages all tensors densely."""
        return self.taken < self.dense_steps

    def average_densely(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces tensors by their averages over the ranks, in one exchange of Horovod."""
        self.average_in_place(tensors, "dense")

    def average_small(self) -> None:
        """Averages the gradients of small tensors."""
        self.average_densely([one.grad for one in self._small if one.grad is not None])

    def average_large(self, incoming: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Sparse averages of what comes in, through the residuals; notes what became of it."""
        density = self._density
        if self._warmup is not None:
            density = self._warmup.density_at(self.taken - self.dense_steps, density)
        compression = self._package.TopK(density=density, collective=self._collective)
        before = torch._foreach_add(self.residuals, list(incoming))
        averages = [
            self._package.sparse_allreduce(tensor, residual, compression=compression, name=f"{n}")
            for n, (tensor, residual) in enumerate(zip(incoming, self.residuals, strict=True))
        ]
        self._note(incoming, before)
        return averages

    def _note(self, incoming: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> None:
        now = self.taken + 1
        sent, entries, waited = 0, 0, 0.0
        for last, u, residual in zip(self._last, before, self.residuals, strict=True):
            delivered = u != residual
            sent += int(delivered.sum())
            entries += u.numel()
            waited += float((now - last[delivered]).sum())
            last.masked_fill_(delivered, now)
        left, whole, came = (norm(each) for each in (self.residuals, before, incoming))
        self.facts = {
            "density": sent / entries,
            "share": 1 - (left / whole) ** 2 if whole else 0.0,
            "behind": left / came if came else 0.0,
            "age": waited / sent if sent else 0.0,
        }

    def clip_own(self) -> None:
        """Clips this rank's gradient; averages of independent ones then keep the task's limit."""
        if self.setup.task.clip is not None:
            limit = self.setup.task.clip * math.sqrt(self.size)
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def gradients(self) -> list[torch.Tensor]:
        """Returns the gradients of the large tensors, which the optimizer reads."""
        return [gradient_of(one) for one in self.large]

    def learn_from(self, averages: Sequence[torch.Tensor], *, clipped: bool = True) -> None:
        """Lets the optimizer step with these averages for gradients of the large tensors."""
        for gradient, average in zip(self.gradients(), averages, strict=True):
            gradient.copy_(average)
        if clipped:
            self.clip()
        self.optimizer.step()

    def move_by(self, updates: Sequence[torch.Tensor], decoupled_decay: float) -> None:
        """Moves the large tensors by these updates, and the small ones by the optimizer's step."""
        rate = self.optimizer.param_groups[0]["lr"]
        for one in self.large:
            one.grad = None  # which the optimizer then leaves alone
        self.optimizer.step()
        torch._foreach_mul_(self.large, 1 - rate * decoupled_decay)
        torch._foreach_add_(self.large, list(updates), alpha=-rate)


class ErrorFeedback(Prototype):
    """Error feedback on gradients, or on what each rank's own optimizer makes of them.

    With front="gradient" the sparse average of gradients goes into the optimizer: the package as it
    is. With "momentum" each rank's momentum joins its residual: for SGD that is the whole update,
    for Adam the average still meets a second moment. With "adam" each rank's whole Adam step joins,
    m / (sqrt(v) + eps), and the average is the update.

    Args:
        setup: The starting point.
        front: The vector that joins the residual.
        second: Adam's second moment: "behind" (of the sparse averages, entry by entry), "aged" (the
            same, of the average over the steps that an entry waited for); for front="adam" "own"
            (of this rank's gradients), "own/P" (the same over P, for an average is less noisy) or
            "frozen" (of the dense steps, not changed afterwards).
        masked: True if an entry that is delivered leaves the momentum, too.
        clip_own: True if each rank clips its own gradient, False if all ranks clip the average,
            which with front="momentum" and SGD is that of momenta, 1 / (1 - momentum) times as
            large; None: False with front="gradient" only.
        options: Those of Prototype.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        front: str = "gradient",
        second: str = "behind",
        masked: bool = False,
        clip_own: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(setup, **options)
        in_front = second in ("own", "own/P", "frozen")
        if front not in FRONTS or second not in SECONDS or in_front != (front == "adam"):
            raise ValueError(f"no prototype has front={front!r} with second={second!r}")
        if second == "frozen" and not self.dense_steps:
            raise ValueError("a second moment that is frozen needs dense_steps")
        self._front, self._second, self._masked = front, second, masked
        self._clips_own = front != "gradient" if clip_own is None else clip_own
        group = self.optimizer.param_groups[0]
        self._adam = isinstance(self.optimizer, torch.optim.AdamW)
        self._betas = group["betas"] if self._adam else (group["momentum"], 0.0)
        self._epsilon, self._decay = group.get("eps", 0.0), group["weight_decay"]
        self._moments = zeros_like(self.large)
        self._squares = zeros_like(self.large)
        self._ages = zeros_like(self.large)
        self._counted = 0  # steps that the second moments know

    @torch.no_grad()
    def update(self) -> None:
        if self._clips_own:
            self.clip_own()
        self.average_small()
        gradients = self.gradients()
        if self._front == "gradient" and self._second == "behind":
            if self.is_dense:
                self.average_densely(gradients)
                averages = gradients
            else:
                averages = self.average_large(gradients)
            self.learn_from(averages, clipped=not self._clips_own)
            return
        if self.is_dense:
            self.average_densely(gradients)
        if not self._adam:
            torch._foreach_add_(gradients, self.large, alpha=self._decay)
        incoming = self._through_front(gradients)
        averages = list(incoming) if self.is_dense else self.average_large(incoming)
        if self._masked and not self.is_dense:
            for moment, last in zip(self._moments, self._last, strict=True):
                moment.masked_fill_(last == self.taken + 1, 0)
        if not self._clips_own:
            self._clip_momenta(averages)
        if self._adam and self._front != "adam":
            averages = self._behind(averages)
        self.move_by(averages, self._decay if self._adam else 0.0)

    def _clip_momenta(self, momenta: list[torch.Tensor]) -> None:
        """Clips averages of momenta, and the gradients of the small tensors, by their norm."""
        limit = self.setup.task.clip
        if limit is None:
            return
        small = [gradient_of(one) for one in self._small]
        found = math.hypot((1 - self._betas[0]) * norm(momenta), norm(small))
        for part in (momenta, small):
            torch._foreach_mul_(part, min(1.0, limit / found))

    def _through_front(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the vectors that join the residuals."""
        first, second = self._betas
        if self._front == "gradient":
            return gradients
        if not self._adam:  # SGD: v = mu v + g
            torch._foreach_mul_(self._moments, first)
            torch._foreach_add_(self._moments, gradients)
            return [moment.clone() for moment in self._moments]
        torch._foreach_lerp_(self._moments, gradients, 1 - first)
        corrected = torch._foreach_div(self._moments, 1 - first ** (self.taken + 1))
        if self._front == "momentum":
            return list(corrected)
        if self.is_dense or self._second != "frozen":
            noise = 1 if self.is_dense or self._second != "own/P" else self.size
            square_in(self._squares, gradients, second, noise)
            self._counted += 1
        return self._divided(corrected, self._squares, 1 - second**self._counted)

    def _behind(self, averages: list[torch.Tensor]) -> list[torch.Tensor]:
        """Adam's second moment of the averages, and its first where that is not in front."""
        first, second = self._betas
        self._counted += 1
        if self._second == "aged":
            torch._foreach_add_(self._ages, 1)
            for square, average, age in zip(self._squares, averages, self._ages, strict=True):
                kept = second**age
                news = kept * square + (1 - kept) * (average / age) ** 2
                torch.where(average != 0, news, square, out=square)
                age.masked_fill_(average != 0, 0)
        else:
            square_in(self._squares, averages, second, 1)
        if self._front == "gradient":
            torch._foreach_lerp_(self._moments, averages, 1 - first)
            averages = list(torch._foreach_div(self._moments, 1 - first ** (self.taken + 1)))
        updates = self._divided(averages, self._squares, 1 - second**self._counted)
        if self._second == "aged":
            torch._foreach_clamp_min_(updates, -MOST_STEPS_OF_ADAM)
            torch._foreach_clamp_max_(updates, MOST_STEPS_OF_ADAM)
        return updates

    def _divided(
        self, above: Sequence[torch.Tensor], squares: Sequence[torch.Tensor], known: float
    ) -> list[torch.Tensor]:
        below = torch._foreach_div(list(squares), known)
        torch._foreach_sqrt_(below)
        torch._foreach_add_(below, self._epsilon)
        return list(torch._foreach_div(list(above), below))


def zeros_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Zeros of the same shapes, outside of autograd."""
    return [torch.zeros_like(one, requires_grad=False) for one in tensors]


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's gradient, zeros where backward made none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def square_in(
    squares: list[torch.Tensor], values: Sequence[torch.Tensor], keep: float, noise: int
) -> None:
    """Second moments take in the squares of values, over `noise`."""
    torch._foreach_mul_(squares, keep)
    torch._foreach_addcmul_(squares, list(values), list(values), value=(1 - keep) / noise)


def norm(tensors: Sequence[torch.Tensor]) -> float:
    """Returns the norm of all tensors together."""
    return float(nn.utils.get_total_norm(list(tensors)))
