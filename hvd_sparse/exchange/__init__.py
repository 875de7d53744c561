"""The exchange: buckets of gradients in, sparse sums out, and the work before and after.

Begin with exchange.py, the typed face of the core's. planned_bucket.py adds the buckets of a plan;
the others order the launches, clip and decay gradients beforehand, and report statistics.
"""
