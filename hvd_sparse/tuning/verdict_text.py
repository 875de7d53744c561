"""Words the result of a comparison of sparse steps with dense ones, for the log."""

from __future__ import annotations

import logging

from hvd_sparse.planning import in_16_bits
from hvd_sparse.planning.planner import Rules
from hvd_sparse.planning.quantities import shown_seconds
from hvd_sparse.tuning.stages import Tuning


def verdict(tuning: Tuning, *, margin: float, sparse_margin: float) -> tuple[int, str]:
    """Returns log level and text: how gradients are exchanged from now on, and why, in numbers.

    Args:
        tuning: The tuning, whose comparison has ended.
        margin: Fraction of a step's time by which a dense step in 16 bits must be shorter.
        sparse_margin: Fraction of a dense step's time by which sparse steps must be shorter.
    """
    plan = tuning.plan
    assert plan is not None
    dense = _shown(tuning.dense_seconds)
    found = (
        f"a step takes {_shown(tuning.sparse_seconds)} sparse, {dense} dense "
        f"(predicted {_shown(plan.step_seconds)}, {_shown(plan.dense_seconds)})"
    )
    narrow = _narrow(tuning, margin)
    if tuning.sparse:
        waits = f"an entry waits {plan.waits:.3g} steps on average"
        level = logging.WARNING if narrow else logging.INFO
        return level, f"gradients are sent sparse: {found}; {waits}{narrow}"
    if plan.dense:
        asked, found = Rules.margin, f"a step takes {dense}, and no sparse plan is predicted to be"
    else:
        held = f"{100 * plan.held_back:.2g} % of the entries"
        asked, found = sparse_margin, f"{found}, and sparse ones, which hold back {held}, must be"
    return logging.WARNING, (
        f"gradients are sent dense: {found} {100 * asked:.2g} % shorter. Compression helps on "
        "slower networks or with larger models; adaptive=False sends sparse gradients all the same"
        f"{narrow}"
    )


def _narrow(tuning: Tuning, margin: float) -> str:
    """Returns a sentence about dense steps in 16 bits if they are faster by the margin; else ""."""
    narrow = tuning.dense16_seconds
    step = tuning.sparse_seconds if tuning.sparse else tuning.dense_seconds
    if narrow is None or step is None or narrow >= (1 - margin) * step:
        return ""
    assert tuning.profile is not None
    own = in_16_bits.own_step(tuning.profile)
    ours = (
        ""
        if own is None
        else (
            'compression=Dense(values="bfloat16"), which keeps rounding errors and is predicted '
            f"to take {shown_seconds(own)}, or "
        )
    )
    return (
        f". If gradients are float32, a dense step in 16 bits takes {shown_seconds(narrow)} "
        f"(simulated with sums of float16 that were timed), and this one {shown_seconds(step)}: "
        f"use {ours}Horovod's Compression.fp16 or DDP's fp16_compress_hook"
    )


def _shown(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else shown_seconds(seconds)
