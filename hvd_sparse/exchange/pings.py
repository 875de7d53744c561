"""What an exchange can time of its network, and of devices, while no bucket is in flight."""

from __future__ import annotations

from hvd_sparse.exchange.core_handle import CoreHandle


class Pings(CoreHandle):
    """Calls that run on the calling thread, and take what they measure."""

    def swap(self, peer: int, bytes: int, repetitions: int) -> list[float]:  # noqa: A002
        """Times swaps of equal messages with another rank, which calls the same for this one.

        That is what a round of an exchange costs on this network, without selecting or merging. It
        runs on the calling thread, while no bucket is in flight.

        Args:
            peer: The other rank, in [0, size).
            bytes: Length of the message in each direction.
            repetitions: How many swaps, one after the other.

        Returns:
            Seconds of each swap, from both messages posted to both complete.

        Raises:
            InvalidArgumentError: An argument is out of its range, or a bucket is in flight.
            ExchangeFailedError: The exchange has ended, by this very swap where the peer swaps
                another number of bytes.
        """
        with self._telling():
            return self._open.swap(peer, bytes, repetitions)

    @property
    def spread_peers(self) -> int:
        """To how many ranks `spread` sends: as many as a collective sends to at once."""
        return self._open.spread_peers

    def spread(self, bytes: int, repetitions: int) -> list[float]:  # noqa: A002
        """As `swap`, of messages to the next `spread_peers` ranks, and from those before, at once.

        All ranks call it, with the same numbers.

        Args:
            bytes: Length of each message.
            repetitions: How many times, one after the other.

        Returns:
            Seconds of each time, from all messages posted to all complete.

        Raises:
            InvalidArgumentError: As `swap`.
            ExchangeFailedError: As `swap`.
        """
        with self._telling():
            return self._open.spread(bytes, repetitions)

    def connect_devices(self, device: str) -> bool:
        """Whether a network connects the devices of all ranks; where nobody has tried, it is made.

        Collective: called by all ranks, while no bucket is in flight.

        Args:
            device: This rank's, where its gradients lie: "cuda:0" and the like.

        Returns:
            The same on all ranks.

        Raises:
            InvalidArgumentError: `device` is the CPU, or a bucket is in flight; or HVD_SPARSE_NCCL
                or HVD_SPARSE_CUDA_AWARE_MPI has no such value on some rank, then on all, and the
                exchange has ended.
            UnavailableError: On all ranks, one of these is 1 and asks for what cannot be had; the
                exchange has ended.
            ExchangeFailedError: The exchange has ended.
        """
        with self._telling():
            return self._open.connect_devices(device)

    def swap_between_devices(self, peer: int, bytes: int, repetitions: int) -> list[float]:  # noqa: A002
        """As `swap`, of messages from this rank's device to the peer's, and back.

        Timed by the device: what one swap adds to a stream that does nothing else. Before, the two
        ranks compare their arguments.

        Args:
            peer: The other rank, in [0, size).
            bytes: Length of the message in each direction, at least 1.
            repetitions: How many swaps, one after the other; one more goes before them.

        Returns:
            Seconds of each swap.

        Raises:
            InvalidArgumentError: An argument is out of its range, a bucket is in flight, or
                `connect_devices` did not say that devices are connected.
            ExchangeFailedError: The exchange has ended, by this very swap where the peer swaps
                another number of bytes, or another number of times.
        """
        with self._telling():
            return self._open.swap_between_devices(peer, bytes, repetitions)

    def merge_on_device(self, entries: int, repetitions: int) -> list[float]:
        """Times what follows a swap in a round of gtopk between devices, on this rank alone.

        Args:
            entries: Of each of two blocks, and of the merged one that is kept; at least 1.
            repetitions: How many merges.

        Returns:
            Seconds of each, by the device.

        Raises:
            InvalidArgumentError: As in `swap_between_devices`.
            UnavailableError: The device cannot.
            ExchangeFailedError: The exchange has ended.
        """
        with self._telling():
            return self._open.merge_on_device(entries, repetitions)

    def hand_to_device(self, entries: int, repetitions: int) -> list[float]:
        """Times handing a block up to the device and a result of as many entries down, alone.

        That is what the route `device rounds` does around its rounds. As `merge_on_device`, but for
        the clock, which is the CPU's.
        """
        with self._telling():
            return self._open.hand_to_device(entries, repetitions)
