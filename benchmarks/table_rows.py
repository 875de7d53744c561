"""Rows of the papers' tables: measured ratios, ceilings, and the papers' own figures beside them.

ring bound    lower bound of a dense step: forward, then backward or a ring allreduce at the full
              rate of the link, whichever takes longer
ceiling       speed-up of a step without any exchange
efficiency    compute only / step
overlap       the share that LAGS gained of the largest possible gain over SLGS by overlapping the
              exchange with backward; more than all of it if LAGS also sends less
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paper_figures import PaperRow
from paper_models import MODELS
from predictions import MEDIAN_GOAL, median_error, relative_errors
from reporting import Row

COMPUTE = "compute only"
DENSE = ("dense, MPI", "dense, Gloo")
BOUND = "ring bound"
# Its prediction is not the model's: profiles are scaled to the dense step that the tuner timed. The
# same holds for an adaptive method whose plan is dense.
FITTED = "dense, MPI"

# Aims: compute only over a step; and by how much an adaptive step may be longer than the best
# pinned one, and than a dense one.
LEAST_EFFICIENCY = 0.90
PINNED_LIMIT, DENSE_LIMIT = 0.05, 0.02


def yes(holds: bool) -> str:
    """Formats a condition for a table."""
    return "yes" if holds else "no"


def ring_bound(row: PaperRow, ranks: int, rate: float) -> float:
    """Returns the least seconds of a dense step; `rate` in bits per second."""
    ring = 2 * (ranks - 1) / ranks * 32 * MODELS[row.model].numel / rate
    return row.forward + max(row.backward, ring)


def overlap_limit(forward: float, backward: float, exchange: float) -> float:
    """Returns the largest speed-up by overlapping an exchange with the backward pass."""
    return (forward + backward + exchange) / (forward + max(backward, exchange))


@dataclass(frozen=True)
class Measurement:
    """One row of a table.

    Attributes:
        name: Model and ranks, or rate.
        paper: The published figures of this model.
        ranks: Number of ranks.
        rate: Rate of the emulated network, in bits per second.
        seconds: Seconds of a step by method, divided by the dilation.
        cpu: Busy share of the machine's cores by method.
        predicted: Predicted seconds of a step by method, divided by the dilation.
        notes: Remarks for the reader, e.g. that there were fewer ranks than published.
        problems: Reasons why the row does not count; empty if it does.
        verified: True if all results were right.
        raw: Results as the jobs reported them.
    """

    name: str
    paper: PaperRow
    ranks: int
    rate: float
    seconds: Mapping[str, float]
    cpu: Mapping[str, float]
    predicted: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    problems: Sequence[str] = ()
    verified: bool = True
    raw: Sequence[object] = field(default=(), repr=False)

    @property
    def compute(self) -> float:
        """Seconds of a step without any exchange."""
        return self.seconds[COMPUTE]

    @property
    def dense(self) -> float:
        """Seconds of a dense step, over the faster of MPI and Gloo."""
        return min(self.seconds[name] for name in DENSE if name in self.seconds)

    @property
    def bound(self) -> float:
        return ring_bound(self.paper, self.ranks, self.rate)

    def overlap_share(self, method: str, without: str) -> float:
        """Returns the share reached of the gain from overlapping the exchange of `without`."""
        exchange = self.seconds[without] - self.compute
        limit = overlap_limit(self.paper.forward, self.paper.backward, exchange)
        return (self.seconds[without] / self.seconds[method] - 1) / (limit - 1)

    @property
    def verdict(self) -> str:
        """Verdict on the row: "counts" or "void"."""
        return "void" if self.problems else "counts"

    def remarks(self) -> list[str]:
        """Returns remarks for the reader of a table."""
        void = [f"void, {problem}" for problem in self.problems]
        return [f"{self.name}: {remark}" for remark in (*self.notes, *void)]


def seconds_row(row: Measurement) -> Row:
    """Returns a row with the times of all methods."""
    facts: dict[str, float | int | str] = {"ranks": row.ranks}
    facts |= {f"{method} (s)": seconds for method, seconds in row.seconds.items()}
    facts[f"{BOUND} (s)"] = row.bound
    facts["CPU, most (%)"] = 100 * max(row.cpu.values())
    facts["verdict"] = row.verdict
    return Row(row.name, None, facts)


def ratios_row(row: Measurement, method: str, sparse: str) -> Row:
    """Returns a row with one method's gain, beside the paper's figures.

    Args:
        row: The measured row.
        method: The method whose gain is shown.
        sparse: The sparse method to compare with, besides dense.
    """
    own = row.seconds[method]
    facts: dict[str, float | int | str] = {
        "over dense": row.dense / own,
        "ceiling": row.dense / row.compute,
        "published": row.paper.speed_up(method, "dense"),
        "over ring bound": row.bound / own,
        f"over {sparse}": row.seconds[sparse] / own,
        f"ceiling over {sparse}": row.seconds[sparse] / row.compute,
        f"published over {sparse}": row.paper.speed_up(method, sparse),
        "efficiency (%)": 100 * row.compute / own,
        "published (%)": 100 * row.paper.efficiency(method),
    }
    if method == "LAGS" and row.seconds[sparse] > row.compute:
        facts["overlap gain reached (%)"] = 100 * row.overlap_share(method, sparse)
    facts["90 % of the ceiling"] = yes(row.compute / own >= LEAST_EFFICIENCY)
    facts["not slower than dense"] = yes(own <= (1 + DENSE_LIMIT) * row.dense)
    facts["ranks, published"] = f"{row.ranks}, {row.paper.ranks}"
    facts["verdict"] = row.verdict
    return Row(f"{row.name}: {method}", None, facts)


def envelope_row(row: Measurement, adaptive: str) -> Row:
    """Returns a row that compares the adaptive choice with the best pinned one, and with dense."""
    own = row.seconds[adaptive]
    pinned = {
        method: seconds
        for method, seconds in row.seconds.items()
        if method not in (COMPUTE, adaptive)
    }
    best = min(pinned, key=lambda method: pinned[method])
    off_best, off_dense = own / pinned[best] - 1, own / row.dense - 1
    within = off_best <= PINNED_LIMIT and off_dense <= DENSE_LIMIT
    return Row(
        row.name,
        None,
        {
            "best pinned": best,
            f"{adaptive} against it (%)": 100 * off_best,
            f"{adaptive} against dense (%)": 100 * off_dense,
            f"within {100 * PINNED_LIMIT:g} and {100 * DENSE_LIMIT:g} %": yes(within),
            "efficiency (%)": 100 * row.compute / own,
            "verdict": row.verdict,
        },
    )


def prediction_rows(rows: Sequence[Measurement]) -> list[Row]:
    """Returns rows of predictions beside measurements; the median error comes last.

    The median covers only true predictions: it excludes those that were fitted, and void rows.
    """
    shown, errors = [], []
    for row in rows:
        for method, error in relative_errors(row.predicted, row.seconds).items():
            fitted = row.predicted[method] == row.predicted.get(FITTED)
            counts = not fitted and not row.problems
            if counts:
                errors.append(error)
            facts: dict[str, float | int | str] = {
                "measured (s)": row.seconds[method],
                "predicted (s)": row.predicted[method],
                "error (%)": 100 * error,
                "in the median": yes(counts),
                "verdict": row.verdict,
            }
            shown.append(Row(f"{row.name}: {method}", None, facts))
    if errors:
        middle = median_error(errors)
        told = f"{100 * MEDIAN_GOAL:g} % reached: {yes(middle <= MEDIAN_GOAL)}"
        shown.append(Row("median", None, {"error (%)": 100 * middle, "verdict": told}))
    return shown
