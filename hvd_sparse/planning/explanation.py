"""A plan, explained: a row for each bucket, with the times of its simulated step."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.planning.pipeline import SimulatedStep, simulate
from hvd_sparse.planning.plan import Plan
from hvd_sparse.planning.profile import Profile


@dataclass(frozen=True)
class Row:
    """A bucket of a plan, for a table.

    Attributes:
        bucket: The bucket's number, from 0, in the order of exchanges.
        layers: Its first layer, and how many follow.
        numel: Entries of all layers.
        density: k / numel; 1 if it is dense.
        k: Entries that a rank sends.
        collective: The collective that exchanges it.
        wire: The wire format; between devices always plain, whatever is asked for.
        values: Type of the values in messages.
        nodes_first: True if the ranks of a node add up their residuals first.
        route: The links by which its exchange was predicted: "calls", the ranks' CPUs; "device
            rounds", their devices.
        select_seconds: Predicted seconds of accumulating and selecting.
        exchange_seconds: Predicted seconds of the exchange.
        ready: When its last gradient is ready, in seconds from the start of the step.
        end: When its sum is in the gradients, in the same seconds.
    """

    bucket: int
    layers: str
    numel: int
    density: float
    k: int
    collective: str
    wire: str
    values: str
    nodes_first: bool
    route: str
    select_seconds: float
    exchange_seconds: float
    ready: float
    end: float


def explain(plan: Plan, profile: Profile, *, select_on: str = "caller") -> list[Row]:
    """Returns a row for each bucket of a plan, with the times of its simulated step."""
    simulated = simulated_step(plan, profile, select_on=select_on)
    rows = []
    for i, (bucket, times) in enumerate(zip(plan.buckets, simulated.buckets, strict=True)):
        more = len(bucket.layers) - 1
        rows.append(
            Row(
                bucket=i,
                layers=bucket.layers[0] + (f" and {more} more" if more else ""),
                numel=bucket.numel,
                density=bucket.k / bucket.numel if bucket.numel else 0.0,
                k=bucket.k,
                collective=bucket.collective,
                wire=bucket.wire,
                values=bucket.values,
                nodes_first=bucket.nodes_first,
                route=bucket.route,
                select_seconds=bucket.select_seconds,
                exchange_seconds=bucket.exchange_seconds,
                ready=times.ready,
                end=times.end,
            )
        )
    return rows


def simulated_step(plan: Plan, profile: Profile, *, select_on: str = "caller") -> SimulatedStep:
    """Returns the simulated step of a plan."""
    return simulate(profile, plan.stages(), select_on=select_on)
