"""The laws of every exchange, through FSDP2 on a mesh of one shard."""

from __future__ import annotations

from tests.framework_laws import (
    discards,
    exactness,
    laws_in,
    local_steps,
    momentum,
    numerics,
    quality,
    same_bits,
    tuned_dense,
    tuning,
)

globals().update(laws_in(exactness, same_bits, numerics, momentum, quality))
globals().update(laws_in(tuned_dense, tuning, local_steps, discards))
