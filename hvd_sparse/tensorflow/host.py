"""Horovod as the library that runs the ranks of a TensorFlow exchange.

Operations run on threads of their own. Each name is a graph of its own: in eager mode Horovod's
operations of one kind share a name, so two threads would collide.
"""

from __future__ import annotations

import concurrent.futures
import functools
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from numpy.typing import NDArray

from hvd_sparse.errors import fail_like
from hvd_sparse.places.place import Place
from hvd_sparse.ranks.world import World
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.ops import CPU

_Result = TypeVar("_Result")

fail_like(HorovodInternalError)


class _Pending(Generic[_Result]):
    """An operation of Horovod's on a thread of its own.

    Args:
        call: Runs the operation.
        name: Its name.
    """

    def __init__(self, call: Callable[[], _Result], name: str) -> None:
        self.name = name
        self._future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

        def run() -> None:
            try:
                self._future.set_result(call())
            except BaseException as error:
                self._future.set_exception(error)

        threading.Thread(target=run, daemon=True, name="hvd_sparse message").start()

    def done(self) -> bool:
        return self._future.done()

    def result(self) -> _Result:
        return self._future.result()


class HorovodHost:
    """The ranks of a process set; a Host.

    Args:
        process_set: The process set.
        device: TensorFlow's name of the device of the gradients.
    """

    name = "Horovod"
    failure: type[Exception] = HorovodInternalError
    timeout: float | None = None

    def __init__(self, process_set: Any, *, device: str) -> None:
        self._process_set = process_set
        self._device = device
        self._graphs: dict[str, Callable[..., Any]] = {}

    def world(self) -> World:
        """Returns the ranks."""
        return World.from_horovod(hvd, self._process_set)

    def allgather(self, array: NDArray[Any], name: str) -> _Pending[NDArray[Any]]:
        """Joins the arrays of all ranks."""
        return self._start(hvd.allgather, array, name)

    def add_up(self, array: NDArray[Any], name: str) -> _Pending[NDArray[Any]]:
        """Sums arrays over the ranks."""
        return self._start(hvd.allreduce, array, name, op=hvd.Sum)

    def timed_sum(self, nbytes: int, values: str, name: str, place: Place) -> _Pending[float]:
        """Sums so many bytes at a place; the result is the time in seconds."""
        dtype = tf.as_dtype(values)
        allreduce = self._graph(hvd.allreduce, tf.TensorSpec((None,), dtype), name, op=hvd.Sum)

        def seconds() -> float:
            clock = place.clock
            with tf.device(self._device):
                tensor = tf.ones(nbytes // dtype.size)  # zeros may be added faster as float16
                made = clock.mark()
                clock.seconds(made, made)  # waits until the tensor is there
                begin = clock.mark()
                total = compat.call_as_graph(allreduce, tf.cast(tensor, dtype))
                tf.cast(total, tf.float32)
                end = clock.mark()
            found = clock.seconds(begin, end)
            clock.release([made, begin, end])
            return found

        return _Pending(seconds, name)

    def _start(
        self, operation: Callable[..., Any], array: NDArray[Any], name: str, **options: Any
    ) -> _Pending[NDArray[Any]]:
        spec = tf.TensorSpec((None,) * array.ndim, tf.as_dtype(array.dtype))
        graph = self._graph(operation, spec, name, **options)

        def call() -> NDArray[Any]:
            with tf.device(CPU):  # a GPU would queue it behind all earlier work
                return np.asarray(compat.call_as_graph(graph, tf.constant(array)).numpy())

        return _Pending(call, name)

    def _graph(
        self, operation: Callable[..., Any], spec: tf.TensorSpec, name: str, **options: Any
    ) -> Callable[..., Any]:
        """Returns the graph of an operation, which is traced once."""
        if name not in self._graphs:
            self._graphs[name] = tf.function(
                functools.partial(
                    operation,
                    name=name,
                    ignore_name_scope=True,
                    process_set=self._process_set,
                    **options,
                ),
                input_signature=[spec],
                autograph=False,
            )
        return self._graphs[name]
