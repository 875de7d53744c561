"""Tests that use PyTorch's tensors on a GPU; `pytest -m gpu` selects tests that need a GPU.

HVD_SPARSE_TEST_DEVICE=cuda runs the laws of PyTorch on a GPU, which ranks may share.
"""

from __future__ import annotations

import os

import pytest
import torch

from hvd_sparse import _core

# By torchrun, horovodrun and mpirun.
_LOCAL_RANK = ("LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")


def _device_of_rank() -> torch.device:
    device = torch.device(os.environ.get("HVD_SPARSE_TEST_DEVICE", "cpu"))
    if device.type == "cpu":
        return device
    rank = next((int(os.environ[name]) for name in _LOCAL_RANK if name in os.environ), 0)
    return torch.device("cuda", rank % torch.cuda.device_count())


# The device of this rank's gradients: the CPU, or a GPU.
DEVICE = _device_of_rank()


def reason_to_skip() -> str:
    """Returns why these tests cannot run here; empty if they can."""
    if not _core.with_cuda:
        return "this build has no CUDA"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    return ""


def needs_gpu(test):
    """Marks a test as needing a GPU."""
    why = reason_to_skip()
    return pytest.mark.gpu(pytest.mark.skipif(bool(why), reason=why)(test))
