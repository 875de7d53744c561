"""Metrics of a running job: numbers by name, for TensorBoard or any other sink."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from hvd_sparse.stats.step_stats import Stats, StepStats
from hvd_sparse.tuning.stages import Tuning

# Takes the metrics of a step, and the step's number.
Sink: TypeAlias = Callable[[Mapping[str, float], int], None]

PREFIX = "hvd_sparse/"


class ScalarWriter(Protocol):
    """The part of TensorBoard's SummaryWriter that is used here."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Records a value."""


def metrics_of(step: StepStats, tuning: Tuning | None = None) -> dict[str, float]:
    """Returns the metrics of one step by name.

    Args:
        step: Statistics of the step.
        tuning: State of an adaptive compression's tuner, if there is one.

    Returns:
        `sparse`: 1, or 0 if the host summed the whole step. `density_asked`, `density_reached`:
        fractions of the other gradients' entries. `bytes_sent`, `bytes_received`: bytes of their
        blocks at this rank; `dense_bytes`: bytes of those that the host summed. `select_seconds`,
        `exchange_seconds`, `wait_seconds`: as in StepStats; `overlap`: the share of the exchange
        that nobody waited for; the last two only if the waiting time is known. `predicted_seconds`,
        `dense_seconds`: a step predicted by the plan in force, and a measured dense step, if tuning
        knows them. `compression_error`, `assumption_delta`: only in steps in which quality_every
        has them measured, see hvd_sparse.stats.quality; the latter is the largest of any layer.
        `left_out_rank_0` and so on: the share of the entries averaged here into which a rank's
        values did not go, with a robust average.
    """
    found = {
        "sparse": float(bool(step.buckets)),
        "density_asked": step.density_asked,
        "density_reached": step.density_reached,
        "bytes_sent": float(step.bytes_sent),
        "bytes_received": float(step.bytes_received),
        "dense_bytes": float(step.dense_bytes),
        "select_seconds": step.select_seconds,
        "exchange_seconds": step.exchange_seconds,
    }
    if not math.isnan(step.wait_seconds):
        found["wait_seconds"] = step.wait_seconds
    if "wait_seconds" in found and step.exchange_seconds > 0:
        found["overlap"] = max(0.0, 1 - step.wait_seconds / step.exchange_seconds)
    if step.quality is not None:
        found["assumption_delta"] = step.quality.largest_delta
        if step.quality.compression_error is not None:
            found["compression_error"] = step.quality.compression_error
    for rank, entries in enumerate(step.left_out):
        found[f"left_out_rank_{rank}"] = entries / max(1, step.averaged)
    if tuning is not None and tuning.plan is not None:
        plan = tuning.plan
        found["predicted_seconds"] = plan.step_seconds if tuning.sparse else plan.dense_seconds
    if tuning is not None and tuning.dense_seconds is not None:
        found["dense_seconds"] = tuning.dense_seconds
    return found


def sink_of(target: ScalarWriter | Sink) -> Sink:
    """Returns `target` if it is a function, else a function that writes to the SummaryWriter.

    The SummaryWriter's tags begin with "hvd_sparse/".
    """
    add_scalar = getattr(target, "add_scalar", None)
    if add_scalar is None:
        assert callable(target)
        return target

    def write(metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            add_scalar(PREFIX + name, value, step)

    return write


def summary_of(stats: Stats, *, dense_bytes: int, size: int) -> str:
    """Returns a one-line summary of a whole run.

    Args:
        stats: Cost of all steps. The waiting time is left out if it is not known.
        dense_bytes: Bytes of all gradients of one step.
        size: Number of ranks P; a ring sends 2 (P - 1) / P times the gradients.
    """
    total = stats.total
    if total.steps == 0:
        return "no step was exchanged"
    density = 0.0 if stats.last is None else stats.last.density_reached
    ring = 2 * (size - 1) / size
    sent = (total.bytes_sent + ring * total.dense_bytes) / total.steps
    select, exchange, wait = (
        1e3 * seconds / total.steps
        for seconds in (total.select_seconds, total.exchange_seconds, total.wait_seconds)
    )
    times = f"{exchange:.3g} ms exchanging"
    if not math.isnan(wait):
        times += f", {wait:.3g} ms waiting"
    if density == 1:
        left_out = ""
        if total.averaged:
            most = max(range(len(total.left_out)), key=total.left_out.__getitem__)
            share = total.left_out[most] / total.averaged
            left_out = f"; rank {most} was left out most often, of {share:.0%} of the averages"
        return (
            f"{total.steps} steps, {total.sparse_steps} of them summed by hvd_sparse: "
            f"{sent / 1e3:.1f} kB sent per rank and step (uncompressed: "
            f"{ring * dense_bytes / 1e3:.1f} kB); {select:.3g} ms coding, {times}{left_out}"
        )
    fewer = ring * dense_bytes / sent if sent else float("inf")
    waits = f"; an entry waits {1 / density:.3g} steps on average" if density else ""
    return (
        f"{total.steps} steps, {total.sparse_steps} of them sparse: {sent / 1e3:.1f} kB sent per "
        f"rank and step, {fewer:.3g} times fewer than dense; {select:.3g} ms selecting, "
        f"{times}{waits}"
    )
