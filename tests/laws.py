"""The laws that every sparsifier and every collective obey, as a program that each rank runs.

Gradients are small integers, so float32 sums are exact in any order and nothing needs a tolerance.
Ranks that are threads (tests/devices) and processes (tests/parallel) run the same program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import SPARSIFIERS, HardThreshold, Sparsifier, as_sparsifier
from hvd_sparse.errors import NonFiniteGradientError
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import BYTES, Buffer
from tests.device_array import CPU, DeviceArray

T = TypeVar("T")

# Every sparsifier by name, with options that suit the gradients below.
EVERY_SPARSIFIER: dict[str, Sparsifier] = {
    name: HardThreshold(threshold=12.0) if name == HardThreshold.name else as_sparsifier(name)
    for name in SPARSIFIERS
}


def buffer_of(array: np.ndarray) -> Buffer:
    """Returns the memory of a contiguous array as a Buffer."""
    assert array.flags.c_contiguous
    return Buffer(array.ctypes.data, array.size, str(array.dtype))


def parts_of(buffer: Buffer, numels: list[int]) -> list[Buffer]:
    """Returns consecutive parts of a Buffer."""
    begins = np.cumsum([0, *numels[:-1]]) * BYTES[buffer.dtype]
    return [
        Buffer(buffer.address + int(begin), numel, buffer.dtype)
        for begin, numel in zip(begins, numels, strict=True)
    ]


def integer_gradient(numel: int, *, rank: int, step: int, correlation: float = 0.5) -> np.ndarray:
    """Returns integer-valued float32: heavy-tailed, partly zero, and partly equal on all ranks."""
    return _drawn(numel, rank, step, correlation).copy()


@cache  # drawing takes longer than exchanging, and thousands of cases draw the same
def _drawn(numel: int, rank: int, step: int, correlation: float) -> np.ndarray:
    shared = np.random.default_rng([step, 1]).standard_t(3, numel)
    own = np.random.default_rng([step, 2, rank]).standard_t(3, numel)
    mixed = 6 * (correlation * shared + (1 - correlation) * own)
    return np.clip(np.rint(mixed), -1000, 1000).astype(np.float32)


@dataclass(frozen=True)
class Step:
    """One rank's observations of one step."""

    gradient: np.ndarray
    residual_before: np.ndarray
    residual_after: np.ndarray
    total: np.ndarray  # the sum that was applied, as float64
    velocity_before: np.ndarray  # zeros unless momentum is corrected
    velocity_after: np.ndarray


@dataclass
class Rank:
    """One rank of an exchange with a single bucket, op=Sum."""

    exchange: Exchange
    rank: int
    segments: list[int]
    density: float
    sparsifier: str
    collective: str
    packed: bool = False
    values: str = "float32"
    slack: float = 1.0
    scale: float = 1.0
    bad_ranks: int = 1
    nodes_first: bool = False
    momentum: float = 0.0
    device: str = CPU
    dtype: str | None = None  # type of gradients in memory; None: that of the given array
    numels: list[int] | None = None  # of the gradients that make up the array; None: it is one

    def __post_init__(self) -> None:
        """Adds the bucket."""
        self.ks = [max(1, math.ceil(self.density * n)) if n else 0 for n in self.segments]
        self.numel = sum(self.segments)
        self.numels = self.numels or [self.numel]
        self.residual_array = DeviceArray(self.device, np.zeros(self.numel))
        self.velocity_array = DeviceArray(self.device, np.zeros(self.numel))
        self.states = np.zeros((len(self.segments), 4), np.float32)
        self.bucket = self.exchange.add_bucket(
            f"{self.sparsifier}-{self.collective}",
            numels=self.numels,
            segments=self.segments,
            max_ks=self.ks,
            sparsifier=EVERY_SPARSIFIER[self.sparsifier],
            collective=self.collective,
            collective_options={
                "slack": self.slack,
                "scale": self.scale,
                "bad_ranks": self.bad_ranks,
            },
            indices="packed" if self.packed else "plain",
            values=self.values,
            device=self.device,
            nodes_first=self.nodes_first,
        )

    @property
    def residual(self) -> np.ndarray:
        """The current residual; writable on the CPU."""
        return self.residual_array.numpy()

    @property
    def velocity(self) -> np.ndarray:
        """The current velocity."""
        return self.velocity_array.numpy()

    def step(self, gradient: np.ndarray, *, output_scale: float = 1.0) -> Step:
        """Exchanges one gradient and returns the step's result."""
        self.start(gradient, output_scale=output_scale)
        return self.finish()

    def start(self, gradient: np.ndarray, *, output_scale: float = 1.0) -> None:
        """Starts a step, whose exchange is then in flight."""
        self.output_scale = output_scale
        self.array = DeviceArray(self.device, gradient, self.dtype or str(gradient.dtype))
        before = [self.array.numpy(), self.residual, self.velocity]
        self.under_way = [values.copy() for values in before]
        self.steps = ArraySteps(
            self.exchange, self.bucket, output_scale=output_scale, momentum=self.momentum
        )
        if tuple(self.ks) != self.exchange.added(self.bucket).max_ks:
            ks = [(0, self.ks)]
            self.steps._engine.replace(
                [_core.DrivenBucket(self.bucket, scale=1, output_scale=output_scale, ks=ks, ops=1)]
            )
        self.steps.begin(
            residual=self.residual_array.buffer,
            states=buffer_of(self.states),
            velocity=self.velocity_array.buffer if self.momentum else None,
            stream=self.array.stream,
        )
        self.steps.launch(0, parts_of(self.array.buffer, self.numels))

    def finish(self) -> Step:
        """Waits for the step and returns its result."""
        (self.stats,) = self.steps.wait()
        self.steps.commit()
        gradient, before, velocity = self.under_way
        total = self.array.numpy().astype(np.float64) / self.output_scale
        return Step(gradient, before, self.residual.copy(), total, velocity, self.velocity.copy())

    def run(self, steps: int) -> list[Step]:
        """Runs several steps with gradients of this rank's own."""
        return [
            self.step(integer_gradient(self.numel, rank=self.rank, step=step))
            for step in range(steps)
        ]


