"""One exchange of the soak: random buckets, steps with random gradients, and their laws."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from hvd_sparse import _core
from hvd_sparse.errors import NonFiniteGradientError
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.planning.plan import entries_to_send
from hvd_sparse.ranks.world import World
from tests.laws import EVERY_SPARSIFIER

MOST_STEPS = 20  # per bucket
MOST_BUCKETS = 3
MOST_NUMEL = 100_000
BAD_STEPS = 0.04
# Largest gradient. Sums of MOST_STEPS of them on 4 ranks are exact in the type, so that nothing is
# rounded: shares of an error, on three ranks say, would not be integers.
LARGEST = {"float32": 1000, "float64": 1000, "float16": 24, "bfloat16": 3}
TORCH = {name: getattr(torch, name) for name in LARGEST}


@dataclass
class Piece:
    """One rank's memory of a bucket.

    Attributes:
        number: Number of the bucket in its exchange.
        numels: Number of entries of each gradient.
        dtypes: Number types of the gradients.
        ks: k of each segment.
        residual: Residual of the bucket, float32: a part of the Slot's.
        before: Sum of gradient and residual before the exchange of a step, as float64.
        properties: Properties to list as covered.
    """

    number: int
    numels: list[int]
    dtypes: list[str]
    ks: list[int]
    residual: np.ndarray
    properties: list[str]
    gradients: list[torch.Tensor] = field(default_factory=list)
    before: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def add_to(cls, exchange: Exchange | None, draw: np.random.Generator, size: int) -> Piece:
        """Adds a random bucket of no, few or many entries; `exchange` is None on a rank outside."""

        def one_of(names: list[str]) -> str:
            return names[int(draw.integers(len(names)))]

        numels = [_numel(draw) for _ in range(int(draw.integers(1, 5)))]
        dtypes = [one_of(list(LARGEST)) for _ in numels]
        segments = numels if draw.random() < 0.5 else [sum(numels)]
        density = float(10 ** draw.uniform(-4, 0))
        ks = [entries_to_send(numel, density) for numel in segments]
        sparsifier, collective = one_of(list(EVERY_SPARSIFIER)), one_of(_core.collectives())
        values = one_of(["float32", "float16", "bfloat16"])
        indices = one_of(["plain", "packed"])
        slack = float(1 + draw.integers(2))
        number = -1
        if exchange is not None:
            number = exchange.add_bucket(
                f"{sparsifier} over {collective}",
                numels=numels,
                segments=segments,
                max_ks=ks,
                sparsifier=EVERY_SPARSIFIER[sparsifier],
                collective=collective,
                collective_options={"slack": slack},
                indices=indices,
                values=values,
            )
        return cls(
            number,
            numels,
            dtypes,
            ks,
            np.zeros(0, np.float32),
            [
                f"collective {collective}",
                f"sparsifier {sparsifier}",
                f"wire {indices} {values}",
                f"ranks {size}",
                *(f"gradient {dtype}" for dtype in dict.fromkeys(dtypes)),
                *(["empty"] if not sum(numels) else []),
            ],
        )

    def draw_gradients(self, draw: np.random.Generator, *, bad: bool) -> None:
        """Draws new gradients of this rank; with a NaN or an infinity if `bad`."""
        self.gradients = [
            torch.from_numpy(
                draw.integers(-LARGEST[dtype], LARGEST[dtype] + 1, numel)
                * (draw.random(numel) < 0.7)
            ).to(TORCH[dtype])
            for numel, dtype in zip(self.numels, self.dtypes, strict=True)
        ]
        if bad:
            full = [gradient for gradient in self.gradients if gradient.numel()]
            gradient = full[int(draw.integers(len(full)))]
            gradient[int(draw.integers(gradient.numel()))] = float(draw.choice([np.nan, np.inf]))
        flat = _flat(self.gradients)
        self.before = np.where(np.isfinite(flat), flat, 0) + self.residual

    @property
    def buffers(self) -> list[Buffer]:
        """The gradients, as the core takes them."""
        return [
            Buffer(gradient.data_ptr(), gradient.numel(), dtype)
            for gradient, dtype in zip(self.gradients, self.dtypes, strict=True)
        ]

    def check_taken(self, process_set: Any) -> None:
        """Checks the laws with ==: the sum of what left each rank is what was applied."""
        total = _flat(self.gradients)
        mark = float(
            int.from_bytes(hashlib.blake2b(total.tobytes(), digest_size=3).digest(), "big")
        )
        # Numbers are equal if the sum of their squares is the square of their mean, times size.
        mine = np.concatenate([self.before - self.residual, [mark, mark * mark]])
        everybody = _sum(mine, process_set)
        size = process_set.size()
        assert everybody[-2] == size * mark, f"replicas differ: {self.properties}"
        assert everybody[-1] == size * mark * mark, f"replicas differ: {self.properties}"
        assert np.array_equal(everybody[:-2], total), f"something was lost: {self.properties}"

    def check_refused(self) -> None:
        """Checks that the residual keeps every finite entry."""
        assert np.array_equal(self.residual, self.before), f"not undone: {self.properties}"


@dataclass
class Slot:
    """An exchange between the ranks of a process set; on other ranks, only its plan.

    Attributes:
        process_set: Horovod's process set.
        exchange: The exchange; None on a rank outside the set.
        transport: "mpi" or "tcp".
        plan: Random generator that draws the same on all ranks of the job.
    """

    process_set: Any
    exchange: Exchange | None
    transport: str
    plan: np.random.Generator
    own: np.random.Generator
    pieces: list[Piece] = field(default_factory=list)
    steps_left: int = 0
    bad_rank: int = -1

    @classmethod
    def build(
        cls, process_set: Any, *, name: str, transport: str, select_on: str, seed: int
    ) -> Slot:
        """Builds the exchange, collectively between the ranks of the set; others may call it."""
        plan = np.random.default_rng(seed)
        sizes = [n for n in range(1, process_set.size() + 1) if process_set.size() % n == 0]
        local_size = sizes[int(plan.integers(len(sizes)))]
        exchange = None
        if process_set.included():
            exchange = Exchange.between_ranks(
                World.from_horovod(hvd, process_set),
                name=name,
                select_on=select_on,
                transport=transport,
                local_size=local_size,
            )
        return cls(
            process_set, exchange, transport, plan, np.random.default_rng([seed, hvd.rank()])
        )

    @property
    def included(self) -> bool:
        """True if this rank takes part."""
        return self.exchange is not None

    @property
    def buckets(self) -> int:
        """Number of buckets that a step exchanges now."""
        return len(self.pieces)

    def plan_step(self) -> None:
        """Plans the next step, on all ranks alike; replaces the buckets now and then."""
        if self.steps_left == 0:
            if self.exchange is not None:
                self.exchange.clear_buckets()
            size = self.process_set.size()
            self.pieces = [
                Piece.add_to(self.exchange, self.plan, size)
                for _ in range(int(self.plan.integers(1, MOST_BUCKETS + 1)))
            ]
            self.residual = np.zeros(sum(sum(piece.numels) for piece in self.pieces), np.float32)
            self.states = np.zeros((sum(len(piece.ks) for piece in self.pieces), 4), np.float32)
            ends = np.cumsum([sum(piece.numels) for piece in self.pieces])
            for piece, part in zip(self.pieces, np.split(self.residual, ends[:-1]), strict=True):
                piece.residual = part
            if self.exchange is not None:
                self.steps = ArraySteps(self.exchange, *(piece.number for piece in self.pieces))
            self.steps_left = int(self.plan.integers(1, MOST_STEPS + 1))
        self.steps_left -= 1
        bad = self.plan.random() < BAD_STEPS and any(sum(piece.numels) for piece in self.pieces)
        self.bad_rank = int(self.plan.integers(self.process_set.size())) if bad else -1

    def start(self) -> None:
        """Starts all buckets."""
        is_bad = self.process_set.rank() == self.bad_rank
        self.steps.begin(residual=Buffer.of(self.residual), states=Buffer.of(self.states))
        for op, piece in enumerate(self.pieces):
            piece.draw_gradients(self.own, bad=is_bad and sum(piece.numels) > 0)
            self.steps.launch(op, piece.buffers)

    def finish(self, covered: Counter[str]) -> None:
        """Waits for all buckets, and checks the laws.

        Raises:
            AssertionError: A law does not hold.
        """
        self.steps.wait()
        refused = ""
        try:
            self.steps.commit()
        except NonFiniteGradientError as error:
            refused = str(error)
        for piece in self.pieces:
            if self.bad_rank >= 0:
                assert f"rank {self.bad_rank} " in refused, refused
                piece.check_refused()
            else:
                assert not refused, refused
                piece.check_taken(self.process_set)
            covered.update(piece.properties)
            covered["refused"] += self.bad_rank >= 0
            covered[f"transport {self.exchange.transport}"] += 1

    def close(self) -> None:
        """Closes the exchange, collectively: no rank leaves while another one is in a step."""
        if self.exchange is not None:
            self.exchange.close()


def _numel(draw: np.random.Generator) -> int:
    """Draws a number of entries from 0 to MOST_NUMEL, log-uniform above 1."""
    return int(draw.integers(0, 2)) if draw.random() < 0.1 else int(MOST_NUMEL ** draw.random())


def _flat(gradients: list[torch.Tensor]) -> np.ndarray:
    return torch.cat([gradient.double() for gradient in gradients]).numpy()


def _sum(array: np.ndarray, process_set: Any) -> np.ndarray:
    """Returns the sum over the ranks of a set, by Horovod's dense allreduce."""
    name = f"soak.{process_set.process_set_id}"
    summed = hvd.allreduce(torch.from_numpy(array), op=hvd.Sum, name=name, process_set=process_set)
    return summed.numpy()
