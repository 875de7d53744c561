"""Ways of training on several ranks, each a class whose object takes whole steps.

These are what users can pick today; learning_prototypes.py has what they might pick tomorrow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from ddp_methods import wrapped
from learning_tasks import Batch, Task
from modes import compression_of
from torch import nn

from hvd_sparse.compression import Warmup

WARMUP = (0.25, 0.0625, 0.015625)  # densities of the first steps


@dataclass(frozen=True)
class Setup:
    """A method's starting point, the same on all ranks.

    Attributes:
        task: The task to learn.
        model: The model to train; its parameters are equal on all ranks.
        rate: The learning rate, before the schedule.
        steps: The number of steps that the schedule is made for.
    """

    task: Task
    model: nn.Module
    rate: float
    steps: int


class Learner(ABC):
    """A rank's part in a training.

    Attributes:
        facts: The measurements of the last step, by name; empty if the method takes none.
        clip_norm: Largest norm of the averaged gradient; None: it is not clipped.
        optimizer: The optimizer whose learning rate follows the schedule; each class makes it.
        is_local: True if ranks have weights of their own, whose average is judged.
    """

    optimizer: Any
    is_local = False

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.model = setup.model
        self.facts: dict[str, float] = {}
        self.taken = 0  # steps
        self.clip_norm = setup.task.clip

    def step(self, batch: Batch) -> torch.Tensor:
        """Learns from this rank's batch; its loss before."""
        self.facts = {}
        rate = self.setup.rate * self.setup.task.schedule(self.taken / self.setup.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.backward(batch)
        self.update()
        self.taken += 1
        return loss.detach()

    def backward(self, batch: Batch) -> torch.Tensor:
        """Computes the gradients; the loss."""
        self.optimizer.zero_grad()
        inputs, targets = batch
        loss = self.setup.task.loss(self.forward(inputs), targets)
        loss.backward()
        return loss

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The model's output."""
        return self.model(inputs)

    def update(self) -> None:
        """Exchanges the gradients where backward has not yet, and moves the weights."""
        self.clip()
        self.optimizer.step()

    @abstractmethod
    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Values, of a floating-point type, averaged over the ranks."""

    @contextmanager
    def judged(self) -> Iterator[nn.Module]:
        """The model with the weights that are to be judged: equal on all ranks."""
        with self.averaged_weights() if self.is_local else nullcontext(self.model) as model:
            yield model

    def weights(self) -> list[torch.Tensor]:
        """The whole weights, that ranks compare; collective."""
        return [weight.detach() for weight in self.model.parameters()]

    @contextmanager
    def averaged_weights(self) -> Iterator[nn.Module]:
        """The model with the ranks' average in the place of its weights, which come back after."""
        weights = [weight.detach() for weight in self.model.parameters()]
        own = [weight.clone() for weight in weights]
        for weight in weights:
            weight.copy_(self.mean(weight))
        yield self.model
        for weight, before in zip(weights, own, strict=True):
            weight.copy_(before)

    def report(self) -> dict[str, Any]:
        """Facts about the whole training, for its account."""
        return {}

    def clip(self) -> None:
        """Clips the averaged gradient, where the task asks for it."""
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)


class OverHorovod(Learner):
    """A learner whose ranks are Horovod's."""

    def __init__(self, setup: Setup) -> None:
        import horovod.torch as hvd

        super().__init__(setup)
        self.hvd = hvd

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        return self.hvd.allreduce(values, name="mean")

    def average_in_place(self, tensors: Sequence[torch.Tensor], name: str) -> None:
        """Replaces tensors by their averages over the ranks."""
        averages = self.hvd.grouped_allreduce(list(tensors), name=name)
        for tensor, average in zip(tensors, averages, strict=True):
            tensor.copy_(average)


class Through(OverHorovod):
    """Horovod's DistributedOptimizer with a compression, Horovod's own or the package's.

    Args:
        setup: The starting point.
        compression: Any compression that DistributedOptimizer takes.
        has_momentum: True if the optimizer keeps its momentum, False if the compression has it.
    """

    def __init__(self, setup: Setup, compression: Any, *, has_momentum: bool = True) -> None:
        super().__init__(setup)
        optimizer = setup.task.optimizer(setup.model.parameters(), setup.rate)
        for group in () if has_momentum else optimizer.param_groups:
            if "betas" in group:
                group["betas"] = (0.0, group["betas"][1])
                continue
            # The compression's velocities are sums of gradients: decay and clipping must grow, too.
            sums = 1 / (1 - group["momentum"])
            group.update(momentum=0.0, weight_decay=sums * group["weight_decay"])
            self.clip_norm = None if setup.task.clip is None else sums * setup.task.clip
        self.optimizer = self.hvd.DistributedOptimizer(
            optimizer,
            named_parameters=setup.model.named_parameters(),
            compression=compression,
        )

    def update(self) -> None:
        if self.clip_norm is None:
            self.optimizer.step()
            return
        self.optimizer.synchronize()
        self.clip()
        with self.optimizer.skip_synchronize():
            self.optimizer.step()


