"""Measures steps that wait for the exchange, and steps for which the next forward pass waits.

Started by `overlap.py --forward`. Layers wait in place of computing, so that ranks that share
processors do not slow each other down. Gradients depend on the weights, so that a weight that was
read too early would show: after the same steps, all variants must have the same weights, bit for
bit.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

import horovod.torch as hvd
import torch
from torch import nn

from hvd_sparse.compression import Compression, Layers
from hvd_sparse.exchange import launch_order
from hvd_sparse.torch import Dense, TopK

BLOCK = 6  # steps of a variant in one turn
WIDTH = 1000  # of a layer's weight
AS_THEY_COME = "forward, sent as they come"


@dataclass(frozen=True)
class Shape:
    """The model: layers of `numel` weights, and the seconds of all layers together."""

    depth: int
    numel: int
    forward: float
    backward: float


class _Replayed(torch.autograd.Function):
    """A layer that waits; its gradient is a constant of the rank plus a part of the weight."""

    @staticmethod
    def forward(ctx, x, weight, constant, shape):  # type: ignore[no-untyped-def]
        time.sleep(shape.forward / shape.depth)
        ctx.save_for_backward(weight, constant)
        ctx.shape = shape
        return x + weight[0, 0]

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        weight, constant = ctx.saved_tensors
        time.sleep(ctx.shape.backward / ctx.shape.depth)
        return grad, torch.add(constant, weight, alpha=0.1), None, None


class Layer(nn.Module):
    """A layer of the model."""

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.weight = nn.Parameter(torch.zeros(shape.numel // WIDTH, WIDTH))
        self._constant = torch.randn(self.weight.shape)
        self._shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Replayed.apply(x, self.weight, self._constant, self._shape)  # type: ignore[no-untyped-call]
        return result


class Variant:
    """A model, its optimizer, and the seconds of its steps."""

    def __init__(
        self, shape: Shape, compression: Compression, *, waits_in_forward: bool = False
    ) -> None:
        seeds = range(100 * hvd.rank(), 100 * hvd.rank() + shape.depth)
        self.model = nn.Sequential(*(Layer(shape, seed) for seed in seeds))
        self._optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9),
            named_parameters=self.model.named_parameters(),
            compression=compression,
            wait_in_forward=waits_in_forward,
        )
        self.seconds: list[float] = []
        self.waits: list[float] = []

    def turn(self) -> None:
        """Takes a block of steps; notes the mean time from one step's end to the next."""
        ends = []
        before = self._optimizer.exchange.stats.total
        for _ in range(BLOCK):
            self.model(torch.zeros(1, requires_grad=True)).backward()
            self._optimizer.step()
            ends.append(time.perf_counter())
            self._optimizer.zero_grad()
        self.seconds.append((ends[-1] - ends[0]) / (BLOCK - 1))
        after = self._optimizer.exchange.stats.total
        steps = after.steps - before.steps
        self.waits.append((after.wait_seconds - before.wait_seconds) / steps)
        self._optimizer.state_dict()  # the next turn is another variant's


def measure(shape: Shape, density: float, turns: int) -> tuple[dict[str, dict[str, Variant]], bool]:
    """Returns the variants of each compression, and whether their weights are equal."""
    # A sparse entry takes twice the bytes of a dense one, so both models send as many.
    dense = replace(shape, numel=max(1, round(2 * density * shape.numel / WIDTH)) * WIDTH)
    cases: dict[str, tuple[Shape, Compression]] = {
        "sparse": (shape, TopK(density=density, layers=Layers(bucket_numel=shape.numel))),
        "dense": (dense, Dense(layers=Layers(bucket_numel=dense.numel))),
    }
    found, equal = {}, True
    in_turn, stock = "", launch_order.urgent_first

    def plan(arrivals, seconds, uses):  # type: ignore[no-untyped-def]
        if in_turn == AS_THEY_COME:
            return sorted(range(len(arrivals)), key=arrivals.__getitem__)
        return stock(arrivals, seconds, uses)

    launch_order.urgent_first = plan
    try:
        for name, (model, compression) in cases.items():
            variants = {
                "usual": Variant(model, compression),
                AS_THEY_COME: Variant(model, compression, waits_in_forward=True),
                "forward": Variant(model, compression, waits_in_forward=True),
            }
            for _ in range(1 + turns):  # orders are planned in the first
                for title, variant in variants.items():
                    in_turn = title
                    hvd.barrier()
                    variant.turn()
            usual = list(variants["usual"].model.parameters())
            for variant in variants.values():
                variant.seconds, variant.waits = variant.seconds[1:], variant.waits[1:]
                pairs = zip(usual, variant.model.parameters(), strict=True)
                equal &= all(torch.equal(one, other) for one, other in pairs)
            equal &= all(bool(one.any()) for one in usual)
            found[name] = variants
    finally:
        launch_order.urgent_first = stock
    return found, equal


def facts_of(variants: dict[str, Variant], name: str, shape: Shape) -> dict[str, float]:
    """Returns what a variant could gain and has gained, in milliseconds.

    No more can be hidden than the forward pass lasts, and no more than was waited for.
    """
    possible = min(shape.forward, statistics.median(variants["usual"].waits))
    usual, own = (statistics.median(variants[one].seconds) for one in ("usual", name))
    return {
        "waited (ms)": 1e3 * statistics.median(variants[name].waits),
        "could gain (ms)": 1e3 * possible if name != "usual" else 0.0,
        "gained (ms)": 1e3 * (usual - own),
        "share (%)": 100 * (usual - own) / possible if name != "usual" and possible else 0.0,
    }
