"""Measures the network and the machine that a plan is made for.

It takes a second or two, and four more for each peer where messages take long.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hvd_sparse import _core
from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.compression.sparsifiers import Sparsifier
from hvd_sparse.errors import UnavailableError
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.places.place import OnCpu, Place
from hvd_sparse.planning.network import Link, Network, distances_below
from hvd_sparse.planning.profile import Machine
from hvd_sparse.ranks.world import World

# Number of pairs of swaps by bytes of a message. The first swaps of two ranks open a connection.
_SWAPS = {1 << 10: 5, 32 << 10: 4, 512 << 10: 3}
_UNTIMED_SWAPS = 2
# Where a message takes longer, TCP sends slowly at first after a pause, which a step makes, too: so
# each of a few swaps follows one, longer than TCP's timeout.
_SLOW_SECONDS = 2.5e-3
_PAUSE_SECONDS = 0.4
_SWAPS_AFTER_PAUSES = 3
# Bytes of a message to each of several ranks at once, as long as the shortest swap; repetitions.
_SPREAD_BYTES = min(_SWAPS)
_SPREADS = 7
# Horovod's cycle time unless HOROVOD_CYCLE_TIME sets another.
_CYCLE_SECONDS = 1e-3
# Number of allreduces by bytes of a tensor, for each type of values.
_ALLREDUCES = {
    "float32": {4 << 10: 7, 256 << 10: 5, 4 << 20: 3},
    "float16": {4 << 10: 3, 1 << 20: 3},
}

# Entries of the test buckets. Their memory is a little larger than a machine's caches: beyond these
# a machine is slower.
_NUMEL = 1 << 21
_SMALL_NUMEL = 1 << 10
_K = 1 << 14
_REPETITIONS = 9
# Free bytes of a device, per entry, for the core's own dense sums: twice what they take at most.
DENSE_SUM_BYTES = 12
# Noise can make copying seem to take nothing, and 0 stands for gradients of the CPU.
_LEAST_COPYING = 1e-9


def fit_link(seconds: Mapping[int, float]) -> Link:
    """Fits the line alpha + beta * bytes to measured times, minimising relative errors.

    A plain least-squares line would follow the longest messages alone; here 10 % too much counts
    the same for a short message as for a long one.

    Args:
        seconds: Time by bytes, for two sizes at least.
    """
    sizes = np.array(list(seconds), dtype=np.float64)
    times = np.array(list(seconds.values()), dtype=np.float64)
    weights = 1 / times**2
    mean_size, mean_time = np.average([sizes, times], axis=1, weights=weights)
    spread = np.average((sizes - mean_size) ** 2, weights=weights)
    covariance = np.average((sizes - mean_size) * (times - mean_time), weights=weights)
    beta = max(0.0, float(covariance / spread))
    alpha = float(mean_time) - beta * float(mean_size)
    if alpha <= 0:
        # Rate limiters that allow bursts pass short messages at once. Their times say nothing about
        # the rate, so the line goes through zero and the longest message.
        longest = int(sizes.argmax())
        alpha, beta = 0.0, float(times[longest] / sizes[longest])
    return Link(alpha=alpha, beta=beta)


def measure_network(
    exchange: Exchange, world: World, allreduce: Callable[[int, str], float]
) -> Network:
    """Measures the network between the ranks of an exchange, all sending at once. Collective.

    Every rank swaps with the partners that an exchange has, 1, 2, 4, ... ranks away, and then sends
    to many at once. A time is the median of several measurements on the slowest rank.

    Args:
        exchange: The exchange, with no bucket in flight.
        world: The ranks of the exchange.
        allreduce: Lets the host sum a tensor of that many bytes and that type; returns the seconds.

    Returns:
        The network, the same on all ranks.

    Raises:
        ExchangeFailedError: Another rank ended the exchange, or died.
    """
    distances = distances_below(world.size)
    times: list[list[float]] = []
    for distance in distances:
        partner = world.rank ^ distance
        shortest, *longer = _SWAPS
        short = [0.0]
        if partner < world.size:
            exchange.swap(partner, shortest, _UNTIMED_SWAPS)
            short = _pairs_of_swaps(exchange, partner, shortest)
        # The shortest time waits neither for a late partner nor for a busy processor.
        is_slow = max(world.allgather_object(min(short), float)) > _SLOW_SECONDS
        if partner >= world.size:
            seconds = [short for _ in _SWAPS]
        elif is_slow:
            seconds = [_swaps_after_pauses(exchange, partner, nbytes) for nbytes in _SWAPS]
        else:
            seconds = [short, *(_pairs_of_swaps(exchange, partner, nbytes) for nbytes in longer)]
        times.append([statistics.median(row) for row in seconds])
        # Distances are measured one after the other, on all ranks.
        world.allgather_object(distance, int)
    times.append([_spread_seconds(exchange) if exchange.spread_peers > 1 else 0.0])
    allreduce(min(_ALLREDUCES["float32"]), "float32")  # opens the connections
    times += [_allreduce_seconds(allreduce, values) for values in _ALLREDUCES]
    gathered = world.allgather_object(times, list[list[float]])
    tables = zip(*gathered, strict=True)
    *swaps, (spread,), dense, dense16 = [_largest(rows) for rows in tables]
    links = [fit_link(dict(zip(_SWAPS, row, strict=True))) for row in swaps]
    gap = None
    if exchange.spread_peers > 1:
        one, beta = max(row[0] for row in swaps), max(link.beta for link in links)
        gap = fit_gap(one, spread, exchange.spread_peers, beta * _SPREAD_BYTES)
    local = exchange.local_size or 1
    return Network(
        size=world.size,
        local_size=local,
        links=tuple(zip(distances, links, strict=True)),
        dense=fit_link(dict(zip(_ALLREDUCES["float32"], dense, strict=True))),
        dense16=fit_link(dict(zip(_ALLREDUCES["float16"], dense16, strict=True))),
        local=_local_link([table[0] for table in gathered], local)
        if 1 < local < world.size
        else None,
        gap=gap,
    )


def _local_link(nearest: Sequence[list[float]], local: int) -> Link:
    """Fits the link between ranks of a node; if `local` is odd, some nearest pairs span two nodes.

    Args:
        nearest: By rank, the times of its swaps with the nearest rank, rank ^ 1.
        local: Ranks on a node, at least 2.
    """
    inside = [row for rank, row in enumerate(nearest) if rank // local == (rank ^ 1) // local]
    return fit_link(dict(zip(_SWAPS, _largest(inside), strict=True)))


def fit_gap(one: float, many: float, messages: int, on_the_wire: float) -> float:
    """Returns the seconds, at least 0, that each further concurrent message adds besides its bytes.

    Args:
        one: Seconds of one short message.
        many: Seconds of `messages` equally short messages sent at once, to different ranks.
        messages: Number of messages, at least 2.
        on_the_wire: Seconds that the bytes of one message take.
    """
    return max(0.0, (many - one) / (messages - 1) - on_the_wire)


def _pairs_of_swaps(exchange: Exchange, partner: int, nbytes: int) -> list[float]:
    """Returns the mean seconds of a swap for each pair of consecutive swaps.

    Of two ranks out of step one finds every other message there already: it waits for a round trip,
    then not at all.
    """
    seconds = exchange.swap(partner, nbytes, 2 * _SWAPS[nbytes])
    return [statistics.fmean(pair) for pair in zip(seconds[::2], seconds[1::2], strict=True)]


def _swaps_after_pauses(exchange: Exchange, partner: int, nbytes: int) -> list[float]:
    """Returns the seconds of swaps each of which follows a pause."""
    seconds = []
    for _ in range(_SWAPS_AFTER_PAUSES):
        time.sleep(_PAUSE_SECONDS)
        seconds += exchange.swap(partner, nbytes, 1)
    return seconds


def _spread_seconds(exchange: Exchange) -> float:
    exchange.spread(_SPREAD_BYTES, _UNTIMED_SWAPS)
    return statistics.median(exchange.spread(_SPREAD_BYTES, _SPREADS))


def _allreduce_seconds(allreduce: Callable[[int, str], float], values: str) -> list[float]:
    """Returns the median seconds of the host's allreduces of a type, by bytes of a tensor.

    Horovod looks for tensors once a cycle. An allreduce right after another one would always just
    miss it; in training they come at any time, and so these begin after parts of a cycle.
    """
    medians = []
    for nbytes, count in _ALLREDUCES[values].items():
        times = []
        for i in range(count):
            time.sleep(i / count * _CYCLE_SECONDS)
            times.append(allreduce(nbytes, values))
        medians.append(statistics.median(times))
    return medians


def measure_machine(sparsifier: Sparsifier, place: Place | None = None) -> Machine:
    """Measures a rank's own work, while all ranks of this machine measure.

    Args:
        sparsifier: The sparsifier that selects.
        place: Device of the gradients; None: the CPU. Blocks are merged and coded on the CPU.
    """
    place = place or OnCpu()
    large = _Bucket(sparsifier, _NUMEL, _NUMEL // 1000, place).seconds()
    small = _Bucket(sparsifier, _SMALL_NUMEL, 1, place).seconds()
    copying = taking = passing = writing = 0.0
    if place.has_bus:
        full = _Bucket(sparsifier, _NUMEL, _NUMEL // 16, place).seconds()
        more = _NUMEL // 16 - _NUMEL // 1000
        copying = max(_LEAST_COPYING, sum(full) - sum(large)) / more
        passing = _Bucket(sparsifier, _NUMEL, _NUMEL // 1000, OnCpu()).seconds().select
        if place.free_bytes() >= DENSE_SUM_BYTES * _NUMEL:
            dense = _Bucket(sparsifier, _NUMEL, _NUMEL, place, collective=SHARD_SUM).seconds()
            taking = dense.select
            writing = dense.scatter + max(0.0, dense.left - small.left)
    generator = np.random.default_rng(1)
    own, theirs = (
        _core.Block(
            np.sort(generator.choice(_NUMEL, _K, replace=False)).astype(np.int32),
            generator.standard_normal(_K, dtype=np.float32),
        )
        for _ in range(2)
    )
    out = _core.Block([], [])

    def merge() -> None:
        _core.merge(own, theirs, out)
        _core.keep_top_k(out, _K)

    coder = _core.Coder(packed=True, values="float32", numel=_NUMEL)

    def code() -> None:
        coder.encode(own)
        coder.decode(out)

    # A device may still be writing when the exchange's thread is done; `left` contains that time.
    scatter = large.scatter + max(0.0, large.left - small.left)
    return Machine(
        select_seconds_per_entry=large.select / _NUMEL,
        select_overhead=small.select,
        merge_seconds_per_entry=_median_seconds(merge) / (2 * _K),
        code_seconds_per_entry=_median_seconds(code) / _K,
        scatter_seconds_per_entry=scatter / _NUMEL,
        exchange_overhead=small.left,
        copy_seconds_per_entry=copying,
        take_seconds_per_entry=taking / _NUMEL,
        pass_seconds_per_entry=passing / _NUMEL,
        write_seconds_per_entry=writing / _NUMEL,
    )


def slowest_machine(world: World, measure: Callable[[], Machine]) -> Machine:
    """Returns the largest of all ranks' times. Collective.

    Args:
        world: The ranks.
        measure: Measures this rank's machine.

    Raises:
        UnavailableError: On every rank, if one of them could not measure, for example because its
            device is out of memory.
    """
    names = list(Machine.__dataclass_fields__)

    def numbers() -> list[float]:
        machine = measure()
        return [getattr(machine, name) for name in names]

    return Machine(**dict(zip(names, slowest_numbers(world, numbers), strict=True)))


def slowest_numbers(world: World, measure: Callable[[], list[float]]) -> list[float]:
    """Returns the largest of all ranks' numbers, position by position. Collective.

    Args:
        world: The ranks.
        measure: Makes this rank's measurements.

    Raises:
        UnavailableError: Under the conditions of `slowest_machine`.
    """
    found: list[float] | str
    try:
        found = measure()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    rows = world.allgather_object(found, list[float] | str)
    for rank, row in enumerate(rows):
        if isinstance(row, str):
            raise UnavailableError(f"rank {rank} cannot measure what its own work takes: {row}")
    return _largest(rows)


class _Seconds(NamedTuple):
    """Median times of a bucket's steps: selecting, scattering, and the rest until it is written."""

    select: float
    scatter: float
    left: float


