"""The face for arrays: sparse_allreduce of NumPy's, CuPy's, and what looks like them.

Begin with functions.py. channels.py, the exchanges of single arrays, serves PyTorch's
sparse_allreduce, too.
"""
