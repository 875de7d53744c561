"""Compressions that sum all entries, one for each type of values on the wire."""

from __future__ import annotations

from hvd_sparse.compression import Compression, Dense

# In buckets of several tensors, and of one.
DENSE_SUMS: dict[str, Compression] = {
    "float32": Dense(bucket_numel=1700),
    "bfloat16": Dense(values="bfloat16", bucket_numel=1700),
    "float16": Dense(values="float16", bucket_numel=1700),
}
