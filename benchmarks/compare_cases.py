"""The cases of compare.py, and the process that runs them on one side of a comparison.

compare.py starts two processes, the ranks, for each of the two commits. Both commits run this file,
with a PYTHONPATH that leads to their own hvd_sparse. A rank reads the name of a case from a line of
its standard input, takes a turn of it, and answers with a line of JSON: {"calls": [...]}, the times
of the turn's calls, or {"failed": "..."}. Rank 1 takes part in cases of two ranks alone.

Results are verified in every fifth turn, outside the timing, by what the calls leave behind.

A case is made when it is first named. What it needs of hvd_sparse is imported then, so that a case
whose interface one commit lacks fails alone. Both sides draw the same random numbers.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any

import numpy as np
import oracle
import torch
import torch.distributed as dist

# The times of a call, in seconds: by the clock and, of two ranks, processor time of this process.
Times = tuple[float, ...]
Turn = Callable[[bool], list[Times]]  # takes a turn, verified if true; returns its calls' times

RANKS = 2
CHECK_EVERY = 5  # turns
PATIENCE = timedelta(seconds=60)  # of a rank that waits for the other
EXACT_STEPS, SETTLING = 30, 34  # with exact top-k, and by the method itself, before the first turn
MESSAGE = 25_600  # entries of a coded block
LAYERS, SHAPE = 24, (100, 200)  # of the model whose step is timed
EXCHANGED = 1_000_000  # entries of the gradient that two ranks exchange
SMALL = 100  # factor of random numbers that are rounded: sums of some thousand of them are exact


class WrongResultError(Exception):
    """A timed result was wrong."""


@dataclass(frozen=True)
class Case:
    """Something that is timed.

    Attributes:
        make: Prepares it, and returns what takes a turn. Collective where there are two ranks.
        ranks: Number of ranks that take part: 1 or 2.
    """

    make: Callable[[], Turn]
    ranks: int = 1


def timed(work: Callable[[], object]) -> Times:
    """Returns what a call takes, by the clock and in processor time of all threads."""
    processor, clock = time.process_time(), time.perf_counter()
    work()
    return time.perf_counter() - clock, time.process_time() - processor


def require(right: bool, what: str) -> None:
    """Raises WrongResultError unless `right`."""
    if not right:
        raise WrongResultError(what)


# ---- One rank ------------------------------------------------------------------------------------


def selection(kind: str, sparsifier: str, numel: int, density: float, calls: int) -> Turn:
    """Returns turns of a contender's work on a gradient of `numel` entries, in the steady state.

    Each turn has fresh memory: the location of its pages changes times by 10 % (turns.py).

    Args:
        kind: Name of a class of contenders.py.
        sparsifier: Name of the method.
        numel: Number of entries.
        density: Fraction that is selected.
        calls: Number of timed calls of a turn.
    """
    import contenders
    from turns import Gradients, exact_warm_up

    from hvd_sparse.compression.sparsifiers import as_sparsifier

    size = contenders.Size(numel, layers=1, density=density)
    gradients = Gradients(size)
    one = getattr(contenders, kind)(as_sparsifier(sparsifier), size, name="")
    one.slabs = [exact_warm_up(size, gradients, EXACT_STEPS)]
    one.slabs += [size.slab() for _ in range(1, one.slabs_needed)]
    for _ in range(SETTLING):
        one.run(gradients.draw())

    def turn(check: bool) -> list[Times]:
        one.slabs = [size.slab().copy_(slab) for slab in one.slabs]
        one.run(gradients.draw(), check=check)
        require(one.verified, f"the {size.k} entries that {sparsifier} takes")
        return [(one.run(gradients.draw()),) for _ in range(calls)]

    return turn


@cache
def _codes() -> Any:
    """Returns the messages and coders that all cases of coding share."""
    from coding import Coding

    return Coding(MESSAGE, 100 * MESSAGE)


def coding(packed: bool, values: str, calls: int) -> Turn:
    """Returns turns of coding a block: rounding its values, encoding and decoding it."""
    codes = _codes()

    def turn(check: bool) -> list[Times]:
        del check  # it is, always
        found: list[Times] = []
        for number in range(calls):
            *_, (name, took, _, right) = codes.code(number, (packed, values))
            require(right, f"the decoded block, {name}")
            found.append((took,))
        return found

    return turn


# ---- Two ranks -----------------------------------------------------------------------------------


def integers_of(rank: int, numel: int) -> np.ndarray:
    """Returns integers as float32, so that sums are exact; half of each is equal on all ranks."""
    shared, own = (np.random.default_rng(seed) for seed in (0, 1 + rank))
    both = shared.standard_normal(numel) + own.standard_normal(numel)
    return np.rint(SMALL * both).astype(np.float32)


def total(of_rank: np.ndarray | torch.Tensor) -> np.ndarray:
    """Returns the sum over the ranks, in float64."""
    summed = torch.as_tensor(of_rank).double().clone()
    dist.all_reduce(summed)
    return summed.numpy()


def equal_on_all(tensor: torch.Tensor) -> bool:
    """Returns true if all ranks hold the same numbers."""
    lowest, highest = tensor.clone(), tensor.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return torch.equal(lowest, highest)


def exchange(collective: str, wire: str, calls: int) -> Turn:
    """Returns turns of sparse_allreduce: of exact top-k, from when both ranks begin."""
    from hvd_sparse.compression import TopK
    from hvd_sparse.ddp import sparse_allreduce

    compression = TopK(density=0.01, collective=collective, wire=wire)
    k = math.ceil(0.01 * EXCHANGED)
    gradients = [integers_of(rank, EXCHANGED) for rank in range(RANKS)]
    own = torch.from_numpy(gradients[dist.get_rank()])
    out, residual = torch.empty_like(own), torch.zeros_like(own)
    name = f"{collective}, {wire}"
    work = partial(
        sparse_allreduce,
        own, residual, out=out, compression=compression, op=dist.ReduceOp.SUM, name=name,
    )  # fmt: skip

    def call() -> Times:
        dist.barrier()
        return timed(work)

    call()
    if wire == "float32":
        expected = oracle.sum_of(collective, gradients, k)
        require(np.array_equal(out.numpy(), expected), f"the first sum of {name}")

    def turn(check: bool) -> list[Times]:
        came_in = total(own) + total(residual) if check else None
        call()
        if came_in is not None:
            conserved = np.array_equal(came_in, out.double().numpy() + total(residual))
            require(conserved and equal_on_all(out), f"a sum of {name}")
        return [call() for _ in range(calls)]

    return turn


class Weighted(torch.nn.Module):
    """Layers whose gradients are given numbers: nearly all of a step is not the model's work."""

    def __init__(self, gradients: torch.Tensor) -> None:
        super().__init__()
        self.gradients = gradients
        self.layers = torch.nn.ParameterList(torch.zeros(SHAPE) for _ in gradients)

    def forward(self) -> torch.Tensor:
        parts = zip(self.layers, self.gradients, strict=True)
        return torch.stack([(layer * gradient).sum() for layer, gradient in parts]).sum()


