"""An optimizer's exchange from one world to the next, without a world: what can be refused."""

from __future__ import annotations

import pytest
import torch

from hvd_sparse.errors import HvdSparseError, UnavailableError
from hvd_sparse.torch import renewal as module
from hvd_sparse.torch.optimizer import has_peers
from hvd_sparse.torch.renewal import Renewal


class ProcessSet:
    """One of Horovod's, of two ranks."""

    def __init__(self, size: int | None, *, included: bool = True) -> None:
        self.ranks = [0, 1]
        self._size, self._included = size, included

    def size(self) -> int:
        if self._size is None:
            raise ValueError("Process set does not exist or has not been registered.")
        return self._size

    def rank(self) -> int:
        return 0

    def included(self) -> bool:
        return self._included


@pytest.fixture
def built(monkeypatch):
    monkeypatch.setattr(module.hvd, "is_initialized", lambda: True)
    return []


def renewal_of(param: torch.Tensor, built: list[int]) -> Renewal:
    return Renewal(lambda: built.append(1), [param], ProcessSet(2))


def test_the_first_gradient_has_it_built_once(built):
    param = torch.nn.Parameter(torch.ones(3))
    renewal = renewal_of(param, built)
    renewal.defer()
    assert renewal.pending
    param.sum().backward()
    param.sum().backward()
    assert built == [1]
    assert not renewal.pending


def test_after_a_shutdown_it_is_built_anew(built):
    param = torch.nn.Parameter(torch.ones(3))
    renewal = renewal_of(param, built)
    renewal.renew()
    renewal.close()
    assert renewal.pending
    param.sum().backward()
    assert built == [1, 1]


def test_without_horovod_it_is_refused(built, monkeypatch):
    renewal = renewal_of(torch.nn.Parameter(torch.ones(3)), built)
    monkeypatch.setattr(module.hvd, "is_initialized", lambda: False)
    with pytest.raises(UnavailableError, match=r"call hvd.init\(\) first"):
        renewal.renew()


def test_one_that_was_retired_builds_nothing(built):
    param = torch.nn.Parameter(torch.ones(3))
    renewal = renewal_of(param, built)
    renewal.renew()
    renewal.retire("there is a newer one")
    renewal.close()
    param.sum().backward()
    assert built == [1]
    with pytest.raises(HvdSparseError, match="there is a newer one"):
        renewal.renew()


def test_it_dies_with_its_optimizer_though_parameters_live(built):
    param = torch.nn.Parameter(torch.ones(3))
    renewal_of(param, built).defer()
    param.sum().backward()
    assert built == []


@pytest.mark.parametrize("size", [None, 3])
def test_a_process_set_that_horovod_forgot_is_refused(size):
    with pytest.raises(UnavailableError, match="add others again"):
        has_peers(ProcessSet(size))


def test_a_rank_outside_a_process_set_has_no_peers():
    assert not has_peers(ProcessSet(2, included=False))
    assert has_peers(ProcessSet(2))
