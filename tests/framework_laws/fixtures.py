"""Fixtures of the laws, for the conftest.py of each framework's folder."""

from __future__ import annotations

import pytest


@pytest.fixture
def several_ranks(framework):
    """Skips a law on a single rank, which exchanges nothing."""
    if framework.size == 1:
        pytest.skip("a single rank exchanges nothing")


@pytest.fixture
def folder(framework, tmp_path_factory):
    """A folder for a checkpoint that is the same on all ranks."""
    mine = tmp_path_factory.mktemp("checkpoint") / "last"
    return framework.path_of_rank_0(mine)
