"""The residual follows the learning rate: late entries count at the rate of their step."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.errors import ExchangeFailedError, UnsupportedError
from hvd_sparse.torch import LAGS, GTopK, TopK
from tests.parallel.torch_ranks import (
    CULPRIT,
    Toy,
    distribute,
    integer_gradients,
    on_the_culprit,
    total,
)
from tests.torch_model import residuals

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank has no residuals")
SPARSE = {"density": 0.001, "layers": Layers(min_numel=64), "feedback": Feedback(momentum="keep")}


def with_momentum(groups, lr):
    return torch.optim.SGD(groups, lr=lr, momentum=0.5)


def optimizer_for(model, compression, kind=torch.optim.SGD):
    groups = [
        {"params": [model.first, model.bias]},
        {"params": [model.second, model.last], "lr": 1},
    ]
    return distribute(model, compression, optimizer=kind(groups, lr=4.0))


def largest_change(model, optimizer, *, first_rate, clipped=False):
    """Takes a step without gradients; returns the residual's largest ratio of after to before."""
    optimizer.zero_grad()
    model.backward(integer_gradients(model, hvd.rank()))
    optimizer.step()
    if clipped:
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    for rate in first_rate:
        before = residuals(optimizer)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        model.backward({name: torch.zeros_like(p) for name, p in model.named_parameters()})
        optimizer.step()
    after = residuals(optimizer)
    ratios = {}
    for name, residual in after.items():
        kept = (residual != 0) & (before[name] != 0)
        values = (residual[kept] / before[name][kept]).unique()
        assert len(values) == 1
        ratios[name] = values.item()
    return ratios


@pytest.mark.parametrize(
    ("rates", "ratio"),
    [([2.0], 2.0), ([8.0], 0.5), ([4.0], 1.0), ([0.0], 1.0), ([0.0, 1.0], 4.0), ([0.0, 4.0], 1.0)],
)
def test_the_residual_scales_with_old_rate_over_new_of_its_group(rates, ratio):
    model = Toy()
    ratios = largest_change(
        model, optimizer_for(model, LAGS(adaptive=False, warmup=None, **SPARSE)), first_rate=rates
    )
    assert ratios == {"first": ratio, "second": 1.0, "last": 1.0}


@pytest.mark.parametrize(
    ("compression", "kind", "clipped", "followed"),
    [
        (LAGS(adaptive=False, warmup=None, **SPARSE), torch.optim.SGD, False, True),
        (LAGS(adaptive=False, warmup=None, **SPARSE), with_momentum, False, False),
        (LAGS(adaptive=False, warmup=None, **SPARSE), torch.optim.Adagrad, False, False),
        (LAGS(adaptive=False, warmup=None, **SPARSE), torch.optim.SGD, True, False),
        (GTopK(**SPARSE), torch.optim.SGD, False, False),
        (TopK(**SPARSE), torch.optim.SGD, False, False),
        (
            LAGS(
                adaptive=False,
                warmup=None,
                **SPARSE | {"feedback": Feedback(momentum="keep", rescale=True)},
            ),
            torch.optim.Adagrad,
            True,
            True,
        ),
        (
            TopK(**SPARSE | {"feedback": Feedback(momentum="keep", rescale=True)}),
            with_momentum,
            False,
            True,
        ),
        (
            LAGS(
                adaptive=False,
                warmup=None,
                **SPARSE | {"feedback": Feedback(momentum="keep", rescale=False)},
            ),
            torch.optim.SGD,
            False,
            False,
        ),
    ],
)
def test_the_default_is_for_lags_with_plain_sgd_without_clipping(
    compression, kind, clipped, followed
):
    model = Toy()
    optimizer = optimizer_for(model, compression, kind)
    ratios = largest_change(model, optimizer, first_rate=[2.0], clipped=clipped)
    assert ratios["first"] == (2.0 if followed else 1.0)


def test_the_rate_of_a_residual_is_saved_with_it():
    model = Toy()
    optimizer = optimizer_for(model, LAGS(adaptive=False, warmup=None, **SPARSE))
    model.backward(integer_gradients(model, hvd.rank()))
    optimizer.step()
    state = optimizer.state_dict()
    optimizer = optimizer_for(model, LAGS(adaptive=False, warmup=None, **SPARSE))
    optimizer.load_state_dict(state)
    before = residuals(optimizer)
    optimizer.param_groups[0]["lr"] = 2.0
    optimizer.zero_grad()
    optimizer.step()
    after = residuals(optimizer)["first"]
    kept = after != 0
    assert torch.equal(after[kept], 2 * before["first"][kept])


def test_a_rate_that_no_residual_follows_is_not_saved():
    """Otherwise the next process would start from it, where nobody has clipped yet."""
    model = Toy()
    optimizer = optimizer_for(model, LAGS(adaptive=False, warmup=None, **SPARSE))
    model.backward(integer_gradients(model, hvd.rank()))
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert optimizer.state_dict()["hvd_sparse"]["lrs"] == {}


def test_in_units_of_the_rate_nothing_is_lost():
    """Checks that lr * (sum of gradients + residuals) is applied or kept, step by step.

    The exception is gradients delivered at a rate of 0, which would have counted at the previous
    rate.
    """
    model = Toy({"w": (40, 30)})
    optimizer = distribute(
        model,
        LAGS(adaptive=False, density=0.05, layers=Layers(min_numel=1)),
        optimizer=torch.optim.SGD([model.w], lr=1.0),
    )
    owed, lost = torch.zeros(1200).double(), torch.zeros(1200).double()
    for step, rate in enumerate([1.0, 0.5, 0.0, 0.25, 2.0]):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        gradients = integer_gradients(model, step) if rate else {"w": torch.zeros(40, 30)}
        model.backward(gradients)
        optimizer.step()
        gathered = hvd.allreduce(
            gradients["w"].double().flatten(), op=hvd.Sum, name=f"rates.{step}"
        )
        owed -= rate * gathered
        if rate:
            kept = hvd.allreduce(residuals(optimizer)["w"], op=hvd.Sum, name=f"rates.kept.{step}")
            assert torch.equal(model.w.detach().double().flatten() - rate * kept, owed - lost)
        else:
            lost = -0.5 * model.w.grad.double().flatten()
            assert lost.any()


