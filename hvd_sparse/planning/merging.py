"""Merging: the choice of the layers that share a message, so that the step ends first.

A bucket is ready with its last layer, so merging delays its first ones; but each message fewer
saves a startup. Two rules:

optimal    The partition into consecutive buckets whose simulated step is shortest: dynamic
           programming over prefixes of the layers. It keeps those ways to cut a prefix that no
           other beats in both the clock of selection and the time at which the network is free.
           Exact while those are at most `WAYS`.
omgs       The rule of OMGS-SGD: one pass from the last layer, merging a layer into the next one
           where the startup saved exceeds the delay. It looks at one pair at a time, so it stops
           before merges that pay off only for three layers or more, and it cannot choose dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.account import Array
from hvd_sparse.planning.pipeline import Stage, simulate
from hvd_sparse.planning.profile import Profile

# Ways to cut a prefix that are kept. More of them never shortened the step by more than .01 %.
WAYS = 32


@dataclass(frozen=True)
class Offer:
    """One way to exchange, with the times of every possible bucket.

    Attributes:
        select: [layers, layers + 1]: seconds to select layers a to b - 1, at [a, b] for a < b.
        exchange: [layers, layers + 1]: seconds to exchange them; infinite if they are no bucket.
    """

    select: Array
    exchange: Array


@dataclass(frozen=True)
class Merged:
    """A partition of the layers into buckets.

    Attributes:
        sizes: Number of layers of each bucket.
        offers: Index of the offer that each bucket takes.
    """

    sizes: tuple[int, ...]
    offers: tuple[int, ...]

    def stages(self, offers: Sequence[Offer]) -> list[Stage]:
        """Returns its buckets as stages of the pipeline."""
        stages, first = [], 0
        for size, which in zip(self.sizes, self.offers, strict=True):
            at = (first, first + size)
            stages.append(
                Stage(
                    layers=size,
                    select=float(offers[which].select[at]),
                    exchange=float(offers[which].exchange[at]),
                )
            )
            first += size
        return stages


def merge_layers(
    profile: Profile,
    offers: Sequence[Offer],
    *,
    rule: str = "optimal",
    select_on: str = "caller",
    ways: int = WAYS,
) -> Merged:
    """Merges the layers of a profile into buckets.

    Args:
        profile: The profile with the layers' backward times.
        offers: Ways to exchange a bucket; rule "omgs" merges for the first one.
        rule: "optimal" or "omgs".
        select_on: "caller" or "engine"; see `simulate`.
        ways: Number of ways to cut a prefix that rule "optimal" keeps.

    Raises:
        InvalidArgumentError: The rule is unknown.

    Reference:
        Shi et al., Communication-Efficient Distributed Deep Learning with Merged Gradient
        Sparsification on GPUs, INFOCOM 2020.
    """
    if rule == "omgs":
        sizes = omgs(profile, offers[0])
        return Merged(sizes, (0,) * len(sizes))
    if rule != "optimal":
        raise InvalidArgumentError(f"rule of merging must be 'optimal' or 'omgs', got {rule!r}")
    return _Prefixes(profile, offers, select_on, ways).solve()


def omgs(profile: Profile, offer: Offer) -> tuple[int, ...]:
    """Returns the sizes of the buckets by the rule of OMGS-SGD.

    Layer i is merged into i + 1, the next to become ready, if

        t_c(i) + t_c(i + 1) - t_c(both)  >
            t_b(i + 1) + t_s(both) - t_s(i) - t_s(i + 1) - (start of i's exchange - its selection)

    where i stands for itself and all layers merged into it. t_b, t_s and t_c are the seconds of
    backward, selection and exchange.
    """
    backward = [layer.backward for layer in profile.layers]
    sizes: list[int] = []
    clock = network = profile.forward
    first = 0
    waited = 0.0  # backward of this bucket's layers
    for i in range(len(backward)):
        waited += backward[i]
        own_select, own = float(offer.select[first, i + 1]), float(offer.exchange[first, i + 1])
        selected = clock + waited + own_select
        start = max(network, selected)
        if i + 1 < len(backward):
            select = float(offer.select[i + 1, i + 2])
            saved = own + float(offer.exchange[i + 1, i + 2]) - float(offer.exchange[first, i + 2])
            later = backward[i + 1] + float(offer.select[first, i + 2]) - own_select - select
            if saved > later - (start - selected):
                continue
        sizes.append(i + 1 - first)
        clock, network, first, waited = selected, start + own, i + 1, 0.0
    return tuple(sizes)


class _Prefixes:
    """The ways to cut each prefix of the layers into buckets, as far as they matter.

    A way is a pair of times: the clock of selection, and when the network is free. It is dropped if
    another way is no later in both, or if nothing that follows can beat the best step known.
    """

    def __init__(
        self, profile: Profile, offers: Sequence[Offer], select_on: str, ways: int
    ) -> None:
        self._profile, self._offers, self._select_on = profile, offers, select_on
        self._layers = count = len(profile.layers)
        self._ready = profile.forward + np.cumsum([0.0, *(one.backward for one in profile.layers)])
        self._ways = ways
        self._least = self._least_exchange(count)
        # For each prefix, the least time of selection and exchange that the last bucket can add.
        last = np.minimum.reduce([(one.select + one.exchange)[:, count] for one in offers])
        last = np.minimum.accumulate(last[::-1])[::-1]
        self._last = np.append(last, 0.0)
        self._clocks = [np.array([profile.forward])]
        self._networks = [np.array([profile.forward])]
        # Origin of each way: the prefix before its last bucket, the way to cut that, the offer.
        self._from = [np.zeros((1, 3), dtype=np.int64)]

    def solve(self) -> Merged:
        """Returns the best partition of all layers."""
        best, known = self._known()
        for end in range(1, self._layers + 1):
            self._extend_to(end, best)
        end = self._layers
        if not self._networks[end].size:  # too few ways were kept to find one as good
            return known
        sizes, chosen = [], []
        way = int(np.argmin(self._networks[end]))
        while end:
            before, way_before, offer = (int(one) for one in self._from[end][way])
            sizes.append(end - before)
            chosen.append(offer)
            end, way = before, way_before
        return Merged(tuple(sizes[::-1]), tuple(chosen[::-1]))

    def _extend_to(self, end: int, best: float) -> None:
        """Finds the ways to cut the first `end` layers."""
        counts = [one.size for one in self._clocks]
        before = np.repeat(np.arange(end), counts)
        way = np.concatenate([np.arange(count) for count in counts])
        clocks, networks = np.concatenate(self._clocks), np.concatenate(self._networks)
        ready = (
            clocks + (self._ready[end] - self._ready[before])
            if self._select_on == "caller"
            else np.maximum(clocks, self._ready[end])
        )
        select = np.stack([offer.select[before, end] for offer in self._offers])
        exchange = np.stack([offer.exchange[before, end] for offer in self._offers])
        clock = (ready + select).ravel()
        network = np.maximum(networks, clock.reshape(select.shape)) + exchange
        network = network.ravel()
        which = np.repeat(np.arange(len(self._offers)), before.size)
        origin = np.column_stack([*np.tile((before, way), len(self._offers)), which])
        # No later exchange starts before the next gradient is ready: a free network waits for it.
        network = np.maximum(network, self._soonest(clock, end, min(end + 1, self._layers)))
        order = np.lexsort((network, clock))
        earliest = np.minimum.accumulate(np.concatenate([[np.inf], network[order][:-1]]))
        kept = order[network[order] < earliest]
        hopeful = network[kept] + self._least[end] <= best * (1 + 1e-12)
        hopeful &= self._soonest(clock[kept], end, self._layers) + self._last[end] <= best * (
            1 + 1e-12
        )
        kept = kept[hopeful]
        if kept.size > self._ways:
            kept = kept[np.linspace(0, kept.size - 1, self._ways).round().astype(np.int64)]
        self._clocks.append(clock[kept])
        self._networks.append(network[kept])
        self._from.append(origin[kept])

    def _soonest(self, clock: Array, end: int, later: int) -> Array:
        """Returns the earliest time of layer `later - 1` being ready, from the clock at `end`."""
        if self._select_on == "caller":
            soonest: Array = clock + (self._ready[later] - self._ready[end])
        else:
            soonest = np.maximum(clock, self._ready[later])
        return soonest

    def _least_exchange(self, count: int) -> Array:
        """Returns, per layer, the least network time of it and all that follow it."""
        cheapest = np.minimum.reduce([offer.exchange for offer in self._offers])
        least = np.zeros(count + 1)
        for first in range(count - 1, -1, -1):
            least[first] = np.min(cheapest[first, first + 1 :] + least[first + 1 :])
        return least

    def _known(self) -> tuple[float, Merged]:
        """Tries partitions that are found quickly; returns the shortest step and its partition."""
        best, known = np.inf, Merged((self._layers,), (0,))
        for which, offer in enumerate(self._offers):
            for sizes in ((self._layers,), (1,) * self._layers, omgs(self._profile, offer)):
                merged = Merged(sizes, (which,) * len(sizes))
                stages = merged.stages(self._offers)
                step = simulate(self._profile, stages, select_on=self._select_on).step
                if step < best:
                    best, known = step, merged
        return best, known
