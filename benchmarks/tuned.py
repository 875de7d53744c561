"""The settling of a replay's adaptive mode, before its steps are timed.

Its tuner times steps as they are, with dilated waits and links. It therefore plans for the emulated
network, and all its times have to be divided by the dilation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hvd_sparse.planning.explanation import explain
from hvd_sparse.tuning import tuner
from hvd_sparse.tuning.stages import Stage

DECISION_STEPS = 2  # in which a tuner's ranks agree, after the timed steps of each kind


def set_tuning_steps(skipped: int, timed: int) -> None:
    """Makes every tuner of this process time fewer steps: a dense one may take half a minute."""
    tuner.SKIPPED_STEPS, tuner.TIMED_STEPS = skipped, timed


@dataclass(frozen=True)
class Settling:
    """How an adaptive compression reached its decision; seconds are clock time, not undilated.

    Attributes:
        steps: Number of steps until it was settled.
        seconds: Seconds of these steps.
        sparse: True if gradients are exchanged sparsely from then on.
        measured: Seconds of a "dense" and a "sparse" step, by the tuner itself; None if not known.
        predicted: Seconds of a "dense" and a "sparse" step, and of the "compute" alone.
        plan: The plan, as JSON.
        profile: The profile that the plan was made from, as JSON.
        buckets: The plan's buckets, explained.
    """

    steps: int
    seconds: float
    sparse: bool
    measured: dict[str, float | None]
    predicted: dict[str, float]
    plan: Any
    profile: Any
    buckets: list[dict[str, Any]]

    def lines(self) -> list[str]:
        """Returns lines for the terminal."""
        times = {f"predicted {name}": seconds for name, seconds in self.predicted.items()}
        times |= {f"measured {name}": seconds for name, seconds in self.measured.items()}
        shown = ", ".join(
            f"{name} {seconds:.4g} s" for name, seconds in times.items() if seconds is not None
        )
        kind = "sparse" if self.sparse else "dense"
        lines = [f"settled on {kind} after {self.steps} steps, {self.seconds:.0f} s; {shown}"]
        for bucket in self.buckets:
            how = f"{bucket['collective']}, {bucket['wire']}, density {bucket['density']:.3g}"
            lines.append(f"  {bucket['layers']}: {bucket['numel']} entries, {how}")
        return lines


def settle(optimizer: Any, step: Callable[[], object]) -> Settling | None:
    """Takes steps until an adaptive compression has decided between dense and sparse. Collective.

    Args:
        optimizer: An optimizer with a sparse compression, by Horovod's front-end or DDP's.
        step: Takes one step of training.

    Returns:
        The settling; None if there is nothing to decide: the compression is not adaptive, or a rank
        is alone.
    """
    begin, steps = time.perf_counter(), 0
    while (found := optimizer.exchange.tuning) is not None and found.stage is not Stage.SETTLED:
        step()
        steps += 1
    if found is None:
        return None
    plan, profile = found.plan, found.profile
    assert plan is not None
    assert profile is not None
    return Settling(
        steps=steps,
        seconds=time.perf_counter() - begin,
        sparse=found.sparse,
        measured={"dense": found.dense_seconds, "sparse": found.sparse_seconds},
        predicted={
            "dense": plan.dense_seconds,
            "sparse": plan.step_seconds,
            "compute": plan.compute_seconds,
        },
        plan=json.loads(plan.to_json()),
        profile=json.loads(profile.to_json()),
        buckets=[asdict(row) for row in explain(plan, profile)],
    )
