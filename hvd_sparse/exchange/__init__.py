"""The exchange: buckets of gradients in, sparse sums out; and what surrounds a bucket's way.

Begin with exchange.py, the typed face of the core's. planned_bucket.py gives it the buckets of a
plan; the others say in which order buckets start, what is done to a gradient before, and what is
told of it after.
"""
