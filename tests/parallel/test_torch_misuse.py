"""Misuse that would silently damage residuals raises on all ranks, even if only one causes it."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from hvd_sparse.compression import Layers
from hvd_sparse.errors import GradientInFlightError
from hvd_sparse.torch import LAGS, TopK
from hvd_sparse.torch.host import HorovodHost
from tests.parallel.torch_ranks import (
    CULPRIT,
    ON_ANY_RANK,
    Toy,
    distribute,
    expect_error_on_every_rank,
    integer_gradients,
    on_the_culprit,
    total,
)

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")


def test_a_second_backward_raises():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    gradients = integer_gradients(model, 0)

    def run():
        optimizer.zero_grad()
        model.backward(gradients)
        on_the_culprit(lambda: model.backward(gradients))
        optimizer.step()

    expect_error_on_every_rank(run, match="computed more than backward_passes_per_step times")


def test_an_assertion_error_is_raised_as_in_horovod():
    assert issubclass(GradientInFlightError, AssertionError)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_between_backward_and_step_raises(set_to_none):
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def run():
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        on_the_culprit(lambda: optimizer.zero_grad(set_to_none=set_to_none))
        optimizer.step()

    expect_error_on_every_rank(run, match="zero_grad.* was called after loss.backward")


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_models_zero_grad_between_backward_and_step_raises(set_to_none):
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def run():
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        on_the_culprit(lambda: model.zero_grad(set_to_none=set_to_none))
        optimizer.step()

    expect_error_on_every_rank(run, match="was (set to None|written to) after loss.backward")


@pytest.mark.parametrize("parameter", ["first", "bias"])
def test_a_gradient_that_is_replaced_raises(parameter):
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    p = getattr(model, parameter)

    def run():
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        on_the_culprit(lambda: setattr(p, "grad", p.grad.clone()))
        optimizer.step()

    expect_error_on_every_rank(run, match=f"'{parameter}' was replaced after loss.backward")


def test_clipping_before_synchronize_raises():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def run():
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        on_the_culprit(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3))
        optimizer.step()

    expect_error_on_every_rank(run, match="was written to after loss.backward")


def test_what_horovod_writes_by_functions_of_pytorch_is_no_change(monkeypatch):
    """So writes a Horovod that copies tensors of a GPU to the CPU and back."""
    written, reduce = [], HorovodHost.reduce

    def write_and_reduce(self, tensor, *others):
        written.append(tensor.mul_(2.0))
        return reduce(self, tensor, *others)

    monkeypatch.setattr(HorovodHost, "reduce", write_and_reduce)
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    gradients = integer_gradients(model, 0)
    model.backward(gradients)
    optimizer.step()
    assert len(written) == 1
    assert torch.equal(model.bias.detach().double(), -2 * total(gradients["bias"]))


def test_reentrant_checkpointing_of_a_shared_parameter_raises():
    shared = torch.nn.Linear(40, 40)
    optimizer = distribute(shared, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def run():
        optimizer.zero_grad()
        x = torch.ones(2, 40, requires_grad=True)
        y = shared(x)
        y = checkpoint(shared, y, use_reentrant=True) if hvd.rank() == CULPRIT else shared(y)
        y.sum().backward()
        optimizer.step()

    expect_error_on_every_rank(run, match="while it was being exchanged")


def test_a_generator_loss_that_reaches_the_discriminator_raises():
    generator, discriminator = torch.nn.Linear(40, 40), torch.nn.Linear(40, 40)
    compression = LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64))
    of_generator = distribute(generator, compression)
    of_discriminator = distribute(discriminator, compression)

    def run():
        for _ in range(2):
            of_discriminator.zero_grad()
            discriminator(torch.ones(2, 40)).sum().backward()
            of_discriminator.step()
            of_generator.zero_grad()
            discriminator(generator(torch.ones(2, 40))).sum().backward()
            of_generator.step()

    with pytest.raises(ON_ANY_RANK, match="zero_grad"):
        run()


def test_a_gradient_added_to_an_average_raises():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def run():
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        optimizer.synchronize()
        on_the_culprit(lambda: model.backward(integer_gradients(model, 1)))
        with optimizer.skip_synchronize():
            optimizer.step()

    expect_error_on_every_rank(run, match="was added to the average of")


def test_a_step_that_skips_an_exchange_that_never_was_raises_before_it_changes_anything():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def run():
        model.backward(integer_gradients(model, 0))
        with optimizer.skip_synchronize():
            optimizer.step()

    with pytest.raises(ON_ANY_RANK, match="not after synchronize"):
        run()
    assert not any(p.any() for p in model.parameters())


@pytest.mark.parametrize("action", ["load_state_dict", "reset_residual", "passes"])
def test_state_does_not_change_while_gradients_are_in_flight(action):
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    state = optimizer.state_dict()
    actions = {
        "load_state_dict": lambda: optimizer.load_state_dict(state),
        "reset_residual": optimizer.exchange.reset_residual,
        "passes": lambda: optimizer.set_backward_passes_per_step(2),
    }

    def run():
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        on_the_culprit(actions[action])
        optimizer.step()

    expect_error_on_every_rank(run, match="was called after loss.backward")


def test_an_exchange_that_has_ended_stays_so_and_a_new_optimizer_goes_on():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    gradients = integer_gradients(model, 0)

    def run():
        model.backward(gradients)
        model.backward(gradients)

    with pytest.raises(ON_ANY_RANK):
        run()
    for _ in range(2):
        with pytest.raises(ON_ANY_RANK):
            optimizer.step()
    optimizer = distribute(model, TopK(density=0.1, layers=Layers(min_numel=64)))
    optimizer.zero_grad()
    model.backward(gradients)
    optimizer.step()


def test_an_exception_in_a_closure_ends_the_step_on_that_rank_and_the_peers_are_told():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def closure():
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        on_the_culprit(lambda: setattr(model.first, "grad", None))
        return 0.0

    expect_error_on_every_rank(lambda: optimizer.step(closure), match="was set to None")
