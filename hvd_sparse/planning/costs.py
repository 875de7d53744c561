"""The cost of each collective, and the choice of the cheapest.

The formulas are in models/, and in docs/algorithms.md, "What a step costs".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.account import WIRES, Account, Array, Setting
from hvd_sparse.planning.models import MODELS, nodes_first
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.profile import Machine
from hvd_sparse.planning.routes import CALLS

__all__ = [
    "DENSE_SUMS",
    "NAMES",
    "SPARSE",
    "WIRES",
    "Choice",
    "Cost",
    "cheapest",
    "cost",
    "possible",
]

NAMES = tuple(MODELS)
DENSE_SUMS = ("dense", SHARD_SUM)  # the host's sum, and the core's own
SPARSE = tuple(name for name in NAMES if name not in DENSE_SUMS)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one exchange, on the busiest rank.

    Attributes:
        seconds: Seconds until every rank has the sum in its gradient.
        bytes: Bytes that the busiest rank sends.
        taking: Those of the seconds that come first, on the thread that selects: of the core's own
            dense sum, which selects nothing.
    """

    seconds: float
    bytes: float
    taking: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Choice(Cost):
    """The cheapest exchange, and its cost."""

    collective: str
    wire: str
    values: str
    nodes_first: bool = False


def possible(
    collective: str,
    network: Network,
    machine: Machine | None = None,
    *,
    nodes_first: bool = False,
) -> bool:
    """Returns true if a collective can run between these ranks and its cost is known.

    Args:
        collective: One of `NAMES`.
        network: The network between the ranks.
        machine: The machine of each rank; None: any that was measured.
        nodes_first: True if the ranks of a node add up their residuals first.

    Raises:
        InvalidArgumentError: There is no such collective.
    """
    if collective not in MODELS:
        raise InvalidArgumentError(
            f"collective must be one of {sorted(MODELS)}, got {collective!r}"
        )
    if collective == SHARD_SUM:
        return machine is None or machine.knows_dense_sums
    if not nodes_first:
        return True
    several = 1 < network.local_size < network.size and network.size % network.local_size == 0
    return several and network.local is not None


def arrays(
    collective: str, k: ArrayLike, numel: ArrayLike, setting: Setting
) -> tuple[Array, Array, Array]:
    """Returns what a `Cost` has, for arrays of k and numel, which broadcast.

    Raises:
        InvalidArgumentError: There is no such collective, or it is not possible here.
    """
    network, first = setting.network, setting.nodes_first
    if not possible(collective, network, setting.machine, nodes_first=first):
        if collective == SHARD_SUM:
            raise InvalidArgumentError(
                f"'{collective}' takes a machine whose write_seconds_per_entry was measured, "
                "for gradients on a device; this one has 0"
            )
        raise InvalidArgumentError(
            "nodes_first takes nodes of several ranks each and their local link, got local_size "
            f"{network.local_size} of {network.size} ranks"
        )
    ks, numels = np.broadcast_arrays(
        np.asarray(k, dtype=np.float64), np.asarray(numel, dtype=np.float64)
    )
    account = Account(ks, numels, setting)
    if first:
        nodes_first.cost(account, MODELS[collective])
    else:
        MODELS[collective](account)
    none = np.zeros_like(ks)
    return account.seconds + none, account.bytes + none, account.taking + none


def cost(collective: str, *, k: int, numel: int, **setting: Any) -> Cost:
    """Returns the cost of one exchange.

    Args:
        collective: One of `NAMES`.
        k: Entries that each rank sends; ignored for "dense".
        numel: Entries of the bucket, at least k.
        **setting: Attributes of a `Setting`.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
    """
    if not 0 <= k <= numel:
        raise InvalidArgumentError(f"k must lie in [0, numel = {numel}], got {k}")
    seconds, nbytes, taking = arrays(collective, k, numel, Setting(**setting))
    return Cost(seconds=float(seconds), bytes=float(nbytes), taking=float(taking))


