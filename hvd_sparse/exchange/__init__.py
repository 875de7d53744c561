"""The exchange: buckets of gradients in, sparse sums out, and the work before and after.

Begin with exchange.py, the typed face of the core's; array_steps.py has the steps of single arrays;
those of an optimizer are in pytorch/steps.py and tensorflow/ops.py. planned_bucket.py adds the
buckets of a plan; the others order the launches, and clip and decay gradients beforehand.
"""
