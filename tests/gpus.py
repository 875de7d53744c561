"""Tests that use PyTorch's tensors on a GPU; `pytest -m gpu` selects tests that need a GPU."""

from __future__ import annotations

import pytest
import torch

from hvd_sparse import _core


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
