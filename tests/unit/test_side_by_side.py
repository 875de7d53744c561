"""The benchmark of selection on a device detects wrong results, and names what is missing."""

from __future__ import annotations

import cub_pieces
import pytest
import side_by_side
import torch
from selection_sets import Memory

from hvd_sparse.errors import UnavailableError

pytestmark = pytest.mark.long  # it looks at benchmarks alone

NUMEL, DENSITY = 3000, 0.01


@pytest.fixture(autouse=True)
def few_sets(monkeypatch):
    monkeypatch.setattr(side_by_side, "MOST_SETS", 2)


def measure():
    rows, verified = side_by_side.measure_selection(NUMEL, DENSITY, "cpu", 2)
    return {row.name: row for row in rows}, verified


def test_all_that_is_there_is_timed_and_right():
    rows, verified = measure()
    assert verified
    timed = {name for name, row in rows.items() if row.timing is not None}
    assert {"copy", "torch.topk", "error feedback and taking", "whole selection"} <= timed
    assert "published: GaussianK" in timed


@pytest.mark.parametrize(
    "wrong",
    [
        lambda u, k: torch.topk(u, k).indices,  # the largest values, not the largest magnitudes
        lambda u, k: torch.topk(u.abs(), k).indices[:1].repeat(k),
    ],
)
def test_a_method_that_takes_others_than_the_largest_is_found(monkeypatch, wrong):
    monkeypatch.setitem(side_by_side.PUBLISHED, "published: GaussianK", wrong)
    _, verified = measure()
    assert not verified


def test_what_the_k_largest_are_does_not_depend_on_their_order():
    memory = Memory(NUMEL, DENSITY, "cpu")
    assert abs(memory.k - NUMEL * DENSITY) <= 2
    assert memory.holds(memory.indices.flip(0))
    assert not memory.holds(memory.indices[1:])
    assert memory.holds_largest(memory.indices)


def test_a_cub_without_top_k_has_a_row_that_says_so(monkeypatch):
    class Piece:
        def __init__(self, memory_indices):
            self._indices = memory_indices

        def enqueue(self, stream):
            pass

        def taken(self):
            return self._indices

    sets = [Memory(NUMEL, DENSITY, "cpu") for _ in range(2)]

    class Cub:
        version = "3.0.1"
        has_top_k = False

        def select(self, u, threshold):
            return Piece((u.abs() > threshold).nonzero().squeeze(1))

    monkeypatch.setattr(side_by_side.Cub, "on", lambda device: Cub())
    monkeypatch.setattr(side_by_side, "stream_of", lambda device: 0)
    select, top_k = side_by_side.of_cub(sets, "cuda:0")
    assert "3.0.1" in select.name
    assert all(check() for check in select.check)
    assert top_k.timing is None
    assert "not there: CUB 3.0.1 has none" in top_k.facts.values()


def test_no_compiler_and_one_that_fails_are_reasons(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="no nvcc on PATH"):
        cub_pieces.compile_for("sm_90")
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\n[ $1 = --version ] || { echo unknown option >&2; exit 1; }\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(cub_pieces, "FOLDER", tmp_path)
    with pytest.raises(UnavailableError, match=r"cannot compile cub_pieces\.cu: unknown option"):
        cub_pieces.compile_for("sm_90")
