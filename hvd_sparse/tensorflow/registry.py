"""The registry of exchanges by variables; an exchange is built at its first gradients.

A tape is new in every step, so it can keep neither an exchange nor residuals. They belong to the
variables, and end as soon as one of these dies, so that a new variable at the same address does not
find them, whichever ranks have one there. The state of the remaining variables, or of an exchange
that shares some, is moved to the next exchange that is built of them (ended_exchanges.py).

In an elastic job all exchanges are rebuilt for the new ranks when the elastic state is
synchronised. A rank that has just joined has no gradients by then: it receives the descriptions of
the other ranks' exchanges, takes part, and finds the exchange when it looks for one.
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
from hvd_sparse.tensorflow.ended_exchanges import EndedExchange, take_over
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.renewal import Renewal
from hvd_sparse.tensorflow.settings import Settings

# Ids of the owner and of the variables, settings, and the key of the process set.
_Key: TypeAlias = tuple[int, tuple[int, ...], str, ProcessSetKey]

_renewals: dict[_Key, Renewal] = {}  # in the order in which they were last looked up
_ended: dict[EndedExchange, _Key] = {}
_awaited: list[Renewal] = []  # described by other ranks; this rank has had no gradient of them
_serial = 0
_policy = SPREAD


def live_exchanges() -> list[GradientExchange]:
    """Returns the exchanges of this process that have not ended."""
    return [one.exchange for one in _renewals.values() if one.exchange and one.current]


def find_exchange(target: Any) -> GradientExchange | None:
    """Returns the exchange of an optimizer or of variables; None if there is none yet.

    If there are several, it is the one that was used last.
    """
    found = find_exchanges(target)
    return found[-1] if found else None


def find_exchanges(target: Any) -> list[GradientExchange]:
    """Returns all such exchanges: an optimizer may exchange several lists of variables in turn."""
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
    """Returns the exchange of these variables' gradients. Collective if it has to be built.

    Args:
        variables: TensorFlow or Keras variables.
        sliced: For each variable, true if its gradient is IndexedSlices, None if it has none; used
            only when the exchange is built.
        settings: The user's settings.
        process_set: Horovod's process set; contains this rank, and others unless the job is
            elastic.
        owner: The owner of the exchange; two owners (two optimizers) share no residuals.

    Raises:
        InvalidArgumentError: The ranks' variables or options differ. Nothing was exchanged.
        UnsupportedError: A sparse exchange does not support a variable or an option.
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
                    gc.collect()  # Keras's models are cycles, which keep exchanges alive
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
    """Returns the renewals of exchanges between all ranks of the job, in the order of building."""
    everything = (*_renewals.values(), *_awaited)
    ours = (one for one in everything if one.process_set.process_set_id == 0)
    return sorted(ours, key=lambda one: one.blueprint.serial)


def renew_all() -> None:
    """Rebuilds the exchanges that ended with their ranks, also on joining ranks. Collective."""
    global _serial
    gc.collect()  # discarded exchanges must end on all ranks, not be rebuilt on some
    world = World.from_horovod(hvd, hvd.global_process_set)
    pending = {one.blueprint.serial: one for one in renewals() if one.pending}
    ours = [one.blueprint.record for one in pending.values()]
    reports = world.allgather_object(ours, list[BlueprintRecord])
    wanted = {record.serial: record for theirs in reports for record in theirs}
    for serial in sorted(wanted):
        if serial not in pending:
            blueprint = Blueprint.of_record(wanted[serial])
            pending[serial] = Renewal(blueprint, hvd.global_process_set)
            _awaited.append(pending[serial])
        pending[serial].policy = _policy
        pending[serial].renew()
    _serial = max(_serial, *wanted, 0)


def pool_all() -> bool:
    """Makes every rank keep the sum of all residuals. Collective.

    Returns:
        True if there are any exchanges.
    """
    ours = {one.blueprint.serial: one for one in renewals()}
    world = World.from_horovod(hvd, hvd.global_process_set)
    # Python may have released a model on some ranks only.
    shared = set.intersection(*map(set, world.allgather_object(list(ours), list[int])))
    for serial in sorted(shared):
        ours[serial].pool()
    return bool(ours)


def policy() -> str:
    """Returns the policy for residuals when ranks come or go."""
    return _policy


def set_policy(policy: str) -> None:
    """Sets the policy for residuals when ranks come or go, from now on."""
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
        if in_elastic_job():  # another rank's model may be that of another step
            return
        ended = EndedExchange(dropped, owned, known)
        _ended[ended] = key
        living = [one for one in (variable() for variable in known) if one is not None]
        ended.watches.extend(_watch(variable, _drop_ended) for variable in living)
        _drop_ended()

    holders = variables if owner is None else [owner, *variables]
    watches.extend(_watch(holder, drop) for holder in holders)


def _watch(holder: Any, call: Callable[[], None]) -> weakref.finalize[..., Any]:
    watch = weakref.finalize(holder, call)
    watch.atexit = False
    return watch


def _drop_ended(wanted: Callable[[EndedExchange], bool] = EndedExchange.can_be_taken_over) -> None:
    """Drops unwanted ones, one by one: the garbage collector may add another meanwhile."""
    for ended in [one for one in list(_ended) if not wanted(one)]:
        _ended.pop(ended, None)
        for watch in ended.watches:
            watch.detach()


def _take_over(key: _Key, renewal: Renewal) -> None:
    """Moves state to a new exchange from others of the same owner, with the same options."""
    owner, ids, *options = key
    if renewal.exchange is None or in_elastic_job():
        return
    others = [
        *((known, one, known[1]) for known, one in list(_renewals.items()) if one.current),
        *((known, ended.renewal, ended.ids) for ended, known in list(_ended.items())),
    ]
    akin = [
        (one, theirs)
        for known, one, theirs in others
        if (known[0], *known[2:]) == (owner, *options)
    ]
    take_over(renewal.exchange, ids, akin)
    _drop_ended(EndedExchange.has_state)


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
