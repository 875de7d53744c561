"""Exchanges of single arrays, for sparse_allreduce of PyTorch's tensors and of arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from hvd_sparse.compression import Compression, Dense
from hvd_sparse.errors import ExchangeFailedError, HvdSparseError, InvalidArgumentError
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.planned_bucket import add_tensor_bucket
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.ranks.agreement import agree_on_call
from hvd_sparse.ranks.world import World


@dataclass(frozen=True)
class Ranks:
    """The ranks of a call.

    Attributes:
        key: Number or name of their process set or group; another set may get it after that one.
        group: The process set or group.
        numbers: Their numbers in the whole job, for messages.
        name: Their name, for messages.
        world: Returns them as a world. Collective.
    """

    key: Hashable
    group: object
    numbers: Sequence[int]
    name: str
    world: Callable[[], World]

    @classmethod
    def of_process_set(cls, hvd: ModuleType, process_set: Any) -> Ranks:
        """Returns the ranks of a process set of Horovod.

        Args:
            hvd: `horovod.torch` or `horovod.tensorflow`.
            process_set: The process set.
        """
        number = process_set.process_set_id
        return cls(
            number,
            process_set,
            process_set.ranks,
            f"process set {number}",
            lambda: World.from_horovod(hvd, process_set),
        )


_WORDS = 4  # numbers below 2^16 in the digest of a call


class _Tensor(NamedTuple):
    """The tensors of equal calls.

    Attributes:
        steps: Their steps.
        states: The sparsifier's state.
        device: Their device on this rank.
    """

    steps: ArraySteps
    states: np.ndarray[Any, Any]
    device: str


class _Channel:
    """The exchange of some ranks.

    It has a bucket per (numel, dtype, compression, name, op, device type). A rank's bucket stays
    on the device on which it was first used.

    The first bucket sums up the ranks' digests of a call that is made for the first time. So a rank
    that refuses an argument can end that wait, as any other, by ending the exchange.

    Args:
        ranks: The ranks.
        problem: The error due to which this rank does not call, if there is one; raised here.
    """

    def __init__(self, ranks: Ranks, problem: Exception | None = None) -> None:
        self.group = ranks.group
        self._ranks = ranks.numbers
        self._world = ranks.world()
        self.size = self._world.size
        self.exchange = Exchange.between_ranks(
            self._world, name=f"sparse_allreduce in {ranks.name}", problem=problem
        )
        self._digests = np.zeros(_WORDS * self.size, np.float32)
        label = "arguments of sparse_allreduce"
        number = add_tensor_bucket(self.exchange, label, self._digests.size, Dense())
        self._comparison = ArraySteps(self.exchange, number)
        self._tensors: dict[tuple[object, ...], _Tensor] = {}

    def tensor(
        self,
        name: str | None,
        array: Buffer,
        compression: Compression,
        reduction: Reduction,
        device: str,
    ) -> _Tensor:
        """Returns a tensor's steps and state; at its first use, all ranks agree on it."""
        numel, kind = array.numel, device.partition(":")[0]
        call: dict[str, str | int] = {
            "numel": numel,
            "dtype": array.dtype,
            "compression": repr(compression),
            "name": name or "",
            "op": "Average" if reduction.averages else "Sum",
            "device": kind,
        }
        key = tuple(call.values())
        if key not in self._tensors:
            self._compare(call)
            label = name or f"tensor of {numel}"
            number = add_tensor_bucket(self.exchange, label, numel, compression, device)
            output_scale = reduction.scales(self.size)[1]
            steps = ArraySteps(self.exchange, number, output_scale=output_scale)
            self._tensors[key] = _Tensor(steps, np.zeros((1, 4), np.float32), device)
        tensor = self._tensors[key]
        if device != tensor.device:
            raise InvalidArgumentError(
                f"sparse_allreduce of such a tensor was on '{tensor.device}' before, and now is on "
                f"'{device}': give it another name"
            )
        return tensor

    def _compare(self, call: dict[str, str | int]) -> None:
        """Raises InvalidArgumentError on all ranks if they do not make the same call."""
        if self.size == 1:
            return
        digest = hashlib.sha256(repr(call).encode()).digest()[: 2 * _WORDS]
        rows = self._digests.reshape(self.size, _WORDS)
        rows[:] = 0
        rows[self._world.rank] = np.frombuffer(digest, "<u2")
        residual, states = np.zeros_like(self._digests), np.zeros((1, 4), np.float32)
        self._comparison.run(
            [Buffer.of(self._digests)], residual=Buffer.of(residual), states=Buffer.of(states)
        )
        if (rows != rows[0]).any():
            agree_on_call(self._world, self._ranks, "sparse_allreduce", **call)


class Channels:
    """The exchanges of one framework's calls, one for each process set or group."""

    def __init__(self) -> None:
        self._channels: dict[Hashable, _Channel] = {}

    def allreduce(
        self,
        array: Buffer,
        residual: Buffer,
        *,
        compression: Compression,
        reduction: Reduction,
        name: str | None,
        ranks: Ranks,
        device: str = "cpu",
        stream: int = 0,
    ) -> None:
        """Overwrites an array with the result of its sparse exchange. Collective.

        Args:
            array: The array, not empty; read and then written.
            residual: The array's residual: float32, with as many elements; updated.
            compression: The compression, whose density, sparsifier, collective and wire apply.
            reduction: Average or sum.
            name: Distinguishes arrays of the same size.
            ranks: The ranks, this one among them.
            device: Device of array and residual: "cpu", or "cuda:0" and the like.
            stream: On a device, the stream that writes the array before, and reads it after.

        Raises:
            InvalidArgumentError: An argument differs between ranks, or from an earlier call.
            NonFiniteGradientError: On every rank, if the array is not finite on one. The finite
                entries are then in the residual.
            ExchangeFailedError: Another rank ended the exchange, or died. The next call builds it
                anew.
        """
        channel = self._of(ranks)
        exchange = channel.exchange
        try:
            tensor = channel.tensor(name, array, compression, reduction, device)
            tensor.steps.run(
                [array], residual=residual, states=Buffer.of(tensor.states), stream=stream
            )
        except BaseException as error:
            has_ended = isinstance(error, ExchangeFailedError)
            if has_ended or not isinstance(error, HvdSparseError):  # Ctrl-C: it may be in flight
                del self._channels[ranks.key]
                exchange.close()  # the core no longer uses the memory
            raise

    @contextmanager
    def refusing(self, ranks: Ranks) -> Iterator[None]:
        """Tells the other ranks, which raise as well, if the block refuses this rank's arguments.

        Args:
            ranks: The ranks that make the call.
        """
        try:
            yield
        except Exception as error:
            with suppress(ExchangeFailedError):  # another rank has refused, too
                self._of(ranks, problem=error)
            raise

    def _of(self, ranks: Ranks, *, problem: Exception | None = None) -> _Channel:
        """Returns the channel of these ranks, or, for a problem of this rank, ends it."""
        key = ranks.key
        channel = self._channels.get(key)
        if channel is not None and channel.group is not ranks.group:
            channel.exchange.close()  # its set was removed, and this one has its number
        try:
            if channel is not None:
                channel.exchange.check()
        except ExchangeFailedError:
            del self._channels[key]
            raise
        except HvdSparseError:  # closed: Horovod was shut down and initialised again
            channel = None
        if channel is None:
            channel = self._channels[key] = _Channel(ranks, problem)
        elif problem is not None:
            del self._channels[key]
            channel.exchange.fail(f"{type(problem).__name__}: {problem}")
            channel.exchange.close()
        return channel
