"""Small messages between the ranks, sent through Horovod in the background.

They are sent from threads of their own and received a step later. The wait ends if the exchange
ends, and at the general deadline. Each kind is a graph of its own: in eager mode Horovod's
operations of one kind share a name, so two threads would collide.
"""

from __future__ import annotations

import concurrent.futures
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.step_clock import Clock
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.ops import CPU
from hvd_sparse.waiting import wait_until

_Result = TypeVar("_Result")


class _InBackground(Generic[_Result]):
    """A call on a thread of its own; waiting for its result fails if the exchange fails.

    Args:
        call: A function that runs a Horovod operation.
        exchange: The exchange whose failure ends the wait.
        name: The operation's name in Horovod.
    """

    def __init__(self, call: Callable[[], _Result], exchange: Exchange, name: str) -> None:
        self._exchange = exchange
        self._name = name
        self._future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

        def run() -> None:
            try:
                self._future.set_result(call())
            except BaseException as error:
                self._future.set_exception(error)

        threading.Thread(target=run, daemon=True, name="hvd_sparse message").start()

    def result(self) -> _Result:
        operation = f"Horovod's operation '{self._name}'"
        wait_until(self._future.done, self._exchange.check, operation)
        return self._future.result()


class Messages:
    """The message channel between the ranks of one exchange.

    Args:
        prefix: Prefix of the operations' names, unique to the exchange, the same on all ranks.
        process_set: Horovod's process set.
        exchange: The exchange whose failure ends every wait.
    """

    def __init__(self, prefix: str, *, process_set: Any, exchange: Exchange) -> None:
        self._exchange = exchange
        self._measured, self._order = (
            _Rows(f"{prefix}.{name}", process_set, exchange)
            for name in ("measured", "launch_order")
        )
        self._decision = _Lines(f"{prefix}.decision", process_set, exchange)
        self._total = _Sum(f"{prefix}.quality", process_set)
        self._timed = _Sum(f"{prefix}.allreduce", process_set)

    def gather(self, numbers: Sequence[float]) -> Callable[[], list[list[float]]]:
        """Gathers every rank's numbers on all ranks, bit for bit; each rank gives equally many."""
        return self._measured.gather(numbers)

    def broadcast(self, text: str) -> Callable[[], str]:
        """Sends rank 0's text, one line, to all ranks, which pass an empty one."""
        lines = self._decision.gather(text)
        return lambda: lines()[0]

    def broadcast_order(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
        """Sends rank 0's integers to all ranks; each rank gives equally many."""
        rows = self._order.gather(numbers)
        return lambda: [int(number) for number in rows()[0]]

    def add_up(self, array: NDArray[Any]) -> NDArray[Any]:
        """Returns the sum of all ranks' float32 arrays, flat and of one length. Blocks."""

        def sum_up() -> NDArray[Any]:
            with tf.device(CPU):  # the arrays lie there
                return np.asarray(self._total.of(tf.constant(array)).numpy())

        return _InBackground(sum_up, self._exchange, self._total.name).result()

    def timed_allreduce(self, device: str, clock: Clock) -> Callable[[int], float]:
        """Returns a function that times Horovod's sum of a float32 tensor of a number of bytes.

        Args:
            device: The tensor's device.
            clock: The device's clock.
        """

        def allreduce(nbytes: int) -> float:
            with tf.device(device):
                tensor = tf.zeros(nbytes // 4)
                made = clock.mark()
                clock.seconds(made, made)  # waits until the tensor is there
                begin = clock.mark()
                self._timed.of(tensor)
                end = clock.mark()
            seconds = clock.seconds(begin, end)
            clock.release([made, begin, end])
            return seconds

        name = self._timed.name
        return lambda nbytes: _InBackground(
            lambda: allreduce(nbytes), self._exchange, name
        ).result()


class _Allgather:
    """Horovod's allgather of a small array from each rank, in the background, under one name."""

    SPEC: ClassVar[tf.TensorSpec]

    def __init__(self, name: str, process_set: Any, exchange: Exchange) -> None:
        self._name = name
        self._exchange = exchange
        self._allgather = tf.function(
            functools.partial(
                hvd.allgather, name=name, ignore_name_scope=True, process_set=process_set
            ),
            input_signature=[self.SPEC],
            autograph=False,
        )

    def _start(self, own: Any) -> _InBackground[NDArray[Any]]:
        def send() -> NDArray[Any]:
            with tf.device(CPU):  # a GPU would queue it behind all earlier work
                array = tf.constant(own, self.SPEC.dtype)
                return np.asarray(compat.call_as_graph(self._allgather, array).numpy())

        return _InBackground(send, self._exchange, self._name)


class _Rows(_Allgather):
    """A row of float64 numbers from each rank, equally many."""

    SPEC = tf.TensorSpec((1, None), tf.float64)

    def gather(self, numbers: Sequence[float]) -> Callable[[], list[list[float]]]:
        """Sends this rank's numbers; returns a function that waits for those of all ranks."""
        sent = self._start([numbers])
        return lambda: [[float(number) for number in row] for row in sent.result()]


class _Lines(_Allgather):
    """A line of text from each rank."""

    SPEC = tf.TensorSpec((None,), tf.uint8)

    def gather(self, text: str) -> Callable[[], list[str]]:
        """Sends this rank's line; returns a function that waits for those of all ranks."""
        sent = self._start(np.frombuffer(f"{text}\n".encode(), np.uint8))
        return lambda: sent.result().tobytes().decode().splitlines()


class _Sum:
    """Horovod's sum of float32 tensors, flat, under one name."""

    def __init__(self, name: str, process_set: Any) -> None:
        self.name = name
        self._allreduce = tf.function(
            functools.partial(
                hvd.allreduce,
                op=hvd.Sum,
                name=name,
                ignore_name_scope=True,
                process_set=process_set,
            ),
            input_signature=[tf.TensorSpec((None,), tf.float32)],
            autograph=False,
        )

    def of(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the sum of all ranks' tensors, which have one length."""
        return compat.call_as_graph(self._allreduce, tensor)
