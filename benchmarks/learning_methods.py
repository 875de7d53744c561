"""Ways of training on several ranks, each a class whose object takes whole steps.

These are what users can pick today; learning_prototypes.py has what they might pick tomorrow.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar

import torch
from learning_tasks import Batch, Task
from modes import compression_of
from torch import nn

WARMUP = (0.25, 0.0625, 0.015625)  # densities of the first steps
DDP_PATIENCE = timedelta(seconds=120)
LARGEST_BUCKET_MB = 1024  # of DDP: a model is one bucket


@dataclass(frozen=True)
class Setup:
    """What a method starts from; equal on all ranks.

    Attributes:
        task: What is learned.
        model: Whose parameters are equal on all ranks.
        rate: Learning rate, before the schedule.
        steps: How many the schedule is made for.
    """

    task: Task
    model: nn.Module
    rate: float
    steps: int


class Learner(ABC):
    """A rank's part in a training.

    Attributes:
        facts: What the last step is known to have done, by name; empty where nothing was noted.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.model = setup.model
        self.facts: dict[str, float] = {}
        self.taken = 0  # steps

    def step(self, batch: Batch) -> torch.Tensor:
        """Learns from this rank's batch; its loss before."""
        self.facts = {}
        optimizer = self.optimizer
        rate = self.setup.rate * self.setup.task.schedule(self.taken / self.setup.steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        inputs, targets = batch
        loss = self.setup.task.loss(self.forward(inputs), targets)
        loss.backward()
        self.update()
        self.taken += 1
        return loss.detach()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The model's output."""
        return self.model(inputs)

    @property
    @abstractmethod
    def optimizer(self) -> torch.optim.Optimizer:
        """Whose learning rate follows the schedule."""

    @abstractmethod
    def update(self) -> None:
        """Exchanges what backward left in the gradients, and moves the weights."""

    @abstractmethod
    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Values, float64, averaged over the ranks."""

    @contextmanager
    def judged(self) -> Iterator[nn.Module]:
        """The model with the weights that are to be judged: equal on all ranks."""
        yield self.model

    def report(self) -> dict[str, Any]:
        """What is to be said at the end."""
        return {}

    def clip(self) -> None:
        """Clips the averaged gradient, where the task asks for it."""
        if self.setup.task.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.setup.task.clip)


class Through(Learner):
    """Horovod's DistributedOptimizer with a compression, Horovod's own or the package's.

    Args:
        setup: What it starts from.
        compression: As DistributedOptimizer takes it.
        has_momentum: Whether the optimizer keeps its momentum; a compression may have it instead.
    """

    def __init__(self, setup: Setup, compression: Any, *, has_momentum: bool = True) -> None:
        import horovod.torch as hvd

        super().__init__(setup)
        self._hvd = hvd
        optimizer = setup.task.optimizer(setup.model.parameters(), setup.rate)
        for group in () if has_momentum else optimizer.param_groups:
            without = {"betas": (0.0, group["betas"][1])} if "betas" in group else {"momentum": 0.0}
            group.update(without)
        self._optimizer: Any = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=setup.model.named_parameters(),
            compression=compression,
        )

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._optimizer

    def update(self) -> None:
        if self.setup.task.clip is None:
            self._optimizer.step()
            return
        self._optimizer.synchronize()
        self.clip()
        with self._optimizer.skip_synchronize():
            self._optimizer.step()

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        return self._hvd.allreduce(values, name="mean")


class Dense(Through):
    """Horovod's own allreduce, of gradients as they are or as float16."""

    def __init__(self, setup: Setup, *, fp16: bool = False) -> None:
        import horovod.torch as hvd

        super().__init__(setup, hvd.Compression.fp16 if fp16 else hvd.Compression.none)


class Sparse(Through):
    """A compression of hvd_sparse.

    Args:
        setup: What it starts from.
        mode: As modes.compression_of reads it.
        warmup: Steps at each of WARMUP's densities first; 0: none.
    """

    def __init__(self, setup: Setup, *, mode: str, warmup: int = 0) -> None:
        import hvd_sparse.torch as hvd_sparse

        compression = compression_of(mode)
        if warmup:
            schedule = hvd_sparse.Warmup(steps=warmup, densities=WARMUP)
            compression = replace(compression, warmup=schedule)
        super().__init__(setup, compression, has_momentum=not compression.momentum_correction)
        self._package = hvd_sparse

    def update(self) -> None:
        super().update()
        last = self._package.stats(self._optimizer).last
        if last is not None and last.buckets:
            self.facts = {"density": last.density_reached}
            if last.quality is not None and last.quality.compression_error is not None:
                self.facts["share"] = 1 - last.quality.compression_error

    def report(self) -> dict[str, Any]:
        told: dict[str, Any] = {"summary": self._package.summary(self._optimizer)}
        tuned = self._package.tuning(self._optimizer)
        return told if tuned is None else told | {"tuning": str(tuned)}


class Average(Learner):
    """Each rank trains by itself; all average their weights every so many steps."""

    def __init__(self, setup: Setup, *, every: int) -> None:
        import horovod.torch as hvd

        super().__init__(setup)
        self._hvd = hvd
        self._every = every
        self._optimizer = setup.task.optimizer(setup.model.parameters(), setup.rate)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._optimizer

    @torch.no_grad()
    def update(self) -> None:
        self.clip()
        self._optimizer.step()
        if self.taken % self._every == self._every - 1:
            weights = list(self.model.parameters())
            for weight, mean in zip(
                weights, self._hvd.grouped_allreduce(weights, name="weights"), strict=True
            ):
                weight.copy_(mean)

    @contextmanager
    def judged(self) -> Iterator[nn.Module]:
        with averaged_weights(self.model, self._hvd):
            yield self.model

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        return self._hvd.allreduce(values, name="mean")


class DDP(Learner):
    """PyTorch's DistributedDataParallel over gloo, with a hook of its own or none.

    PowerSGD starts its second sum from the callback of the first. With several buckets these
    callbacks come in another order on each rank, so that gloo pairs sums of different sizes and
    aborts: the hook is given one bucket.
    """

    HOOKS: ClassVar[tuple[str, ...]] = ("", "fp16", "powersgd")

    def __init__(
        self, setup: Setup, *, hook: str = "", matrix_rank: int = 1, dense_steps: int = 50
    ) -> None:
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        if hook not in self.HOOKS:
            raise ValueError(f"hook must be one of {self.HOOKS}, got {hook!r}")
        super().__init__(setup)
        self._dist = dist
        whole = LARGEST_BUCKET_MB if hook == "powersgd" else None
        wrapped = nn.parallel.DistributedDataParallel(setup.model, bucket_cap_mb=whole)
        if hook == "fp16":
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=matrix_rank, start_powerSGD_iter=dense_steps
            )
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        self._wrapped = wrapped
        self._optimizer = setup.task.optimizer(setup.model.parameters(), setup.rate)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._optimizer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._wrapped(inputs)

    def update(self) -> None:
        self.clip()
        self._optimizer.step()

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        total = values.clone()
        self._dist.all_reduce(total)
        return total / self._dist.get_world_size()


@contextmanager
def averaged_weights(model: nn.Module, hvd: Any) -> Iterator[None]:
    """Puts the ranks' average in the place of a model's weights for a while."""
    weights = [weight.detach() for weight in model.parameters()]
    own = [weight.clone() for weight in weights]
    for weight, mean in zip(weights, hvd.grouped_allreduce(weights, name="judged"), strict=True):
        weight.copy_(mean)
    yield
    for weight, before in zip(weights, own, strict=True):
        weight.copy_(before)


def join_ddp(rendezvous: str, interface: str | None) -> None:
    """Makes torch.distributed's group of all ranks that mpirun started."""
    import torch.distributed as dist

    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    dist.init_process_group(
        "gloo", f"tcp://{rendezvous}", rank=rank, world_size=size, timeout=DDP_PATIENCE
    )