def on_threads(
    size: int,
    program: Callable[[Rank], T],
    *,
    each: Callable[[int], dict[str, Any]] = lambda rank: {},
    local_size: int = 1,
    select_on: str = "caller",
    **options: Any,
) -> list[T]:
    """Runs `program(rank)` on thread ranks; returns the results by rank.

    Args:
        size: Number of ranks.
        program: Function that each rank runs.
        each: Options of `Rank` that differ between ranks.
        local_size: Number of ranks per node.
        select_on: Option of `Exchange`.
        options: Options of `Rank` common to all ranks.
    """
    world = _core.LoopbackWorld(size, 20.0)

    def one(rank: int) -> T:
        exchange = Exchange.over_loopback(world, rank, select_on=select_on, local_size=local_size)
        try:
            return program(Rank(exchange, rank, **options, **each(rank)))
        finally:
            exchange.close()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size)))


def check_replicas_are_bitwise_equal(ranks: list[Step]) -> None:
    """Checks that all ranks apply the same bits."""
    for other in ranks[1:]:
        assert other.total.tobytes() == ranks[0].total.tobytes()


def check_nothing_is_lost(ranks: list[Step]) -> None:
    """Checks that every input value was applied or is in a residual, exactly."""
    came_in = sum(r.gradient.astype(np.float64) + r.residual_before for r in ranks)
    is_there = ranks[0].total + sum(r.residual_after.astype(np.float64) for r in ranks)
    np.testing.assert_array_equal(came_in, is_there)


def check_something_was_applied(ranks: list[list[Step]]) -> None:
    """Rules out keeping all of a non-zero gradient in the residuals, which breaks no other law."""
    assert any(step.total.any() for step in ranks[0])


def refused_for_an_overflow(me: Rank) -> None:
    """Refuses a step whose sum overflows; its cause must leave the residual, and nothing else."""
    gradient = np.full(me.numel, 2, np.float32)
    gradient[: me.numel // 2] = 3e38
    with pytest.raises(NonFiniteGradientError, match=r"(overflows|exceeds) .* entries up to"):
        me.step(gradient)
    assert me.residual.tobytes() == np.where(gradient > 2, 0, gradient).tobytes()
    me.step(np.ones(me.numel, np.float32))


def check_laws(ranks: list[list[Step]]) -> None:
    """Checks all laws over the steps of all ranks: ranks[rank][step]."""
    for step in zip(*ranks, strict=True):
        check_replicas_are_bitwise_equal(list(step))
        check_nothing_is_lost(list(step))