def remove_the_first(optimizer, model):
    """Removes a group of parameters that are always dense, and so have no residual."""
    del optimizer.param_groups[0]


def reverse(optimizer, model):
    optimizer.param_groups.reverse()


def rotate(optimizer, model):
    optimizer.param_groups.append(optimizer.param_groups.pop(0))


def merge(optimizer, model):
    last = optimizer.param_groups.pop()
    optimizer.param_groups[1]["params"] += last["params"]


def split(optimizer, model):
    params = optimizer.param_groups[1]["params"]
    optimizer.param_groups[1]["params"] = [one for one in params if one is not model.second]
    group = {**optimizer.param_groups[1], "params": [model.second], "lr": 8.0}
    optimizer.param_groups.insert(0, group)


def take_out_and_add(optimizer, model):
    del optimizer.param_groups[1]
    optimizer.add_param_group({"params": [model.first], "lr": 16.0})
    optimizer.add_param_group({"params": [model.second], "lr": 2.0})


def load(optimizer, model):
    """Loads a state dict, which makes new parameter groups."""
    state = optimizer.state_dict()
    state["param_groups"][1]["lr"] = 8.0
    optimizer.load_state_dict(state)


UNCHANGED = {"first": 1.0, "second": 1.0, "last": 1.0}


@pytest.mark.parametrize(
    ("change", "ratios"),
    [
        (remove_the_first, UNCHANGED),
        (reverse, UNCHANGED),
        (rotate, UNCHANGED),
        (merge, {**UNCHANGED, "last": 0.25}),
        (split, {**UNCHANGED, "second": 0.5}),
        (take_out_and_add, {**UNCHANGED, "first": 0.25, "second": 2.0}),
        (load, {**UNCHANGED, "first": 0.5, "second": 0.5}),
    ],
)
def test_the_residual_follows_its_own_parameter_wherever_that_goes(change, ratios):
    model = Toy()
    groups = [
        {"params": [model.bias], "lr": 0.5},
        {"params": [model.first, model.second], "lr": 4.0},
        {"params": [model.last], "lr": 1.0},
    ]
    optimizer = distribute(
        model,
        LAGS(adaptive=False, warmup=None, **SPARSE),
        optimizer=torch.optim.SGD(groups, lr=32.0),
    )
    model.backward(integer_gradients(model, hvd.rank()))
    optimizer.step()
    before = residuals(optimizer)
    change(optimizer, model)
    for step in range(2):  # the residual is rescaled once
        optimizer.zero_grad()
        model.backward({name: torch.zeros_like(p) for name, p in model.named_parameters()})
        optimizer.step()
        after = residuals(optimizer)
        for name, ratio in ratios.items():
            kept = after[name] != 0
            assert kept.any()
            assert torch.equal(after[name][kept], ratio * before[name][kept]), (step, name)


def test_rates_by_name_are_saved_whatever_the_groups_order():
    model = Toy()
    optimizer = optimizer_for(model, LAGS(adaptive=False, warmup=None, **SPARSE))
    optimizer.param_groups.reverse()
    model.backward(integer_gradients(model, hvd.rank()))
    optimizer.step()
    rates = {"first": 4.0, "second": 1.0, "last": 1.0}
    assert optimizer.state_dict()["hvd_sparse"]["lrs"] == rates


def test_a_parameter_that_no_group_holds_any_more_is_refused_and_its_residual_stays():
    model = Toy()
    optimizer = optimizer_for(model, LAGS(adaptive=False, warmup=None, **SPARSE))
    model.backward(integer_gradients(model, hvd.rank()))
    optimizer.step()
    before = residuals(optimizer)["first"]
    values = model.first.detach().clone()

    def run():
        optimizer.zero_grad()
        model.backward({name: torch.zeros_like(p) for name, p in model.named_parameters()})
        optimizer.step()

    def remove():
        del optimizer.param_groups[0]

    on_the_culprit(remove)
    if hvd.rank() == CULPRIT:
        match = "'first' is in no parameter group of SGD any more"
        with pytest.raises(UnsupportedError, match=match):
            run()
    else:
        with pytest.raises(ExchangeFailedError, match="'first' is in no parameter group"):
            run()
    assert torch.equal(model.first, values)
    assert torch.equal(residuals(optimizer)["first"], before)


def test_a_frozen_parameter_that_stays_in_its_group_gets_what_it_is_owed():
    model = Toy({"w": (8, 8), "v": (8, 8)})
    optimizer = distribute(
        model,
        LAGS(adaptive=False, density=0.25, layers=Layers(min_numel=1)),
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    )
    gradients = integer_gradients(model, 0)
    model.backward(gradients)
    optimizer.step()
    model.w.requires_grad_(False)
    moved = model.w.detach().clone()
    for _ in range(4):
        optimizer.zero_grad()
        model.backward({"v": torch.zeros(8, 8)})
        optimizer.step()
    assert not torch.equal(model.w, moved)
    owed = total(gradients["w"]) - total(residuals(optimizer)["w"])
    assert torch.equal(-model.w.double().flatten(), owed)
