"""A plan, explained: a row for each bucket, with the times of its simulated step."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.planning.pipeline import Timeline, simulate
from hvd_sparse.planning.plan import Plan
from hvd_sparse.planning.profile import Profile


@dataclass(frozen=True)
class Row:
    """A bucket of a plan, for a table.

    Attributes:
        bucket: Its number, from 0, in the order of exchanges.
        layers: Its first layer, and how many follow.
        numel: Entries.
        density: k / numel; 1 where it is dense.
        k: Entries that a rank sends.
        collective: Who moves it.
        wire: How; between devices always plain, whatever is asked for.
        route: By whose links its exchange was predicted: "calls", the ranks' CPUs; "device rounds"
            or "device step", their devices.
        select_seconds: Predicted.
        exchange_seconds: Predicted.
        ready: When its last gradient is there, in seconds from the start of the step.
        end: When its sum is in the gradients.
    """

    bucket: int
    layers: str
    numel: int
    density: float
    k: int
    collective: str
    wire: str
    route: str
    select_seconds: float
    exchange_seconds: float
    ready: float
    end: float


def explain(plan: Plan, profile: Profile, *, select_on: str = "caller") -> list[Row]:
    """A row for each bucket of a plan, with the times of its simulated step."""
    timeline = timeline_of(plan, profile, select_on=select_on)
    rows = []
    for i, (bucket, times) in enumerate(zip(plan.buckets, timeline.buckets, strict=True)):
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
                route=bucket.route,
                select_seconds=bucket.select_seconds,
                exchange_seconds=bucket.exchange_seconds,
                ready=times.ready,
                end=times.end,
            )
        )
    return rows


def timeline_of(plan: Plan, profile: Profile, *, select_on: str = "caller") -> Timeline:
    """The simulated step of a plan."""
    return simulate(profile, plan.stages(), select_on=select_on)