@dataclass(frozen=True)
class Table:
    """The cheapest exchange, for arrays of k and numel.

    Attributes:
        seconds: Seconds that it takes.
        bytes: Bytes that the busiest rank sends.
        taking: Those of the seconds that the thread which selects takes; see `Cost`.
        chosen: Its index in `options`.
        options: Collective and `Setting` of each.
    """

    seconds: Array
    bytes: Array
    taking: Array
    chosen: NDArray[np.int64]
    options: tuple[tuple[str, Setting], ...]

    @property
    def exchange(self) -> Array:
        """Seconds that follow what the thread which selects takes."""
        return self.seconds - self.taking


def cheapest_of(
    k: ArrayLike,
    numel: ArrayLike,
    *,
    network: Network,
    allowed: Sequence[str] = NAMES,
    wires: Sequence[str] = WIRES,
    values: Sequence[str] = ("float32",),
    nodes: Sequence[bool] = (False,),
    **setting: Any,
) -> Table:
    """Like `cheapest`, but for arrays; ties go to the first of `NAMES`, `WIRES` and `values`.

    Raises:
        InvalidArgumentError: A name is unknown, or none of `allowed` is possible here.
    """
    every_form = [
        Setting(network=network, wire=wire, values=one, nodes_first=first, **setting)
        for first in nodes
        for wire in wires
        for one in values
    ]
    every_form.sort(key=lambda one: WIRES.index(one.wire))
    if network.devices is not None:  # by way of the CPUs, too
        every_form += [replace(one, by_devices=False) for one in every_form]
    every_width = [Setting(network=network, values=one, **setting) for one in values]
    forms = {"dense": [Setting(network=network, **setting)], SHARD_SUM: every_width}
    names = [name for name in allowed if possible(name, network, every_width[0].machine)]
    options = [
        (name, form)
        for name in sorted(names, key=NAMES.index)
        for form in forms.get(name, every_form)
        if possible(name, network, form.machine, nodes_first=form.nodes_first)
        and (form.by_devices or replace(form, by_devices=True).route(name) != CALLS)
    ]
    if not options:
        raise InvalidArgumentError(
            f"none of {list(allowed)} is possible between {network.size} ranks, "
            f"{network.local_size} on a node: nodes_first takes several nodes of as many ranks "
            "each, two at least, whose own links were measured"
        )
    priced = [arrays(name, k, numel, setting) for name, setting in options]
    columns = [np.stack(column) for column in zip(*priced, strict=True)]
    chosen = np.argmin(columns[0], axis=0)
    seconds, nbytes, taking = (
        np.take_along_axis(column, chosen[np.newaxis], 0)[0] for column in columns
    )
    return Table(
        seconds,
        nbytes,
        taking,
        chosen,
        tuple(options),
    )


def cheapest(
    *,
    k: int,
    numel: int,
    network: Network,
    allowed: Sequence[str] = NAMES,
    wires: Sequence[str] = WIRES,
    values: Sequence[str] = ("float32",),
    nodes: Sequence[bool] = (False,),
    **setting: Any,
) -> Choice:
    """Returns the cheapest collective and wire among those allowed.

    Args:
        k: Entries that each rank sends.
        numel: Entries of the bucket.
        network: The network between the ranks.
        allowed: Names from `NAMES`; those that are not possible between these ranks are skipped.
        wires: Wire formats from `WIRES`.
        values: Types of values on the wire, as in Compression.
        nodes: What `Setting.nodes_first` may be.
        **setting: Further attributes of a `Setting`.

    Raises:
        InvalidArgumentError: A name is unknown, or none of `allowed` is possible here.
    """
    table = cheapest_of(
        k,
        numel,
        network=network,
        allowed=allowed,
        wires=wires,
        values=values,
        nodes=nodes,
        **setting,
    )
    collective, form = table.options[int(table.chosen)]
    return Choice(
        seconds=float(table.seconds),
        bytes=float(table.bytes),
        taking=float(table.taking),
        collective=collective,
        wire=form.wire,
        values=form.values,
        nodes_first=form.nodes_first,
    )
