"""The cost of each collective, and the choice of the cheapest.

The formulas are in models/, and in docs/algorithms.md, "What a step costs".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.account import WIRES, Account, Array, Setting
from hvd_sparse.planning.models import MODELS
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.profile import Machine

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


def possible(collective: str, network: Network, machine: Machine | None = None) -> bool:
    """Returns true if a collective can run between these ranks and its cost is known.

    Args:
        collective: One of `NAMES`.
        network: The network between the ranks.
        machine: The machine of each rank; None: any that was measured.

    Raises:
        InvalidArgumentError: There is no such collective.
    """
    if collective not in MODELS:
        raise InvalidArgumentError(
            f"collective must be one of {sorted(MODELS)}, got {collective!r}"
        )
    if collective == SHARD_SUM:
        return machine is None or machine.knows_dense_sums
    if collective != "hierarchical":
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
    if not possible(collective, setting.network, setting.machine):
        if collective == SHARD_SUM:
            raise InvalidArgumentError(
                f"'{collective}' takes a machine whose write_seconds_per_entry was measured, "
                "for gradients on a device; this one has 0"
            )
        raise InvalidArgumentError(
            f"'{collective}' takes nodes of several ranks each and their local link, got "
            f"local_size {setting.network.local_size} of {setting.network.size} ranks"
        )
    ks, numels = np.broadcast_arrays(
        np.asarray(k, dtype=np.float64), np.asarray(numel, dtype=np.float64)
    )
    account = Account(ks, numels, setting)
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
        options: (collective, wire, values) of each.
        routes: The route of each option, which decides its links: one of routes.ROUTES.
    """

    seconds: Array
    bytes: Array
    taking: Array
    chosen: NDArray[np.int64]
    options: tuple[tuple[str, str, str], ...]
    routes: tuple[str, ...]

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
    **setting: Any,
) -> Table:
    """Like `cheapest`, but for arrays; ties go to the first of `NAMES`, `WIRES` and `values`.

    Raises:
        InvalidArgumentError: A name is unknown, or none of `allowed` is possible here.
    """
    settings = [
        Setting(network=network, wire=wire, values=one, **setting)
        for wire in wires
        for one in values
    ]
    names = [name for name in allowed if possible(name, network, settings[0].machine)]
    settings.sort(key=lambda one: WIRES.index(one.wire))
    host = [Setting(network=network, **setting)]  # whatever the core's own formats are
    every_width = settings[: len(values)]  # a dense sum has no indices
    options = [
        (name, setting)
        for name in NAMES
        if name in names
        for setting in {"dense": host, SHARD_SUM: every_width}.get(name, settings)
    ]
    if not options:
        raise InvalidArgumentError(
            f"none of {list(allowed)} is possible between {network.size} ranks, "
            f"{network.local_size} on a node: 'hierarchical' takes several nodes of as many ranks "
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
        tuple(
            (name, "plain" if name in DENSE_SUMS else one.wire, one.values) for name, one in options
        ),
        tuple(one.route(name) for name, one in options),
    )


def cheapest(
    *,
    k: int,
    numel: int,
    network: Network,
    allowed: Sequence[str] = NAMES,
    wires: Sequence[str] = WIRES,
    values: Sequence[str] = ("float32",),
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
        **setting: Further attributes of a `Setting`.

    Raises:
        InvalidArgumentError: A name is unknown, or none of `allowed` is possible here.
    """
    table = cheapest_of(
        k, numel, network=network, allowed=allowed, wires=wires, values=values, **setting
    )
    collective, wire, chosen = table.options[int(table.chosen)]
    return Choice(
        seconds=float(table.seconds),
        bytes=float(table.bytes),
        taking=float(table.taking),
        collective=collective,
        wire=wire,
        values=chosen,
    )
