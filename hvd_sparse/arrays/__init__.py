"""The API for arrays: sparse_allreduce of NumPy and CuPy arrays, and others with their interfaces.

Begin with functions.py. channels.py, the exchanges of single arrays, also serves PyTorch's
sparse_allreduce.
"""
