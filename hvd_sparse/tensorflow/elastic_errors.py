"""Errors of TensorFlow's ops as the errors after which Horovod's elastic training begins again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from hvd_sparse.exchange.core_handle import failures

# Of which at least one is in what Horovod's ops tell. Their names are the user's in a graph, or
# ours; what is certain is who speaks, and about what library.
_HOROVOD_SPEAKS = ("Horovod", "hvd_sparse", "gloo/")


def as_horovod_knows_them(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose ops may fail because ranks are gone: then HorovodInternalError is raised.

    It is the ExchangeFailedError with which an exchange has ended, if that is what an op told. All
    other errors stay what they are: those of the script must not let it begin again for ever. But
    an UnknownError, as that of a tf.py_function, is raised as a RuntimeError: Horovod would take it
    for the end of training, without a word.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except tf.errors.OpError as error:
            cause = _cause_of(error)
            if cause is None:
                raise
            raise cause from error

    return wrapper


def _cause_of(error: tf.errors.OpError) -> Exception | None:
    for failure in failures():
        if str(failure) in error.message:
            return failure
    if not isinstance(error, tf.errors.UnknownError):
        return None
    internal = any(text in error.message for text in _HOROVOD_SPEAKS)
    kind: type[Exception] = HorovodInternalError if internal else RuntimeError
    return kind(error.message)