class Dense(Through):
    """Horovod's own allreduce, of gradients as they are or as float16."""

    def __init__(self, setup: Setup, *, fp16: bool = False) -> None:
        import horovod.torch as hvd

        super().__init__(setup, hvd.Compression.fp16 if fp16 else hvd.Compression.none)


class Exchanging(Learner):
    """A learner whose optimizer has an exchange of hvd_sparse."""

    def step(self, batch: Batch) -> torch.Tensor:
        loss = super().step(batch)
        if self.is_local:
            self.optimizer.exchange.report_loss(loss)
        return loss

    def report(self) -> dict[str, Any]:
        exchange = self.optimizer.exchange
        told: dict[str, Any] = {"summary": exchange.summary()}
        return told if exchange.tuning is None else told | {"tuning": str(exchange.tuning)}


class Sparse(Exchanging, Through):
    """A compression of hvd_sparse.

    Args:
        setup: The starting point.
        mode: The compression, as modes.compression_of reads it.
        warmup: Steps at each of WARMUP's densities first; 0: none.
    """

    def __init__(self, setup: Setup, *, mode: str, warmup: int = 0) -> None:
        import hvd_sparse.torch  # noqa: F401  # teaches Horovod sparse compressions

        compression = compression_of(mode)
        if warmup:
            schedule = Warmup(steps=warmup, densities=WARMUP)
            compression = replace(compression, warmup=schedule)
        super().__init__(setup, compression, has_momentum=not compression.feedback.own_momentum)
        self.is_local = compression.is_local

    def update(self) -> None:
        super().update()
        last = self.optimizer.exchange.stats.last
        if last is not None and last.buckets:
            self.facts = {"density": last.density_reached}
            if last.quality is not None and last.quality.compression_error is not None:
                self.facts["share"] = 1 - last.quality.compression_error


class Average(OverHorovod):
    """Each rank trains by itself; all average their weights every so many steps."""

    def __init__(self, setup: Setup, *, every: int) -> None:
        super().__init__(setup)
        self._every = every
        self.optimizer = setup.task.optimizer(setup.model.parameters(), setup.rate)

    @torch.no_grad()
    def update(self) -> None:
        super().update()
        if self.taken % self._every == self._every - 1:
            self.average_in_place(list(self.model.parameters()), "weights")

    is_local = True


class OverGloo(Learner):
    """A learner whose ranks are those of torch.distributed's Gloo."""

    def __init__(self, setup: Setup) -> None:
        import torch.distributed as dist

        super().__init__(setup)
        self._dist = dist

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        total = values.clone()
        self._dist.all_reduce(total)
        return total / self._dist.get_world_size()


class Alone(OverGloo):
    """Each rank trains by itself: nothing but computing."""

    is_local = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.optimizer = setup.task.optimizer(setup.model.parameters(), setup.rate)


class DDP(OverGloo):
    """PyTorch's DistributedDataParallel over gloo, with a hook of its own or none."""

    def __init__(
        self, setup: Setup, *, hook: str = "", matrix_rank: int = 1, dense_steps: int = 50
    ) -> None:
        super().__init__(setup)
        self._wrapped, _ = wrapped(
            setup.model, hook=hook, matrix_rank=matrix_rank, dense_steps=dense_steps
        )
        self.optimizer = setup.task.optimizer(setup.model.parameters(), setup.rate)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._wrapped(inputs)


class Hooked(Exchanging, DDP):
    """DDP with a compression of hvd_sparse.

    Args:
        setup: The starting point.
        mode: The compression, as modes.compression_of reads it.
    """

    def __init__(self, setup: Setup, *, mode: str) -> None:
        from hvd_sparse.ddp import attach

        super().__init__(setup)
        compression = compression_of(mode)
        self.is_local = compression.is_local
        attach(self._wrapped, self.optimizer, compression)
