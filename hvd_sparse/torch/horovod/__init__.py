"""Horovod under PyTorch: all that hvd_sparse.torch needs of it, and changes in it.

Begin with host.py. Outside this folder nothing of hvd_sparse.torch imports Horovod.
"""
