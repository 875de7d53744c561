"""Arguments of DistributedOptimizer, checked before ranks communicate."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.pytorch.learning_rates import LearningRates
from hvd_sparse.pytorch.parameters import name_parameters
from hvd_sparse.pytorch.settings import Settings, check_parameter
from hvd_sparse.pytorch.slots import Slot
from hvd_sparse.torch import LAGS
from hvd_sparse.torch.host import HorovodHost


def sgd(*params, **options):
    return torch.optim.SGD(params or [torch.nn.Parameter(torch.zeros(2))], lr=1.0, **options)


def checked(compression, **options):
    return Settings.checked(sgd(), compression, host=HorovodHost(), **options)


@pytest.mark.parametrize(
    ("options", "scales"),
    [
        ({}, (1.0, 0.25)),
        ({"op": hvd.Sum}, (1.0, 1.0)),
        ({"gradient_predivide_factor": 2.0}, (0.5, 0.5)),
    ],
)
def test_gradients_are_scaled_before_and_after_the_sum(options, scales):
    assert checked(LAGS, **options).reduction.scales(4) == scales


@pytest.mark.parametrize("passes", [0, -1])
def test_too_few_passes_are_refused_in_horovods_words(passes):
    with pytest.raises(ValueError, match=r"^backward_passes_per_step must be > 0$"):
        checked(LAGS, backward_passes_per_step=passes)


@pytest.mark.parametrize("passes", [1.5, "2", True])
def test_passes_are_counted_in_whole_numbers(passes):
    with pytest.raises(InvalidArgumentError, match="must be an integer"):
        checked(LAGS, backward_passes_per_step=passes)


def test_what_must_be_equal_on_all_ranks_is_described():
    described = checked(LAGS(density=0.25), op=hvd.Sum).describe()
    assert described["compression"] == "LAGS(density=0.25)"
    assert described["op"] == "Sum"
    assert set(described) == {
        "compression", "backward_passes_per_step", "op", "gradient_predivide_factor",
        "sparse_as_dense", "grad_scaler", "wait_in_forward",
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float8_e4m3fn])
def test_number_types_without_an_exchange_are_refused(dtype):
    with pytest.raises(UnsupportedError, match=f"parameter 'w' is {dtype}"):
        check_parameter("w", torch.zeros(3, dtype=dtype))


def test_parameters_are_taken_in_the_order_of_their_names():
    a, b, c = (torch.nn.Parameter(torch.zeros(n)) for n in (1, 2, 3))
    c.requires_grad_(False)
    optimizer = sgd({"params": [b, c]}, {"params": [a]})
    named = [("a", a), ("b", b), ("c", c), ("elsewhere", torch.nn.Parameter(torch.zeros(4)))]
    assert [name for name, _ in name_parameters(optimizer, named)] == ["a", "b"]
    assert [name for name, _ in name_parameters(optimizer, None)] == [
        "allreduce.noname.0.0",
        "allreduce.noname.1.0",
    ]


def test_a_parameter_with_two_names_is_exchanged_once():
    tied = torch.nn.Parameter(torch.zeros(2))
    named = name_parameters(sgd(tied), [("encoder", tied), ("decoder", tied)])
    assert [name for name, _ in named] == ["encoder"]


def test_tensor_learning_rates_are_followed():
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([param], lr=torch.tensor(0.5))
    rates = LearningRates(optimizer, LAGS())
    slot = Slot("w", param, passes=1)
    assert rates.decays([slot]) == [1.0]
    optimizer.param_groups[0]["lr"].fill_(0.25)
    assert rates.decays([slot]) == [2.0]
    assert rates.decays([slot]) == [1.0]
    rates.clipping_seen()
    optimizer.param_groups[0]["lr"].fill_(1.0)
    assert rates.decays([slot]) == [1.0]
