"""The pipeline of one step, simulated: backward, selection, and one network.

Backward goes through the layers in ready order. A bucket is selected once its last gradient is
ready and the bucket before it has been; exchanges run one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.account import VALUE_BYTES
from hvd_sparse.planning.network import Link
from hvd_sparse.planning.profile import Profile

FUSION_BYTES = 64 << 20
SELECT_ON = ("caller", "engine")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A bucket, as the pipeline sees it.

    Attributes:
        layers: Number of its layers, which follow those of the bucket before it.
        select: Seconds to accumulate, select and hand over.
        exchange: Seconds on the network, and of the work that follows on its thread.
    """

    layers: int
    select: float
    exchange: float


@dataclass(frozen=True, kw_only=True)
class BucketTimes:
    """Times of a bucket, in seconds from the start of the step.

    Attributes:
        layers: Number of its layers.
        ready: When its last gradient was ready.
        selected: When its block was selected.
        start: When its exchange began.
        end: When its sum was in the gradients.
    """

    layers: int
    ready: float
    selected: float
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """Times of one simulated step.

    Attributes:
        buckets: Times of the buckets, in the order in which they were exchanged.
        forward: Seconds of forward.
        backward_end: When backward and the selections on its thread were over.
        step: When everything was over.
    """

    buckets: tuple[BucketTimes, ...]
    forward: float
    backward_end: float
    step: float

    @property
    def exposed(self) -> float:
        """Seconds that the step waits for selection and exchanges once backward is over."""
        return self.step - self.backward_end

    @property
    def hidden(self) -> float:
        """Seconds of exchange that overlap with backward."""
        return sum(max(0.0, min(b.end, self.backward_end) - b.start) for b in self.buckets)


def simulate(
    profile: Profile, stages: Sequence[Stage], *, select_on: str = "caller"
) -> SimulatedStep:
    """Simulates one step with these buckets.

    Args:
        profile: The profile with the times of forward and of the layers' backward.
        stages: Buckets of consecutive layers, which together take all layers.
        select_on: "caller" selects on the thread of backward, which waits; "engine" on another one,
            one bucket after the other.

    Raises:
        InvalidArgumentError: The buckets are not those of the layers, or `select_on` is unknown.
    """
    if select_on not in SELECT_ON:
        raise InvalidArgumentError(f"select_on must be one of {list(SELECT_ON)}, got {select_on!r}")
    taken = sum(stage.layers for stage in stages)
    if taken != len(profile.layers) or any(stage.layers < 1 for stage in stages):
        raise InvalidArgumentError(
            f"buckets must take each of {len(profile.layers)} layers once, got {taken}"
        )
    backward = selector = network = profile.forward
    layers = iter(profile.layers)
    buckets = []
    for stage in stages:
        backward += sum(next(layers).backward for _ in range(stage.layers))
        ready = backward
        selector = max(selector, ready) + stage.select
        if select_on == "caller":
            backward = selector
        start = max(selector, network)
        network = start + stage.exchange
        buckets.append(
            BucketTimes(
                layers=stage.layers, ready=ready, selected=selector, start=start, end=network
            )
        )
    return SimulatedStep(
        buckets=tuple(buckets),
        forward=profile.forward,
        backward_end=backward,
        step=max(backward, network),
    )


def simulate_dense(
    profile: Profile,
    *,
    fusion_bytes: int = FUSION_BYTES,
    allreduce: Link | None = None,
    value_bytes: int = VALUE_BYTES,
) -> SimulatedStep:
    """Simulates one step under the host's dense allreduce with tensor fusion.

    Whenever the network is free, the ready gradients are sent together, in ready order, up to the
    size of the fusion buffer; a larger gradient is sent alone.

    Args:
        profile: The profile.
        fusion_bytes: Size of the fusion buffer; 0: no fusion.
        allreduce: The time of an allreduce; None: the network's `dense`.
        value_bytes: Bytes of an entry in it.

    Returns:
        The step; its buckets are the gradients that were sent together.
    """
    link = profile.network.dense if allreduce is None else allreduce
    clock, ready = profile.forward, []
    for layer in profile.layers:
        clock += layer.backward
        ready.append(clock)
    network = profile.forward
    buckets: list[BucketTimes] = []
    first = 0
    while first < len(ready):
        start = max(network, ready[first])
        last, nbytes = first + 1, value_bytes * profile.layers[first].numel
        while last < len(ready) and ready[last] <= start:
            more = value_bytes * profile.layers[last].numel
            if nbytes + more > fusion_bytes:
                break
            last, nbytes = last + 1, nbytes + more
        network = start + link.seconds(nbytes)
        there = ready[last - 1]
        buckets.append(
            BucketTimes(layers=last - first, ready=there, selected=there, start=start, end=network)
        )
        first = last
    return SimulatedStep(
        buckets=tuple(buckets),
        forward=profile.forward,
        backward_end=clock,
        step=max(clock, network),
    )
