"""Devices that are missing, and arguments that no device accepts."""

from __future__ import annotations

import pytest

from hvd_sparse import _core, _core_testing
from hvd_sparse.errors import InvalidArgumentError, UnavailableError
from hvd_sparse.exchange.exchange import Exchange
from tests import laws
from tests.device_array import GPU


def add_bucket(device, *, nodes_first=False):
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    sparsifier = laws.EVERY_SPARSIFIER["top_k"]
    return exchange.add_bucket(
        "a bucket",
        numels=[100],
        segments=[100],
        max_ks=[10],
        sparsifier=sparsifier,
        collective="allgather",
        device=device,
        nodes_first=nodes_first,
    )


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:9999", ""])
def test_a_device_of_no_known_name_is_refused(device):
    with pytest.raises(InvalidArgumentError, match="device must be 'cpu', or 'cuda:' and a number"):
        add_bucket(device)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(UnavailableError, match=r"CUDA|cuda:99"):
        add_bucket("cuda:99")


def test_sums_of_nodes_take_no_gradients_of_a_device():
    with pytest.raises(InvalidArgumentError, match="nodes_first adds up residuals on the CPU"):
        add_bucket(GPU, nodes_first=True)


@pytest.mark.skipif(_core.with_cuda, reason="this build has CUDA")
def test_a_build_without_cuda_says_how_to_get_it():
    with pytest.raises(UnavailableError, match="no CUDA"):
        _core.cuda_devices()
    with pytest.raises(UnavailableError, match="HVD_SPARSE_WITH_CUDA=1"):
        add_bucket(GPU)


@pytest.mark.skipif(_core.with_cuda, reason="this build has CUDA")
def test_work_for_a_stream_is_refused_without_cuda():
    block = _core.Block([1], [1.0])
    with pytest.raises(UnavailableError, match=r"cuda:0 need it: .* HVD_SPARSE_WITH_CUDA=1"):
        _core_testing.merge_work(block, block, k=1, device=GPU)
