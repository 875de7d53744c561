"""Momentum correction: the law holds with velocities; dense layers use momentum SGD."""

from __future__ import annotations

import pytest
import torch

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.errors import CheckpointMismatchError, ExchangeFailedError, InvalidArgumentError
from hvd_sparse.torch import GTopK, TopK
from tests.framework_laws import laws_in, momentum
from tests.parallel.torch_ranks import (
    Toy,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
)
from tests.torch_model import velocities

globals().update(laws_in(momentum))

OPTIONS = {"density": 0.1, "layers": Layers(min_numel=64), "feedback": Feedback(momentum=0.5)}


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()


def test_reset_residual_empties_velocities_and_a_damaged_one_is_refused():
    model = Toy()
    optimizer = distribute(model, GTopK(**OPTIONS))
    train(model, optimizer, range(2))
    state = optimizer.state_dict()
    state["hvd_sparse"]["velocities"]["bias"] = torch.zeros(3)
    with pytest.raises(CheckpointMismatchError, match="velocity of 'bias' is damaged"):
        optimizer.load_state_dict(state)
    optimizer.exchange.reset_residual()
    assert not any(part.any() for part in velocities(optimizer).values())


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9), "momentum of group 0 of SGD is 0.9"),
        (torch.optim.Adam, r"betas of group 0 of Adam is \(0.9, 0.999\)"),
    ],
)
def test_momentum_is_not_applied_twice(make, match):
    model = Toy()
    with pytest.raises(InvalidArgumentError, match=f"{match} and Feedback momentum"):
        distribute(model, TopK(**OPTIONS), optimizer=make(model.parameters()))


def test_an_adam_without_momentum_of_its_own_takes_the_corrected_one():
    model = Toy()
    adam = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.0, 0.999))
    optimizer = distribute(model, TopK(**OPTIONS), optimizer=adam)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, optimizer, range(2))
    assert not any(map(torch.equal, before, model.parameters()))
    assert_same_on_all_ranks(model.parameters())


def test_momentum_that_comes_with_a_loaded_state_is_refused():
    model = Toy()
    optimizer = distribute(model, TopK(**OPTIONS))
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises((InvalidArgumentError, ExchangeFailedError), match="act twice"):
        train(model, optimizer, range(2))
