"""Checkpoints of a whole job: what all ranks share, and what each rank has yet to send.

The folder is that of hvd_sparse/state/checkpoint.py:

* shared.index and shared.data-... are a tf.train.Checkpoint(model=..., optimizer=...), which any
  process can restore;
* shared.json has what else the user keeps;
* rank-3-of-16.npz has rank 3's residuals, velocities, thresholds, steps, plan and random numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.state.checkpoint import Found, Job, checked_policy
from hvd_sparse.state.manifest import SHARED
from hvd_sparse.state.spreading import SavedSum, read_all
from hvd_sparse.tensorflow import compat, saved_state
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.inheritance import summed
from hvd_sparse.tensorflow.keras_optimizer import refuse_amid_passes
from hvd_sparse.tensorflow.local_variables import refuse_to_share
from hvd_sparse.tensorflow.registry import find_exchanges

_SHARED = ".json"
_OWN = ".npz"


def save_checkpoint(
    folder: str | os.PathLike[str], model: Any, optimizer: Any, **extra: Any
) -> None:
    """Writes a checkpoint of the whole job. Collective, between two steps.

    Args:
        folder: Replaced if it is there; a job that dies meanwhile leaves the former one, as
            FOLDER or FOLDER.old.
        model: Of Keras; or a tf.Module; or a list of variables. A tape's residuals are those of its
            trainable variables, or of the list, in that order.
        optimizer: From `hvd.DistributedOptimizer`, or `model.optimizer`; or the one that applies a
            tape's gradients; None where there is none.
        **extra: Kept beside them, as one rank has it: the epoch, ...; of types that JSON has.

    Raises:
        InvalidArgumentError: JSON has no such type; gradients of backward_passes_per_step have
            been added up and not been exchanged yet; or the optimizer has local layers, whose
            weights differ between ranks.
        ExchangeFailedError: The exchange has ended; the ranks may not have taken the same steps.
        OSError: On every rank, if one cannot write, or another job is saving to the same folder.
            The former checkpoint is as it was.
    """
    parts = _Parts(model, optimizer)
    job = Job(hvd)
    text = ""
    with job.together(InvalidArgumentError):
        refuse_amid_passes(optimizer)
        refuse_to_share(optimizer)
        text = _as_json({**parts.shapes(), "extra": extra})
    exchange = parts.exchange()
    if exchange is not None:
        exchange.refuse_if_ended()
    saved = None if exchange is None else saved_state.save(exchange)
    random = parts.random()

    def write_shared(path: Path) -> None:
        parts.shared().write(str(path))
        Path(f"{path}{_SHARED}").write_text(text)

    job.write(
        folder,
        step=None if exchange is None else exchange.steps,
        own=lambda path: saved_state.write(Path(f"{path}{_OWN}"), saved, random),
        shared=write_shared,
    )


def load_checkpoint(
    folder: str | os.PathLike[str], model: Any, optimizer: Any, *, residuals: str = "own"
) -> dict[str, Any] | None:
    """Takes up what `save_checkpoint` wrote. Collective, between two steps.

    In a new job call `prepare` before, so that there is an exchange to take up the residuals.

    Args:
        folder: As it was given to `save_checkpoint`.
        model: Like the one that was saved.
        optimizer: Likewise.
        residuals: What becomes of what was not sent yet. "own": every rank goes on with its own, as
            if nothing had happened; for as many ranks as were saved. "spread": for any number of
            ranks, the sum of all residuals is shared out, entry by entry to one rank after the
            other, so that nothing is lost; thresholds and plan are found anew. "reset": it is lost.

    Returns:
        What `save_checkpoint` was given as `extra`; None if there is no checkpoint on any rank.

    Raises:
        InvalidArgumentError: `residuals` is none of the three.
        CheckpointMismatchError: On every rank, if there is no whole checkpoint where there is a
            folder, it does not fit, the ranks have no checkpoint in common, or there is no exchange
            yet. Nothing has changed, except that LAGS may measure its times anew.
    """
    policy = checked_policy(residuals)
    parts = _Parts(model, optimizer)
    job = Job(hvd)
    found = job.find(folder)
    if found is None:
        return None
    exchange = parts.exchange()
    shared: dict[str, Any] = {}
    with job.together(CheckpointMismatchError):
        shared = _read(found.shared_file(_SHARED))
        _check_shapes(shared, parts.shapes())
    saved, random = None, parts.random()  # nobody shares these
    if policy == "own":
        with job.together(CheckpointMismatchError):
            saved, random = saved_state.read(job.own_file(found, _OWN))
            saved_state.check(exchange, saved)
            _check_random(random, parts.random())
    elif policy == "spread":
        saved = _spread(job, found, exchange)
    weights, numbers = parts.values(), parts.random()
    before = None if exchange is None else saved_state.save(exchange)

    def undo() -> None:
        parts.set_values(weights)
        parts.set_random(numbers)
        if exchange is not None:
            saved_state.load(exchange, before)

    with job.together(CheckpointMismatchError, undo=undo):
        parts.shared().read(str(found.folder / SHARED)).assert_existing_objects_matched()
        parts.set_random(random)
        if exchange is not None:
            saved_state.load(exchange, saved)
    extra: dict[str, Any] = shared["extra"]
    return extra


class _Parts:
    """What a checkpoint is of: a model and an optimizer, which now has all its variables."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._is_list = isinstance(model, Sequence)
        self._model = model
        self._optimizer = optimizer
        self._trained = list(model if self._is_list else model.trainable_variables)
        if optimizer is not None:
            compat.build_optimizer(optimizer, self._trained)

    def exchange(self) -> GradientExchange | None:
        """Of the optimizer, or of the tape's variables."""
        found = [] if self._optimizer is None else find_exchanges(self._optimizer)
        found = found or find_exchanges(self._trained)
        if len(found) > 1:
            raise InvalidArgumentError(
                "a checkpoint takes one exchange, and here are several: the same optimizer, or the "
                "same variables, were exchanged with other variables or options, too"
            )
        return found[0] if found else None

    def shared(self) -> tf.train.Checkpoint:
        """What all ranks share."""
        model = self._tensors(self._model) if self._is_list else self._model
        if self._optimizer is None:
            return tf.train.Checkpoint(model=model)
        return tf.train.Checkpoint(model=model, optimizer=self._optimizer)

    def shapes(self) -> dict[str, list[Any]]:
        """Of all that is shared, in JSON's types."""
        return {
            kind: [[list(one.shape), compat.dtype_of(one).name] for one in variables]
            for kind, variables in (("model", self._variables()), ("optimizer", self._state()))
        }

    def values(self) -> list[NDArray[Any]]:
        """The values of all shared variables."""
        return [one.numpy() for one in self._shared_variables()]

    def set_values(self, values: Sequence[NDArray[Any]]) -> None:
        """Takes up what `values` gave."""
        for variable, value in zip(self._shared_variables(), values, strict=True):
            variable.assign(value)

    def random(self) -> dict[str, NDArray[Any]]:
        """This rank's random numbers: of the layers, and of tf.random's global generator."""
        return {
            "generator": tf.random.get_global_generator().state.numpy(),
            **{f"seed {place}": seed.numpy() for place, seed in enumerate(self._seeds())},
        }

    def set_random(self, random: dict[str, NDArray[Any]]) -> None:
        """Takes up what `random` gave."""
        tf.random.get_global_generator().state.assign(random["generator"])
        for place, seed in enumerate(self._seeds()):
            seed.assign(random[f"seed {place}"])

    def _variables(self) -> list[Any]:
        return list(self._model if self._is_list else self._model.variables)

    def _state(self) -> list[Any]:
        return [] if self._optimizer is None else compat.variables_of(self._optimizer)

    def _shared_variables(self) -> list[Any]:
        return self._tensors([*self._variables(), *self._state()])

    def _seeds(self) -> list[Any]:
        return self._tensors([one for one in self._variables() if compat.is_seed(one)])

    @staticmethod
    def _tensors(variables: Sequence[Any]) -> list[Any]:
        return [compat.tensor_of(one) for one in variables]


