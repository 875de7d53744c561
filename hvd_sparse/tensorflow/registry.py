"""Which exchange belongs to which variables: built when their gradients are met for the first time.

A tape is made anew in every step, so it cannot keep an exchange, nor residuals. They belong to the
variables, and end with the first of them that dies: at once, so that a new variable at its address
finds nothing of it, whichever ranks have one there. What is left of the others, or held by an
exchange that shares some, goes to the next one that is built of them (estates.py).

In an elastic job all exchanges are built again, for the ranks of now, when the elastic state is
synchronised. A rank that has just joined meets its gradients later than that: it is told what the
others exchange, takes part, and finds the exchange when it looks for one.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.ranks.world import ProcessSetKey, World, in_elastic_job, key_of
from hvd_sparse.state.inheritance import SPREAD
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.blueprint import Blueprint, BlueprintRecord
from hvd_sparse.tensorflow.estates import Estate, take_over
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.renewal import Renewal
from hvd_sparse.tensorflow.settings import Settings

# Ids of the owner and of the variables, settings, and Horovod's number of the process set.
_Key: TypeAlias = tuple[int, tuple[int, ...], str, ProcessSetKey]

_renewals: dict[_Key, Renewal] = {}  # in the order in which they were last looked for
_estates: dict[Estate, _Key] = {}
_awaited: list[Renewal] = []  # those of which this rank was told, and has met no gradient
_serial = 0
_policy = SPREAD


def live_exchanges() -> list[GradientExchange]:
    """The exchanges of this process."""
    return [one.exchange for one in _renewals.values() if one.exchange and one.current]


def find_exchange(target: Any) -> GradientExchange | None:
    """The exchange of an optimizer's gradients, or of these variables'; None if none yet.

    Of several, that which was last looked for to exchange something.
    """
    found = find_exchanges(target)
    return found[-1] if found else None


def find_exchanges(target: Any) -> list[GradientExchange]:
    """All of them: an optimizer may exchange several lists of variables, one after the other."""
    variables = isinstance(target, (list, tuple))
    wanted = _ids(target) if variables else id(compat.stepping_of(target))
    return [
        one.exchange
        for (owner, ids, *_), one in list(_renewals.items())
        if wanted == (ids if variables else owner) and one.exchange and one.current
    ]


def exchange_of(
    variables: Sequence[Any],
    sliced: Sequence[bool | None],
    settings: Settings,
    *,
    process_set: Any,
    owner: object = None,
) -> GradientExchange:
    """The exchange of these variables' gradients. Collective where it is met for the first time.

    Args:
        variables: Of TensorFlow or Keras.
        sliced: Which gradients are IndexedSlices, None where there is none; counts when the
            exchange is built.
        settings: What the user asked for.
        process_set: Horovod's; contains this rank, and others unless the job is elastic.
        owner: Two owners (two optimizers) share no residuals.

    Raises:
        InvalidArgumentError: The ranks' variables or options differ. Nothing was exchanged.
        UnsupportedError: A sparse exchange cannot do what was asked for.
        UnavailableError: HVD_SPARSE_TRANSPORT asks for MPI, and this build or job lacks it; or this
            build lacks TensorFlow.
    """
    key = (
        id(owner) if owner is not None else 0,
        _ids(variables),
        repr(settings),
        key_of(process_set),
    )
    found = _renewals.get(key)
    current = None if found is None else found.current
    if found is not None:
        _renewals[key] = _renewals.pop(key)
    if current is None:
        with tf.init_scope():
            if found is None or not in_elastic_job():
                if live_exchanges():
                    gc.collect()  # Keras's models are cycles, and keep exchanges alive till then
                found = _new(Blueprint.of(variables, sliced, settings), process_set)
                _take_over(key, found)
                _keep(key, found, [compat.tensor_of(one) for one in variables], owner)
            else:
                found.give_up()
                renew_all()
        current = found.current
    assert current is not None
    return current


def renewals() -> list[Renewal]:
    """Of all exchanges between all ranks of the job, in the order in which they were built."""
    everything = (*_renewals.values(), *_awaited)
    ours = (one for one in everything if one.process_set.process_set_id == 0)
    return sorted(ours, key=lambda one: one.blueprint.serial)


def renew_all() -> None:
    """Builds what has ended with its ranks, on ranks that knew it and on those that join.

    Collective.
    """
    global _serial
    gc.collect()  # what is discarded ends on all ranks alike, and is not built again on some
    world = World.from_horovod(hvd, hvd.global_process_set)
    pending = {one.blueprint.serial: one for one in renewals() if one.pending}
    ours = [one.blueprint.record for one in pending.values()]
    told = world.allgather_object(ours, list[BlueprintRecord])
    wanted = {record.serial: record for theirs in told for record in theirs}
    for serial in sorted(wanted):
        if serial not in pending:
            blueprint = Blueprint.of_record(wanted[serial])
            pending[serial] = Renewal(blueprint, hvd.global_process_set)
            _awaited.append(pending[serial])
        pending[serial].policy = _policy
        pending[serial].renew()
    _serial = max(_serial, *wanted, 0)


def pool_all() -> bool:
    """Every rank keeps the sum of all residuals; whether there are any. Collective."""
    ours = {one.blueprint.serial: one for one in renewals()}
    world = World.from_horovod(hvd, hvd.global_process_set)
    # Python may have let go of a model on some ranks only.
    everywhere = set.intersection(*map(set, world.allgather_object(list(ours), list[int])))
    for serial in sorted(everywhere):
        ours[serial].pool()
    return bool(ours)


def set_policy(policy: str) -> None:
    """What becomes of residuals from now on when ranks come or go."""
    global _policy
    _policy = policy


def _ids(variables: Sequence[Any]) -> tuple[int, ...]:
    return tuple(id(compat.tensor_of(variable)) for variable in variables)


def _keep(key: _Key, renewal: Renewal, variables: Sequence[Any], owner: object) -> None:
    """Keeps an exchange until its owner or the first of its variables dies."""
    _renewals[key] = renewal
    kept = weakref.ref(renewal)
    known = [weakref.ref(variable) for variable in variables]
    owned = None if owner is None else weakref.ref(owner)
    watches: list[weakref.finalize[..., Any]] = []

    def drop() -> None:
        dropped = kept()
        for watch in watches:
            watch.detach()
        if dropped is None:
            return
        if _renewals.get(key) is dropped:
            del _renewals[key]
        dropped.give_up()
        if in_elastic_job():  # another rank may have the model of another moment
            return
        estate = Estate(dropped, owned, known)
        _estates[estate] = key
        living = [one for one in (variable() for variable in known) if one is not None]
        estate.watches.extend(_watch(variable, _settle_estates) for variable in living)
        _settle_estates()

    holders = variables if owner is None else [owner, *variables]
    watches.extend(_watch(holder, drop) for holder in holders)


def _watch(holder: Any, call: Callable[[], None]) -> weakref.finalize[..., Any]:
    watch = weakref.finalize(holder, call)
    watch.atexit = False
    return watch


def _settle_estates(wanted: Callable[[Estate], bool] = Estate.lives) -> None:
    """Forgets the others, one by one: Python's collector may bring another one meanwhile."""
    for estate in [one for one in list(_estates) if not wanted(one)]:
        _estates.pop(estate, None)
        for watch in estate.watches:
            watch.detach()


def _take_over(key: _Key, renewal: Renewal) -> None:
    """Gives a new exchange what others of the same owner, with the same options, hold."""
    owner, ids, *options = key
    if renewal.exchange is None or in_elastic_job():
        return
    others = [
        *((known, one, known[1]) for known, one in list(_renewals.items()) if one.current),
        *((known, estate.renewal, estate.ids) for estate, known in list(_estates.items())),
    ]
    akin = [
        (one, theirs)
        for known, one, theirs in others
        if (known[0], *known[2:]) == (owner, *options)
    ]
    take_over(renewal.exchange, ids, akin)
    _settle_estates(Estate.owes)


def _new(blueprint: Blueprint, process_set: Any) -> Renewal:
    global _serial
    for awaited in _awaited:
        if awaited.blueprint.is_for(blueprint):
            _awaited.remove(awaited)
            return awaited
    world = World.from_horovod(hvd, process_set)
    blueprint = blueprint.agreed(world, process_set.ranks, _serial)
    _serial = blueprint.serial
    renewal = Renewal(blueprint, process_set)
    renewal.policy = _policy
    renewal.renew()
    return renewal
