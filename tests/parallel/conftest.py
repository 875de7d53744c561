"""Tests of the PyTorch face that run on every rank at once."""

from __future__ import annotations

from tests.rank_guard import hooks

globals().update(hooks("horovod.torch"))
