"""The typed face of the core's exchange: what connects ranks, and the buckets between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hvd_sparse import _core, log
from hvd_sparse.compression.collectives import DENSE_COLLECTIVES
from hvd_sparse.compression.sparsifiers import Sparsifier
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError
from hvd_sparse.exchange.core_handle import CoreHandle, note_loss
from hvd_sparse.exchange.threads import kernel_threads
from hvd_sparse.ranks import connection
from hvd_sparse.ranks.transport import LOOPBACK
from hvd_sparse.ranks.world import World
from hvd_sparse.timeline import timeline
from hvd_sparse.timeline.exchange_timeline import ExchangeTimeline

# Over MPI, longer messages are sent in pieces.
MAX_MESSAGE_BYTES = 1 << 30
_INDICES = ("plain", "packed")
# The thread that selects; docs/performance_exchange.md has the measurement behind the default.
DEFAULT_SELECT_ON = "caller"


class AddedBucket(NamedTuple):
    """What an engine needs to know of a bucket.

    Attributes:
        numel: Elements of all gradients.
        max_ks: Largest k of each segment.
        device: Device of gradients and residual.
    """

    numel: int
    max_ks: tuple[int, ...]
    device: str


class Exchange(CoreHandle):
    """The buckets of one optimizer, exchanged in one order over a communicator of their own.

    An engine runs its steps: `make_engine`, `drive`. Closing the exchange in the middle of a step
    ends it on all ranks, and restores what was taken from the residuals.

    An error other than `NonFiniteGradientError` ends the exchange, on every rank, for good.

    Attributes:
        transport: The transport between the ranks: "mpi", "tcp" or "loopback".
        checks: True if the ranks compare what they are about to do, before each bucket.
    """

    def __init__(
        self,
        core: _core.Exchange,
        *,
        transport: str,
        timeline: ExchangeTimeline | None = None,
    ) -> None:
        super().__init__(core, timeline)
        self.transport = transport
        self.checks = core.checks
        self._added: dict[int, AddedBucket] = {}

    @classmethod
    def between_ranks(
        cls,
        world: World,
        *,
        name: str,
        select_on: str = DEFAULT_SELECT_ON,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        local_size: int | None = None,
        transport: str | None = None,
        problem: Exception | None = None,
    ) -> Exchange:
        """Builds an exchange between all ranks of `world`. Collective.

        Args:
            world: The ranks; from `World.from_horovod`.
            name: Name of the exchange in errors and in the timeline.
            select_on: "caller" selects on the thread that hands gradients over, "engine" on another
                one.
            max_message_bytes: Over MPI, longer messages are sent in pieces of this size; in
                [1, 2^31).
            local_size: Ranks per node for `nodes_first`, the same on all ranks: rank r counts as
                on node r // local_size. A node can be less than a machine (the cores of a socket)
                or more (the machines of a rack). None: the machines, as Horovod sees them.
            transport: "mpi" or "tcp", the same on all ranks. None: the one that
                HVD_SPARSE_TRANSPORT names, else MPI where Horovod uses it, else TCP.
            problem: The error due to which this rank cannot take part, if there is one: it raises
                that, and the other ranks an InvalidArgumentError that names the rank.

        Raises:
            UnavailableError: MPI was asked for, and this build or this job lacks it; or
                HVD_SPARSE_NUM_THREADS asks for more than one thread, and this build lacks OpenMP.
            PeerLostError: A rank died, or did not come within 120 seconds.
            InvalidArgumentError: An argument is out of its range. Or, on every rank: the ranks
                differ in transport or HVD_SPARSE_CHECK, or a variable of some rank is invalid.
                HVD_SPARSE_NUM_THREADS, HVD_SPARSE_CONNECTIONS, HVD_SPARSE_STALL_SECONDS,
                HVD_SPARSE_TIMEOUT_SECONDS and HVD_SPARSE_ABORT_SECONDS have ranges;
                HVD_SPARSE_TIMELINE must name a file that can be written, HVD_SPARSE_TRANSPORT a
                transport, HOROVOD_GLOO_IFACE (or, if that is not set, the first name in
                GLOO_SOCKET_IFNAME, else in NCCL_SOCKET_IFNAME) a network interface,
                HVD_SPARSE_LOG_LEVEL a level; HVD_SPARSE_CHECK is 0 or 1.
        """
        if local_size is not None and local_size < 1:
            raise InvalidArgumentError(f"local_size must be at least 1, got {local_size}")
        if not 1 <= max_message_bytes < 1 << 31:
            raise InvalidArgumentError(
                f"max_message_bytes must lie in [1, 2^31), got {max_message_bytes}"
            )
        trace = None
        try:
            _core.set_threads(kernel_threads(local_size=world.local_size, openmp=_core.with_openmp))
            log.configure(world.job_rank)
            trace = timeline.from_environment(rank=world.job_rank)
        except HvdSparseError as error:
            problem = problem or error
        rows = None if trace is None else ExchangeTimeline(trace, name)
        if world.size == 1:
            if problem is not None:
                raise problem
            return cls.over_loopback(_core.LoopbackWorld(1), 0, select_on=select_on, timeline=rows)
        node = world.node if local_size is None else f"{world.rank // local_size} of {local_size}"
        try:
            core, chosen = connection.connect(
                world,
                name=name,
                select_on=select_on,
                max_message_bytes=max_message_bytes,
                node=node,
                asked=transport,
                problem=problem,
            )
        except HvdSparseError as error:
            note_loss(error)
            raise
        log.logger.debug("%s: %d ranks, connected by %s", name, world.size, chosen)
        on_gpus = core.device_memory_problem or "can be sent"
        log.logger.debug("%s: messages in memory of a GPU: %s", name, on_gpus)
        return cls(core, transport=chosen, timeline=rows)

    @classmethod
    def over_loopback(
        cls,
        world: _core.LoopbackWorld,
        rank: int,
        *,
        select_on: str = DEFAULT_SELECT_ON,
        timeline: ExchangeTimeline | None = None,
        local_size: int = 1,
        checks: bool = False,
    ) -> Exchange:
        """Builds an exchange between threads of this process, each of which calls this.

        Args:
            world: The loopback world that the ranks share.
            rank: This thread's rank.
            select_on: "caller" or "engine"; see `between_ranks`.
            timeline: The timeline that records events.
            local_size: Ranks per node: rank r counts as on node r // local_size.
            checks: True to check like HVD_SPARSE_CHECK=1; the same on all ranks.

        Raises:
            InvalidArgumentError: rank or local_size is out of its range.
        """
        core = _core.Exchange.over_loopback(
            world, rank, select_on=select_on, local_size=local_size, checks=checks
        )
        return cls(core, transport=LOOPBACK, timeline=timeline)

    @property
    def local_size(self) -> int | None:
        """Ranks on each node; None if nodes differ in that, or their ranks are not consecutive."""
        return self._open.local_size

    @property
    def between_devices(self) -> str:
        """How blocks go from device to device, and why so; empty if that has not been tried."""
        return self._open.between_devices

    def note(self, note: str) -> None:
        """Sets further text that must be equal on all ranks from now on; compared if `checks`."""
        self._open.note(note)

    @property
    def buckets(self) -> list[int]:
        """The buckets' numbers, in the order in which they were added."""
        return list(self._added)

    def add_bucket(
        self,
        name: str,
        *,
        numels: Sequence[int],
        segments: Sequence[int],
        max_ks: Sequence[int],
        sparsifier: Sparsifier,
        collective: str,
        collective_options: Mapping[str, float] | None = None,
        indices: str = "plain",
        values: str = "float32",
        device: str = "cpu",
        nodes_first: bool = False,
        by_devices: bool = True,
    ) -> int:
        """Adds a bucket; in the same order on every rank.

        Args:
            name: Name of the bucket in errors and statistics.
            numels: Elements of each gradient.
            segments: Elements of each unit of selection; the same total.
            max_ks: Largest k of each segment in any step; bounds memory and messages.
            sparsifier: The sparsifier that chooses the entries.
            collective: Name of the collective.
            collective_options: Options of collectives, by name, the same on every rank; a
                collective takes those that it has. See `Compression`.
            indices: Encoding of positions: "plain", 32 bits each, or "packed", about
                log2(1 / density) + 2 bits, where that is smaller; the same on every rank, as is
                `values`.
            values: Type of values on the wire; see `Compression`. The rounding error of a delivered
                value stays in a residual.
            device: Device of gradients and residual: "cpu", or "cuda:0" and the like.
            nodes_first: True if the ranks of a node add up their residuals first; the same on every
                rank. See `Compression`.
            by_devices: True if blocks go from device to device, if the collective can and devices
                are connected; the same on every rank.

        Returns:
            The bucket's number.

        Raises:
            UnavailableError: This build, or this machine, cannot serve `device`.
            InvalidArgumentError: The numbers do not fit together, or a name is unknown; or nodes
                come first, and have different numbers of ranks, or `device` is not the CPU. Raised
                on all ranks alike.
        """
        if indices not in _INDICES:
            raise InvalidArgumentError(
                f"indices must be one of {', '.join(_INDICES)}, got {indices!r}"
            )
        bucket = self._open.add_bucket(
            name,
            gradient_numels=list(numels),
            segment_numels=list(segments),
            max_ks=list(max_ks),
            sparsifier=sparsifier.name,
            sparsifier_options=sparsifier.options,
            collective=collective,
            collective_options=dict(collective_options or {}),
            packed=indices == "packed",
            values=values,
            device=device,
            nodes_first=nodes_first,
            by_devices=by_devices,
        )
        self._added[bucket] = AddedBucket(sum(numels), tuple(max_ks), device)
        chosen_by, numel = sparsifier.name, sum(numels)
        how = (
            f"{sum(max_ks)} sent at most, chosen by {chosen_by}, moved by {collective} "
            f"{'of nodes ' if nodes_first else ''}as {indices}"
        )
        if collective in DENSE_COLLECTIVES:
            chosen_by, how = "none", f"summed by {collective} as"
        log.logger.debug("bucket %d '%s': %d entries, %s %s", bucket, name, numel, how, values)
        if self.timeline is not None:
            self.timeline.add_bucket(bucket, name, sparsifier=chosen_by, collective=collective)
        return bucket

    def added(self, bucket: int) -> AddedBucket:
        """Returns what was passed to `add_bucket`."""
        return self._added[bucket]

    def clear_buckets(self) -> None:
        """Removes all buckets, between two steps; on every rank alike. Others can then be added.

        Raises:
            InvalidArgumentError: A bucket was started and its step not committed.
        """
        self._open.clear_buckets()
        self._added.clear()
        if self.timeline is not None:
            self.timeline.clear_buckets()

    def drive(
        self,
        op_sizes: Sequence[tuple[int, int]],
        buckets: Sequence[_core.DrivenBucket],
        *,
        rules: _core.StepRules,
        measured: _core.Measured | None = None,
        step_ended: _core.StepEnded | None = None,
    ) -> _core.StepDriver:
        """Builds the driver of steps for an executor that hands over gradients in any order.

        Args:
            op_sizes: Elements and units of selection of the gradients of each op. An op without
                units is never exchanged here: it is sent dense.
            buckets: Buckets in the order in which they start, the same on all ranks: all of the
                exchange's, with all of the ops.
            rules: Rules of every step: whether a step that is not finite is marked with NaN on
                every rank instead of raising; momentum; how many steps lie between two measured
                ones; whether the sums of what is always sent dense are reported; the device of
                gradients and residual.
            measured: Called for each bucket of a measured step, on a thread of the driver, before
                the result is handed out. An exception from it ends the exchange; the step counts.
            step_ended: Called on a thread of the driver, between two steps, with the seconds from
                the first op until each one arrived, as the CPU sees it, and with the device's
                times of a step that was timed. An exception from it ends the exchange; the step
                counts.
        """
        exchanged = None if self.timeline is None else self.timeline.exchanged
        return _core.StepDriver(
            self._open, op_sizes, buckets, exchanged, measured, step_ended, rules
        )

    def swap(self, peer: int, bytes: int, repetitions: int) -> list[float]:  # noqa: A002
        """Times swaps of equal messages with another rank, which calls the same for this one.

        A swap costs what a round of an exchange does on this network, without selecting or merging.
        Like `spread` and `gather`, it runs on the calling thread, while no bucket is in flight.

        Args:
            peer: The other rank, in [0, size).
            bytes: Length of the message in each direction.
            repetitions: Number of swaps, one after the other.

        Returns:
            Seconds of each swap, from both messages posted to both complete.

        Raises:
            InvalidArgumentError: An argument is out of its range, or a bucket is in flight.
            ExchangeFailedError: The exchange has ended; this very swap ends it where the peer swaps
                another number of bytes.
        """
        with self.acknowledging() as core:
            return core.swap(peer, bytes, repetitions)

    @property
    def spread_peers(self) -> int:
        """Number of ranks to which `spread` sends: as many as a collective sends to at once."""
        return self._open.spread_peers

    def spread(self, bytes: int, repetitions: int) -> list[float]:  # noqa: A002
        """Times messages to the next `spread_peers` ranks and from those before, all at once.

        All ranks call it, with the same numbers; otherwise it is like `swap`.

        Args:
            bytes: Length of each message.
            repetitions: Number of repetitions, one after the other.

        Returns:
            Seconds of each repetition, from all messages posted to all complete.

        Raises:
            InvalidArgumentError: An argument is out of its range, or a bucket is in flight.
            ExchangeFailedError: The exchange has ended; see `swap`.
        """
        with self.acknowledging() as core:
            return core.spread(bytes, repetitions)

    def gather(self, numbers: Sequence[float], *, what: str) -> list[list[float]]:
        """Returns the numbers of all ranks, in rank order and bit for bit; each passes as many.

        Collective, while no bucket is in flight. Warnings and errors name the ranks that have not
        come, as those of a bucket do.

        Args:
            numbers: This rank's numbers.
            what: What the ranks do together, as warnings and errors call it.

        Raises:
            InvalidArgumentError: A bucket is in flight.
            ExchangeFailedError: The exchange has ended; this very call ends it where the ranks pass
                different numbers of numbers.
        """
        with self.acknowledging() as core:
            return core.gather(numbers, what=what)