class _Bucket:
    """A bucket of a single rank: all the work of an exchange except messages."""

    def __init__(
        self,
        sparsifier: Sparsifier,
        numel: int,
        k: int,
        place: Place,
        *,
        collective: str = "gtopk",
    ) -> None:
        self._place = place
        given = np.random.default_rng(numel).standard_normal(numel, dtype=np.float32)
        self._given, self._gradient = place.put(given), place.put(given)
        self._residual = place.put(np.zeros(numel, np.float32))
        self._states = np.zeros((1, 4), np.float32)
        self._exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
        bucket = self._exchange.add_bucket(
            "measured",
            numels=[numel],
            segments=[numel],
            max_ks=[k],
            sparsifier=sparsifier,
            collective=collective,
            device=place.device,
        )
        self._steps = ArraySteps(self._exchange, bucket)

    def seconds(self) -> _Seconds:
        """Runs several steps."""
        try:
            self._step()
            steps = [self._step() for _ in range(_REPETITIONS)]
        finally:
            self._exchange.close()  # frees the memory of an interrupted step
        return _Seconds(*(statistics.median(column) for column in zip(*steps, strict=True)))

    def _step(self) -> _Seconds:
        place, clock = self._place, self._place.clock
        place.copy(self._gradient, self._given)
        copied = clock.mark()
        clock.seconds(copied, copied)  # waits
        begin = clock.mark()
        self._steps.begin(
            residual=place.buffer(self._residual),
            states=Buffer.of(self._states),
            stream=place.stream(),
        )
        self._steps.launch(0, [place.buffer(self._gradient)])
        (stats,) = self._steps.wait()
        end = clock.mark()
        seconds = clock.seconds(begin, end)
        clock.release([copied, begin, end])
        self._steps.commit()
        select, scatter = stats.select_seconds, stats.exchange_seconds
        return _Seconds(select, scatter, max(0.0, seconds - select - scatter))


def _median_seconds(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _largest(rows: Iterable[list[float]]) -> list[float]:
    """Returns the largest of all ranks' numbers, position by position."""
    return [max(column) for column in zip(*rows, strict=True)]
