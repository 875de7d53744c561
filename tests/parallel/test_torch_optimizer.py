"""Horovod's methods of an optimizer work with a sparse compression, too."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.errors import GradientInFlightError
from hvd_sparse.torch import LAGS, GTopK, TopK
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    distribute,
    gradients_of,
    integer_gradients,
    total,
)
from tests.torch_model import residuals

EXACT = TopK(density=1.0, layers=Layers(min_numel=64, bucket_numel=1500))


def test_the_same_object_comes_back():
    model = Toy()
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = distribute(model, LAGS, optimizer=sgd)
    assert optimizer is sgd
    assert type(optimizer) is torch.optim.SGD
    assert optimizer.backward_passes_per_step == 1


@pytest.mark.parametrize("preset", [LAGS, GTopK])
def test_gradients_of_several_backward_passes_add_up(preset):
    model = Toy()
    compression = preset(
        adaptive=False, density=0.2, layers=Layers(min_numel=64, bucket_numel=1500)
    )
    optimizer = distribute(model, compression, backward_passes_per_step=3)
    before = residuals(optimizer)
    for step in range(3):
        optimizer.zero_grad()
        passes = [integer_gradients(model, 10 * step + i) for i in range(3)]
        for gradients in passes:
            model.backward(gradients)
        optimizer.step()
        sums = {name: sum(gradients[name] for gradients in passes) for name in passes[0]}
        assert_nothing_is_lost(model, step, before, optimizer, sums)
        before = residuals(optimizer)


def test_a_step_before_all_passes_exchanges_what_there_is():
    model = Toy()
    optimizer = distribute(model, EXACT, backward_passes_per_step=2)
    for passes in (1, 2):
        optimizer.zero_grad()
        for _ in range(passes):
            gradients = integer_gradients(model, 3)
            model.backward(gradients)
        optimizer.step()
        for name, p in model.named_parameters():
            assert torch.equal(p.grad.double().flatten(), passes * total(gradients[name]))


def test_the_number_of_passes_can_be_changed():
    model = Toy()
    optimizer = distribute(model, EXACT)
    optimizer.set_backward_passes_per_step(2)
    assert optimizer.backward_passes_per_step == 2
    gradients = integer_gradients(model, 0)
    model.backward(gradients)
    model.backward(gradients)
    optimizer.step()
    assert torch.equal(model.first.grad.double().flatten(), 2 * total(gradients["first"]))


def test_clipping_acts_on_the_average():
    model = Toy()
    optimizer = distribute(model, EXACT)
    model.backward(integer_gradients(model, 0))
    optimizer.synchronize()
    exchanged = gradients_of(model)
    optimizer.synchronize()  # changes nothing
    for name, p in model.named_parameters():
        assert torch.equal(p.grad, exchanged[name])
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert norm > 0.5
    clipped = gradients_of(model)
    with optimizer.skip_synchronize():
        optimizer.step()
    for name, p in model.named_parameters():
        assert torch.equal(p.detach(), -clipped[name])
    assert_same_on_all_ranks(model.parameters())


def test_a_step_after_synchronize_does_not_exchange_twice():
    model = Toy()
    optimizer = distribute(model, TopK(density=0.1, layers=Layers(min_numel=64)))
    model.backward(integer_gradients(model, 0))
    optimizer.synchronize()
    exchanged, kept = gradients_of(model), residuals(optimizer)
    optimizer.step()
    for name, p in model.named_parameters():
        assert torch.equal(p.detach(), -exchanged[name])
    for name, residual in residuals(optimizer).items():
        assert torch.equal(residual, kept[name])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_works_both_ways(set_to_none):
    model = Toy()
    optimizer = distribute(model, EXACT)
    for step in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        for p in model.parameters():
            if step and not set_to_none:
                assert not p.grad.any()
            else:
                assert p.grad is None
        gradients = integer_gradients(model, step)
        model.backward(gradients)
        optimizer.step()
        assert torch.equal(model.last.grad.double().flatten(), total(gradients["last"]))


def test_an_exchanged_step_can_be_skipped():
    model = Toy()
    optimizer = distribute(model, EXACT)
    model.backward(integer_gradients(model, 0))
    optimizer.synchronize()
    optimizer.zero_grad()
    gradients = integer_gradients(model, 1)
    model.backward(gradients)
    optimizer.step()
    assert torch.equal(model.last.grad.double().flatten(), total(gradients["last"]))


@pytest.mark.skipif(hvd.size() == 1, reason="a single rank has no residuals")
def test_a_step_whose_residuals_were_not_kept_cannot_be_thrown_away_but_taken():
    model = Toy()
    optimizer = distribute(model, EXACT)
    for step in range(4):
        gradients = integer_gradients(model, step)
        model.backward(gradients)
        if step == 2:  # the first call after steps that synchronized by themselves
            optimizer.synchronize()
            with pytest.raises(GradientInFlightError, match="were not kept"):
                optimizer.zero_grad()
        if step == 3:
            optimizer.synchronize()
            optimizer.zero_grad()
            continue
        with optimizer.skip_synchronize() if step == 2 else nullcontext():
            optimizer.step()
        assert torch.equal(model.last.grad.double().flatten(), total(gradients["last"]))
        optimizer.zero_grad()


@pytest.mark.parametrize("name", ["SGD", "Adam"])
@pytest.mark.parametrize("by_keyword", [True, False])
def test_closures_are_exchanged_after_their_backward(name, by_keyword):
    model = Toy()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1.0)
    compression = replace(EXACT, feedback=replace(EXACT.feedback, momentum="keep"))
    optimizer = distribute(model, compression, optimizer=optimizer)
    for step in range(3):
        gradients = integer_gradients(model, step)

        def closure(gradients=gradients):
            optimizer.zero_grad()
            model.backward(gradients)
            return 42.0

        loss = optimizer.step(closure=closure) if by_keyword else optimizer.step(closure)
        assert loss == 42.0
        assert torch.equal(model.last.grad.double().flatten(), total(gradients["last"]))
    assert_same_on_all_ranks(model.parameters())


def test_a_parameter_without_gradient_counts_as_zero_on_that_rank_only():
    model = Toy()
    optimizer = distribute(model, EXACT)
    for step in range(6):  # long enough for the launch order to be planned twice
        optimizer.zero_grad()
        gradients = integer_gradients(model, step)
        unused = ("last", "bias") if hvd.rank() == hvd.size() - 1 else ()
        model.backward({name: g for name, g in gradients.items() if name not in unused})
        optimizer.step()
        for name, p in model.named_parameters():
            mine = torch.zeros_like(p) if name in unused else gradients[name]
            assert hvd.size() == 1 or torch.equal(p.grad.double().flatten(), total(mine))


def test_a_parameter_that_no_rank_uses_does_not_stop_the_others():
    model = Toy()
    optimizer = distribute(model, EXACT)
    for step in range(6):
        optimizer.zero_grad()
        gradients = integer_gradients(model, step)
        model.backward({"first": gradients["first"]})
        optimizer.step()
        assert torch.equal(model.first.grad.double().flatten(), total(gradients["first"]))
        if hvd.size() > 1:
            assert not model.last.grad.any()


def test_gradients_may_be_views_of_one_tensor():
    model = Toy()
    optimizer = distribute(model, EXACT)
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    parts = flat.split([p.numel() for p in model.parameters()])
    for p, part in zip(model.parameters(), parts, strict=True):
        p.grad = part.view_as(p)
    for step in range(2):
        flat.zero_()
        gradients = integer_gradients(model, step)
        model.backward(gradients)
        optimizer.step()
        averages = torch.cat([total(gradient) for gradient in gradients.values()])
        assert torch.equal(flat.double(), averages)
