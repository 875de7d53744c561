"""Tests that take tensors of torch on a GPU; `pytest -m gpu` runs them, and others, alone."""

from __future__ import annotations

import pytest
import torch

from hvd_sparse import _core


def reason_to_skip() -> str:
    """Why they cannot run here; empty where they can."""
    if not _core.with_cuda:
        return "this build has no CUDA"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    return ""


def needs_gpu(test):
    """Marks a test as one of them."""
    why = reason_to_skip()
    return pytest.mark.gpu(pytest.mark.skipif(bool(why), reason=why)(test))
