"""Compressions that sum all entries, one for each type of values on the wire."""

from __future__ import annotations

from hvd_sparse.compression import Compression, Dense, Feedback, Layers, ThreeLC

# All tensors take part, and those of tests/frameworks.py form two buckets.
_ALL = {"layers": Layers(min_numel=0, bucket_numel=1700), "feedback": Feedback(momentum="keep")}

DENSE_SUMS: dict[str, Compression] = {
    values: Dense(values=values, **_ALL)
    for values in ("float32", "bfloat16", "float16", "int8", "int4")
}
DENSE_SUMS["ternary"] = ThreeLC(**_ALL)

# Its scale is no integer, so sums over several steps are rounded.
SPARSER_TERNARY = ThreeLC(scale=1.75, **_ALL)
