"""The modes of a replay: trainings whose gradients ranks exchange, by Horovod or under DDP."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from ddp_methods import join_ddp, wrapped
from gloo_world import prepare
from machine import Usage
from modes import WAITING, call_of, compression_of
from replayed import Parameter, ReplayedModule, Training
from tuned import Settling, settle

from hvd_sparse.pytorch.attachment import attachment_of

SAMPLED = 50_000  # entries of the largest tensor in which conservation is checked
LEARNING_RATE = 0.1
ROUNDING = 1e-5  # of an average, whose gradients are small numbers
HALF_EPSILON = 2.0**-11  # relative rounding error of float16
FACTORS_EPSILON = 1e-5  # of products of PowerSGD's factors, relative to the largest entry
LEAVING_SECONDS = 0.5
POWER_SGD_DENSE_STEPS = 2  # the fewest that it takes


class Standing(torch.optim.SGD):
    """Changes nothing, so that parameters need no memory; its hooks run as usual."""

    def step(self, closure: Any = None) -> None:
        pass


class Ranks(ABC):
    """The ranks of a job, and the library that connects them.

    Attributes:
        transport: The transport of the library's own sums.
        rank: This rank.
        size: Number of ranks.
    """

    transport: str
    rank: int
    size: int

    @abstractmethod
    def variant(self, mode: str, training: Training) -> Variant:
        """Returns a mode's training, as named on the command line."""

    @abstractmethod
    def barrier(self) -> None:
        """Waits for all ranks."""

    @abstractmethod
    def everybody(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Returns all ranks' tensors, stacked."""

    def leave(self) -> None:
        """Ends the connection. Collective."""
        self.barrier()


class HorovodRanks(Ranks):
    """Ranks of Horovod.

    Args:
        gloo: HOST:PORT for Horovod over Gloo; None: MPI.
        interface: Network interface for Gloo.
    """

    def __init__(self, gloo: str | None, interface: str | None) -> None:
        if gloo is not None:
            prepare(gloo, interface or "lo")
        import horovod.torch as hvd

        hvd.init()
        self._hvd = hvd
        self.transport = "MPI" if gloo is None else "Gloo"
        self.rank, self.size = hvd.rank(), hvd.size()

    def variant(self, mode: str, training: Training) -> Variant:
        return ByHorovod(mode, training, self)

    def barrier(self) -> None:
        self._hvd.barrier()

    def everybody(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return self._hvd.allgather(tensor[None], name=name)


class GroupRanks(Ranks):
    """Ranks of torch.distributed, over gloo.

    Args:
        rendezvous: HOST:PORT on the first host.
        interface: Network interface.
        bucket_mb: DDP's bucket_cap_mb, but for PowerSGD; None: DDP's default.

    Raises:
        ValueError: The number of ranks is no power of two: averages would be rounded.
    """

    def __init__(self, rendezvous: str, interface: str | None, bucket_mb: int | None) -> None:
        import torch.distributed as dist

        join_ddp(rendezvous, interface)
        self._dist = dist
        # Parameters share one number: they are equal, and DDP could not broadcast them.
        self._options = {"bucket_mb": bucket_mb, "init_sync": False}
        self.transport = "DDP"
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        if self.size & (self.size - 1):
            raise ValueError(f"ranks under DDP must be a power of two, got {self.size}")

    def variant(self, mode: str, training: Training) -> Variant:
        return ByDdp(mode, training, self, self._options)

    def barrier(self) -> None:
        self._dist.barrier()

    def everybody(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        all_ = [torch.empty_like(tensor) for _ in range(self.size)]
        self._dist.all_gather(all_, tensor.contiguous())
        return torch.stack(all_)

    def leave(self) -> None:
        super().leave()
        # Gloo's threads take the GIL to drop their last tensors. The end of the group waits for
        # them and holds it, if this process does not let them have it first.
        time.sleep(LEAVING_SECONDS)
        self._dist.destroy_process_group()  # its threads would end the process with SIGABRT


@dataclass
class Log:
    """Measurements of one mode on one rank."""

    steps: list[tuple[float, float, float]] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    bytes_sent: float = 0.0


class Variant(ABC):
    """A mode: a training of its own, whose gradient memory all modes share.

    Attributes:
        sparse: True for a compression of hvd_sparse.
        settling: How an adaptive compression chose its plan; None before, and for other modes.
        leaves_flying: True if step() does not wait for its updates.
        optimizer: The optimizer, whose step uses what was exchanged.
    """

    def __init__(self, mode: str, training: Training, ranks: Ranks) -> None:
        self.mode, self.training, self.ranks = mode, training, ranks
        self.log = Log()
        self.steps = 0
        self.settling: Settling | None = None
        self.sparse = self.leaves_flying = False
        values = [value for _, value in training.named_parameters()]
        self.optimizer: Any = Standing(values, lr=LEARNING_RATE)

    @property
    def dense(self) -> bool:
        """True if whole gradients are exchanged, be it by a tuner's decision."""
        return self.settling is not None and not self.settling.sparse

    @property
    def needs_few_steps(self) -> bool:
        """True if one step tells as much as many do: it consists of waits alone, or is dense."""
        return self.dense or self.mode == "compute"

    def end_turn(self) -> None:
        """Waits for what the last step has left in flight."""
        if self.leaves_flying:
            self.optimizer.synchronize()

    def settle(self) -> None:
        """Takes the steps until a mode exchanges as it will from then on."""
        if self.sparse:
            self.settling = settle(self.optimizer, self.step)

    def step(self, *, looks: bool = False) -> tuple[float, float, float]:
        """Takes a training step; returns the seconds of forward, backward and the wait after it.

        If it `looks` at the averages, they are waited for before the optimizer's step.
        """
        marks = [time.perf_counter()]
        self.optimizer.zero_grad()
        loss = self._forward()
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        if looks:
            self.optimizer.synchronize()
        self.optimizer.step()
        marks.append(time.perf_counter())
        self.steps += 1
        first, second, third = (b - a for a, b in pairwise(marks))
        return first, second, third

    def bytes_of_step(self) -> float | None:
        """Returns the bytes that this rank sent in the last step; None if nobody counts them."""
        if self.mode == "compute":
            return 0.0
        if not self.sparse:
            return None
        last = self.optimizer.exchange.stats.last
        return 0.0 if last is None else last.bytes_sent + self._in_a_ring(last.dense_bytes)

    def verify(self) -> bool:
        """Returns true if a step leaves the same bits on all ranks and loses nothing. Collective.

        Modes with residuals take one more step, because they must be known before and after it.
        Others check their last step, which no other mode's step has followed.
        """
        largest = max(self.training.parameters, key=lambda p: p.tensor.numel)
        before = self._residual(largest)
        if before is not None:
            self.step(looks=self.leaves_flying)
        own = torch.empty_like(largest.gradient)
        self.training.gradients.write(own, tensor=largest.number, step=self.steps - 1)
        left, result = own.view(-1)[:SAMPLED].double(), _result(largest)[:SAMPLED].double()
        if before is not None:
            after = self._residual(largest)
            assert after is not None
            left += (before - after)[:SAMPLED]
        if self.mode == "compute":
            return torch.equal(left, result)
        everybody = self.ranks.everybody(left, f"verify {self.mode}")
        off = (everybody.sum(0) / self._divisor() - result).abs()
        digest = hashlib.sha256()
        for parameter in self.training.parameters:
            digest.update(memoryview(_result(parameter).numpy()).cast("B"))
        bits = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        digests = self.ranks.everybody(bits, f"bits {self.mode}")
        same = bool((digests == digests[0]).all())
        return same and bool((off <= self._allowed(everybody)).all()) and bool(result.any())

    def _forward(self) -> torch.Tensor:
        return self.training.forward(self.steps)

    def _in_a_ring(self, nbytes: int) -> float:
        return 2 * (self.ranks.size - 1) / self.ranks.size * nbytes

    def _residual(self, parameter: Parameter) -> torch.Tensor | None:
        """Returns a copy of a parameter's residual, flat, float64; None if the mode has none."""
        if not self.sparse:
            return None
        attachment = attachment_of(self.optimizer)
        exchange = None if attachment is None else attachment.exchange
        for layer, residual in () if exchange is None else exchange.steps.state.residuals():
            if layer == self._name(parameter):
                return residual.double()
        return torch.zeros(parameter.tensor.numel, dtype=torch.float64)

    def _name(self, parameter: Parameter) -> str:
        return parameter.tensor.name

    @abstractmethod
    def _divisor(self) -> int:
        """Returns what the sum over the ranks is divided by."""

    def _allowed(self, everybody: torch.Tensor) -> torch.Tensor:
        """Returns the largest errors of a result, by entry; all ranks' contributions are given."""
        return torch.zeros_like(everybody[0])


class ByHorovod(Variant):
    """A mode of Horovod's DistributedOptimizer: compute, dense, or a compression."""

    def __init__(self, mode: str, training: Training, ranks: Ranks) -> None:
        import horovod.torch as hvd

        super().__init__(mode, training, ranks)
        if mode == "compute":
            return
        compression = hvd.Compression.none
        self.sparse = mode != "dense"
        if self.sparse:
            import hvd_sparse.torch  # noqa: F401  teaches Horovod sparse compressions

            compression = compression_of(mode)
            self.leaves_flying = mode.endswith(WAITING)
        if self.leaves_flying:  # the optimizer updates its parameters in parts
            training.give_values_memory()
            values = [value for _, value in training.named_parameters()]
            self.optimizer = torch.optim.SGD(values, lr=0.0)
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer,
            named_parameters=training.named_parameters(),
            compression=compression,
            op=hvd.Sum,
            **({"wait_in_forward": True} if self.leaves_flying else {}),
        )

    @property
    def dense(self) -> bool:
        return self.mode == "dense" or super().dense

    def bytes_of_step(self) -> float | None:
        if self.mode != "dense":
            return super().bytes_of_step()
        return self._in_a_ring(sum(4 * one.tensor.numel for one in self.training.parameters))

    def _divisor(self) -> int:
        return 1


class ByDdp(Variant):
    """A mode of DistributedDataParallel.

    Modes are compute, DDP with options of ddp_methods.wrapped, such as 'DDP(hook="fp16")', and
    compressions, which hvd_sparse.ddp.attach exchanges. `common` are options of all of them.
    """

    def __init__(self, mode: str, training: Training, ranks: Ranks, common: dict[str, Any]) -> None:
        super().__init__(mode, training, ranks)
        self._module: Any = ReplayedModule(training)
        self._hook, self._is_robust = "", False
        self._power_sgd: Any = None
        if mode == "compute":
            return
        name, options = call_of(mode)
        self.sparse = name != "DDP"
        if self.sparse:
            from hvd_sparse.ddp import attach

            self._module, _ = wrapped(self._module, **common)
            compression = compression_of(mode)
            self._is_robust = getattr(compression, "average", None) is not None
            attach(self._module, self.optimizer, compression)
            return
        self._hook = options.get("hook", "")
        options = {"dense_steps": POWER_SGD_DENSE_STEPS, **common, **options}
        self._module, self._power_sgd = wrapped(self._module, **options)

    @property
    def dense(self) -> bool:
        own = not self.sparse and self.mode != "compute" and self._power_sgd is None
        return own or super().dense

    def settle(self) -> None:
        super().settle()
        for _ in range(0 if self._power_sgd is None else self._power_sgd.start_powerSGD_iter):
            self.step()

    def _forward(self) -> torch.Tensor:
        return self._module(self.steps)

    def _name(self, parameter: Parameter) -> str:
        return ReplayedModule.name_of(parameter)

    def _residual(self, parameter: Parameter) -> torch.Tensor | None:
        if self._power_sgd is None:
            return super()._residual(parameter)
        (errors,) = self._power_sgd.error_dict.values()  # of its only bucket, in order of arrival
        offset = 0
        for layer in reversed(self.training.layers):
            for one in layer:
                if one is parameter:
                    return errors[offset : offset + one.tensor.numel].double()
                offset += one.tensor.numel
        raise AssertionError(f"{parameter.tensor.name} belongs to no layer")

    def _divisor(self) -> int:
        return self.ranks.size

    def _allowed(self, everybody: torch.Tensor) -> torch.Tensor:
        if self._hook == "fp16":
            return HALF_EPSILON * everybody.abs().sum(0)  # each of its sums is rounded
        if self._is_robust:  # between the least and the largest value of any rank
            return everybody.max(0).values - everybody.min(0).values + ROUNDING
        if self._power_sgd is not None:
            return torch.full_like(everybody[0], FACTORS_EPSILON * float(everybody.abs().max()))
        return super()._allowed(everybody)


def _result(parameter: Parameter) -> torch.Tensor:
    """Returns what a step has left as a parameter's gradient, flat."""
    grad = parameter.value.grad
    assert grad is not None
    return grad.view(-1)