def step(preset: str, options: dict[str, Any], calls: int) -> Turn:
    """Returns turns of training steps of a small model under DistributedDataParallel with a preset.

    Each weight is less by the average of what was applied to it, and the residuals keep the rest.
    """
    from torch.nn.parallel import DistributedDataParallel

    from hvd_sparse import ddp

    numel = LAYERS * math.prod(SHAPE)
    own = torch.from_numpy(integers_of(dist.get_rank(), numel)).view(LAYERS, *SHAPE)
    model = DistributedDataParallel(Weighted(own))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ddp.attach(model, optimizer, getattr(ddp, preset)(**options))
    taken = 0

    def call() -> None:
        nonlocal taken
        taken += 1
        optimizer.zero_grad()
        model().backward()
        optimizer.step()

    def verify() -> None:
        weights = torch.cat([layer.detach().view(-1) for layer in model.parameters()])
        residuals = optimizer.state_dict()["hvd_sparse"]["residuals"].values()
        kept = sum(float(total(one.sum(dtype=torch.float64))) for one in residuals)
        applied = -RANKS * float(weights.sum(dtype=torch.float64))
        conserved = applied + kept == taken * float(total(own).sum())
        require(conserved and equal_on_all(weights), f"the weights after steps with {preset}")

    def turn(check: bool) -> list[Times]:
        if check:
            verify()
        call()
        return [timed(call) for _ in range(calls)]

    return turn


