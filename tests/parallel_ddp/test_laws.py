"""The laws of every exchange, through DistributedDataParallel's communication hook."""

from __future__ import annotations

from tests.framework_laws import (
    checkpoint,
    discards,
    dropback,
    exactness,
    laws_in,
    local_gradient,
    local_steps,
    masks,
    momentum,
    numerics,
    quality,
    robust,
    same_bits,
    streaming_steps,
    tuned_dense,
    tuning,
)

globals().update(laws_in(exactness, same_bits, numerics, local_gradient, momentum, quality))
globals().update(laws_in(tuned_dense, tuning, checkpoint, local_steps, streaming_steps))
globals().update(laws_in(discards, robust, masks, dropback))