def _read(path: Path) -> dict[str, Any]:
    """Reads the shared record beside TensorFlow's own files."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:  # of versions that kept no digests
        raise CheckpointMismatchError(f"{path} is damaged: {error}") from None
    return content


def _as_json(thing: dict[str, Any]) -> str:
    try:
        return json.dumps(thing)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"extra must be of types that JSON has: {error}") from None


def _check_shapes(saved: dict[str, Any], here: dict[str, list[Any]]) -> None:
    for kind, variables in here.items():
        if saved[kind] != variables:
            raise CheckpointMismatchError(
                f"the {kind} that was saved has {len(saved[kind])} variables, and this one has "
                f"{len(variables)}, or of other shapes or types"
            )


def _check_random(saved: dict[str, NDArray[Any]], here: dict[str, NDArray[Any]]) -> None:
    shapes = [{name: one.shape for name, one in random.items()} for random in (saved, here)]
    if shapes[0] != shapes[1]:
        raise CheckpointMismatchError(
            f"random numbers were saved of {sorted(saved)}, and here are {sorted(here)}"
        )


def _spread(job: Job, found: Found, exchange: GradientExchange | None) -> dict[str, Any]:
    """State with this rank's share of the sum of all saved residuals."""
    if not all(job.everywhere(exchange is not None and exchange.world.size == job.size)):
        raise CheckpointMismatchError(
            'residuals="spread" needs an exchange between all ranks of the job, two at least: call '
            'prepare() before, or take residuals="reset"'
        )
    assert exchange is not None
    total = SavedSum(saved_state.layers_of(exchange))

    def add(path: Path) -> dict[str, Any] | None:
        saved, _ = saved_state.read(path)
        if saved is None:  # of a single rank, which exchanged nothing
            return None
        total.add(saved["layers"], saved["residuals"])
        return {"step": saved["step"], "rate": saved["rate"]}

    common = read_all(job, found, _OWN, add) or {}
    share = total.share(summed, rank=job.rank, size=job.size)
    return {
        **saved_state.save(exchange),
        **common,
        "residuals": share,
        "states": {},
        "velocities": {},
        "tuning": None,
    }
