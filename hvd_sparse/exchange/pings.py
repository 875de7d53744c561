"""Messages of an exchange while no bucket is in flight: most time the network and the devices."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_sparse.exchange.core_handle import CoreHandle


class Pings(CoreHandle):
    """Calls that run on the calling thread until the messages have arrived."""

    def swap(self, peer: int, bytes: int, repetitions: int) -> list[float]:  # noqa: A002
        """Times swaps of equal messages with another rank, which calls the same for this one.

        A swap costs what a round of an exchange does on this network, without selecting or merging.
        It runs on the calling thread, while no bucket is in flight.

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

    def connect_devices(self, device: str) -> bool:
        """Connects the devices of all ranks by a network, unless that was tried before.

        Collective: called by all ranks, while no bucket is in flight.

        Args:
            device: The device on which this rank's gradients lie: "cuda:0" and the like.

        Returns:
            True if a network connects the devices; the same on all ranks.

        Raises:
            InvalidArgumentError: `device` is the CPU, or a bucket is in flight. Or, on all ranks:
                HVD_SPARSE_NCCL or HVD_SPARSE_CUDA_AWARE_MPI is invalid on one of them; the exchange
                has then ended.
            UnavailableError: On all ranks: one of these variables is 1 and asks for something that
                is not available; the exchange has ended.
            ExchangeFailedError: The exchange has ended.
        """
        with self.acknowledging() as core:
            return core.connect_devices(device)

    def swap_between_devices(self, peer: int, bytes: int, repetitions: int) -> list[float]:  # noqa: A002
        """Times swaps of messages between this rank's device and the peer's; see `swap`.

        The device takes the time: what one swap adds to a stream that does nothing else. The two
        ranks first compare their arguments.

        Args:
            peer: The other rank, in [0, size).
            bytes: Length of the message in each direction, at least 1.
            repetitions: Number of swaps, one after the other; one more precedes them, untimed.

        Returns:
            Seconds of each swap.

        Raises:
            InvalidArgumentError: An argument is out of its range, a bucket is in flight, or
                `connect_devices` has not returned true.
            ExchangeFailedError: The exchange has ended; this very swap ends it where the peer swaps
                another number of bytes, or another number of times.
        """
        with self.acknowledging() as core:
            return core.swap_between_devices(peer, bytes, repetitions)

    def merge_on_device(self, entries: int, repetitions: int) -> list[float]:
        """Times the merge that follows a swap in a round of gtopk between devices.

        Runs on this rank alone.

        Args:
            entries: Entries of each of two blocks, and of the merged one that is kept; at least 1.
            repetitions: Number of merges.

        Returns:
            Seconds of each merge, by the device's clock.

        Raises:
            InvalidArgumentError: See `swap_between_devices`.
            UnavailableError: The device cannot merge.
            ExchangeFailedError: The exchange has ended.
        """
        with self.acknowledging() as core:
            return core.merge_on_device(entries, repetitions)

    def copy_to_device(self, entries: int, repetitions: int) -> list[float]:
        """Times handing a block up to the device and a result of as many entries down.

        The route `device rounds` does that around its rounds. Like `merge_on_device`, but by the
        CPU's clock.
        """
        with self.acknowledging() as core:
            return core.copy_to_device(entries, repetitions)
