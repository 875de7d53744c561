"""Checkpoints of a whole job: the state that all ranks share, and each rank's residuals.

hvd_sparse/state/checkpoint.py describes the folder. Its files here:

* shared.index and shared.data-... are a tf.train.Checkpoint(model=..., optimizer=...), which any
  process can restore;
* shared.json holds the user's `extra` and the shapes of the variables;
* rank-3-of-16.npz holds rank 3's residuals, velocities, thresholds, steps, plan and random state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from numpy.typing import NDArray

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.exchange.core_handle import explaining
from hvd_sparse.ranks.world import World
from hvd_sparse.state.checkpoint import Found, Job, advising, checked_folder, checked_policy
from hvd_sparse.state.manifest import SHARED
from hvd_sparse.state.saved_exchange import require_unit
from hvd_sparse.state.spreading import SavedSum, read_all
from hvd_sparse.tensorflow import compat, saved_state
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.inheritance import summed
from hvd_sparse.tensorflow.keras_optimizer import refuse_amid_step
from hvd_sparse.tensorflow.local_steps import begin_interval
from hvd_sparse.tensorflow.local_variables import refuse_to_share
from hvd_sparse.tensorflow.registry import find_exchanges

_SHARED = ".json"
_OWN = ".npz"


def save(
    folder: str | os.PathLike[str], model: Any, target: Any, optimizer: Any, extra: dict[str, Any]
) -> None:
    """Writes a checkpoint; see `Exchange.save_checkpoint`.

    Args:
        folder: See there.
        model: See there.
        target: The optimizer that exchanges, or the variables of a tape's exchange.
        optimizer: The optimizer that applies a tape's gradients; None if there is none.
        extra: See there.
    """
    job = _job()
    parts, exchange, text = None, None, ""
    with job.fail_together(InvalidArgumentError):
        checked_folder(folder)
        optimizer = _stepping(target, optimizer)
        parts = _Parts(model, optimizer, target)
        refuse_amid_step(optimizer)
        refuse_to_share(optimizer)
        text = _as_json({**parts.shapes(), "extra": extra})
        exchange = parts.exchange()
    assert parts is not None
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


def load(
    folder: str | os.PathLike[str], model: Any, target: Any, optimizer: Any, *, residuals: str
) -> dict[str, Any] | None:
    """Loads what `save` wrote, with arguments like its own; see `Exchange.load_checkpoint`."""
    job = _job()
    parts, exchange, policy = None, None, ""
    with job.fail_together(InvalidArgumentError):
        policy = checked_policy(residuals)
        checked_folder(folder)
        optimizer = _stepping(target, optimizer)
        parts = _Parts(model, optimizer, target)
        exchange = parts.exchange()
    assert parts is not None
    job.agree("load_checkpoint", residuals=policy)
    found = job.find(folder)
    if found is None:
        return None
    shared: dict[str, Any] = {}
    with job.fail_together(CheckpointMismatchError):
        shared = _read(found.shared_file(_SHARED))
        _check_shapes(shared, parts.shapes())
    saved, random = None, parts.random()  # each rank has its own
    if policy == "own":
        with job.fail_together(CheckpointMismatchError), advising():
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

    with job.fail_together(CheckpointMismatchError, undo=undo):
        parts.shared().read(str(found.folder / SHARED)).assert_existing_objects_matched()
        parts.set_random(random)
        if exchange is not None:
            saved_state.load(exchange, saved)
    begin_interval(optimizer)
    extra: dict[str, Any] = shared["extra"]
    return extra


def _stepping(target: Any, optimizer: Any) -> Any:
    """Returns the optimizer whose state is saved; None if there is none."""
    if isinstance(target, (list, tuple)):
        return optimizer
    if optimizer is not None:
        raise InvalidArgumentError(
            "optimizer must be None where the exchange is an optimizer's, which saves its own"
        )
    return target


def _job() -> Job:
    world = World.from_horovod(hvd, hvd.global_process_set)
    return Job(explaining(world, HorovodInternalError))


class _Parts:
    """The contents of a checkpoint: a model and an optimizer, which is built here."""

    def __init__(self, model: Any, optimizer: Any, target: Any) -> None:
        self._is_list = isinstance(model, Sequence)
        if not self._is_list and not hasattr(model, "trainable_variables"):
            raise InvalidArgumentError(
                "model must be a Keras model, a tf.Module or a list of variables, got "
                f"{type(model).__name__}"
            )
        self._model = model
        self._optimizer = optimizer
        self._trained = list(model if self._is_list else model.trainable_variables)
        self._exchanged = target if isinstance(target, (list, tuple)) else self._trained
        if optimizer is not None:
            compat.build_optimizer(optimizer, self._trained)

    def exchange(self) -> GradientExchange | None:
        """Returns the exchange of the optimizer, or of the tape's variables."""
        found = [] if self._optimizer is None else find_exchanges(self._optimizer)
        found = found or find_exchanges(self._exchanged)
        if len(found) > 1:
            raise InvalidArgumentError(
                "a checkpoint takes one exchange, and here are several: the same optimizer, or the "
                "same variables, were exchanged with other variables or options, too"
            )
        return found[0] if found else None

    def shared(self) -> tf.train.Checkpoint:
        """Returns the checkpoint of the state that all ranks share."""
        model = self._tensors(self._model) if self._is_list else self._model
        if self._optimizer is None:
            return tf.train.Checkpoint(model=model)
        return tf.train.Checkpoint(model=model, optimizer=self._optimizer)

    def shapes(self) -> dict[str, list[Any]]:
        """Returns shape and type of every shared variable, as JSON types."""
        return {
            kind: [[list(one.shape), compat.dtype_of(one).name] for one in variables]
            for kind, variables in (("model", self._variables()), ("optimizer", self._state()))
        }

    def values(self) -> list[NDArray[Any]]:
        """Returns the values of all shared variables."""
        return [one.numpy() for one in self._shared_variables()]

    def set_values(self, values: Sequence[NDArray[Any]]) -> None:
        """Restores what `values` returned."""
        for variable, value in zip(self._shared_variables(), values, strict=True):
            variable.assign(value)

    def random(self) -> dict[str, NDArray[Any]]:
        """Returns this rank's random state: of layers, and of tf.random's global generator."""
        return {
            "generator": tf.random.get_global_generator().state.numpy(),
            **{f"seed {index}": seed.numpy() for index, seed in enumerate(self._seeds())},
        }

    def set_random(self, random: dict[str, NDArray[Any]]) -> None:
        """Restores what `random` returned."""
        tf.random.get_global_generator().state.assign(random["generator"])
        for index, seed in enumerate(self._seeds()):
            seed.assign(random[f"seed {index}"])

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
    except (OSError, ValueError) as error:  # in checkpoints of versions without digests
        raise CheckpointMismatchError(f"{path} is damaged: {error}") from None
    return content


def _as_json(value: dict[str, Any]) -> str:
    try:
        return json.dumps(value)
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
    """Returns state with this rank's share of the sum of all saved residuals."""
    if not all(job.allgather(exchange is not None and exchange.world.size == job.size)):
        raise CheckpointMismatchError(
            'residuals="spread" needs an exchange between all ranks of the job, two at least: call '
            'prepare() before, or take residuals="reset"'
        )
    assert exchange is not None
    total = SavedSum(saved_state.layers_of(exchange))

    def add(path: Path) -> dict[str, Any] | None:
        saved, _ = saved_state.read(path)
        if saved is None:  # saved by a single rank, which exchanged nothing
            return None
        require_unit(saved, exchange.conditions)
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