# ---- All cases -----------------------------------------------------------------------------------


def _selections() -> dict[str, Case]:
    sizes = ((100_000, 0.01, 100), (1_000_000, 0.01, 30), (10_000_000, 0.001, 6))
    found = {
        f"selection: {name}, {numel:,} at {density:g}": Case(
            partial(selection, "Core", name, numel, density, calls)
        )
        for name, sizes_of in {"top_k": sizes, "gaussian": sizes, "sidco": sizes[1:2]}.items()
        for numel, density, calls in sizes_of
    }
    whole = partial(selection, "LocalStep", "gaussian", *sizes[1])
    return found | {"selection: a local step, 1,000,000 at 0.01": Case(whole)}


SPARSE: dict[str, Any] = {"density": 0.01, "warmup": None, "adaptive": False}
CASES: dict[str, Case] = {
    **_selections(),
    "coding: packed, float32": Case(partial(coding, True, "float32", 100)),
    "coding: plain, int4": Case(partial(coding, False, "int4", 100)),
    "coding: packed, int4": Case(partial(coding, True, "int4", 100)),
    "exchange: allgather, float32": Case(partial(exchange, "allgather", "float32", 10), RANKS),
    "exchange: gtopk, float32": Case(partial(exchange, "gtopk", "float32", 10), RANKS),
    "exchange: shard_topk, float32": Case(partial(exchange, "shard_topk", "float32", 10), RANKS),
    "exchange: allgather, packed int4": Case(partial(exchange, "allgather", "int4", 10), RANKS),
    "step: LAGS by DDP's hook": Case(partial(step, "LAGS", SPARSE, 10), RANKS),
    "step: Dense by DDP's hook": Case(partial(step, "Dense", {}, 10), RANKS),
}


# ---- The process ---------------------------------------------------------------------------------


class Server:
    """Takes turns of cases on one rank.

    Args:
        rank: This rank.
        meeting: Path of a new file, by which the ranks meet.
    """

    def __init__(self, rank: int, meeting: str) -> None:
        self._rank, self._meeting = rank, meeting
        self._made: dict[str, Turn] = {}
        self._taken: Counter[str] = Counter()

    def answer(self, name: str) -> dict[str, Any]:
        """Takes a turn of a case, which is made first if it is new; returns the answer."""
        try:
            if name not in self._made:
                self._make(name)
            check = self._taken[name] % CHECK_EVERY == 0
            self._taken[name] += 1
            return {"calls": self._made[name](check)}
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    def _make(self, name: str) -> None:
        case = CASES[name]
        if case.ranks == RANKS and not dist.is_initialized():
            dist.init_process_group(
                "gloo",
                f"file://{self._meeting}",
                rank=self._rank,
                world_size=RANKS,
                timeout=PATIENCE,
            )
        random.seed(0)
        torch.manual_seed(0)
        self._made[name] = case.make()


def main() -> None:
    """Serves compare.py until the input ends: compare_cases.py RANK MEETING, a file that is new."""
    rank, meeting = int(sys.argv[1]), sys.argv[2]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed must not mix with the answers
    torch.set_num_threads(1)
    import hvd_sparse

    print(json.dumps({"package": hvd_sparse.__file__}), file=answers)
    server = Server(rank, meeting)
    for line in sys.stdin:
        print(json.dumps(server.answer(line.strip())), file=answers)
    os._exit(0)  # exchanges of two ranks would wait for each other


if __name__ == "__main__":
    main()
