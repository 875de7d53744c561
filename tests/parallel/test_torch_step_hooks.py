"""Everything that runs in a step sees averages: hooks, replaced methods, wrapping optimizers."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict

import horovod.torch as hvd
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hvd_sparse.compression import Layers
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.torch import LAGS, TopK
from tests.parallel.torch_ranks import (
    Toy,
    distribute,
    expect_error_on_every_rank,
    integer_gradients,
    on_the_culprit,
    total,
)

EXACT = TopK(density=1.0, layers=Layers(min_numel=64, bucket_numel=1500))

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")


def take_steps(model, optimizer, *, steps=2, step=None):
    """Takes steps of SGD with a rate of 1, which must apply the sums over the ranks."""
    expected = torch.zeros_like(model.last).flatten().double()
    for number in range(steps):
        optimizer.zero_grad()
        gradients = integer_gradients(model, number)
        model.backward(gradients)
        (step or optimizer.step)()
        expected -= total(gradients["last"])
        assert torch.equal(model.last.detach().flatten().double(), expected)


class Bare(torch.optim.Optimizer):
    """An optimizer like over9000's: it skips Optimizer's constructor, and has no hooks at all."""

    def __init__(self, base):
        self._base_optimizer = base
        self.param_groups, self.defaults = base.param_groups, base.defaults
        self.state = defaultdict(dict)

    def step(self, closure=None):
        return self._base_optimizer.step(closure)

    def zero_grad(self):  # Optimizer's own would look for hooks
        self._base_optimizer.zero_grad()

    def state_dict(self):
        return self._base_optimizer.state_dict()


class Lookahead(Bare):
    """An optimizer like timm's: it only makes the hooks of step()."""

    def __init__(self, base):
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()
        super().__init__(base)

    def zero_grad(self):
        torch.optim.Optimizer.zero_grad(self)


class Accelerated(torch.optim.Optimizer):
    """An optimizer like accelerate's: it forwards everything to the optimizer inside."""

    def __init__(self, base):
        self.optimizer = base

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    def __getattr__(self, name):
        return getattr(self.optimizer, name)

    def step(self, closure=None):
        return self.optimizer.step(closure)

    def zero_grad(self):
        self.optimizer.zero_grad()


@pytest.mark.parametrize("wrapper", [Lookahead, Bare, Accelerated])
def test_a_wrapper_without_hooks_is_refused_by_name_and_works_around_the_result(wrapper):
    model = Toy()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(
        UnsupportedError, match=f"{wrapper.__name__} does not run .* around the result"
    ):
        distribute(model, EXACT, optimizer=wrapper(sgd))
    take_steps(model, wrapper(distribute(model, EXACT, optimizer=sgd)))


class Replaced(torch.optim.SGD):
    """A class whose methods tests replace; separate, since replacements persist."""


def plain_step(self, closure=None):
    """Takes a step of SGD without hooks."""
    loss = None if closure is None else closure()
    with torch.no_grad():
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])
    return loss


def replace_step(optimizer, where, monkeypatch):
    if where == "class":
        monkeypatch.setattr(Replaced, "step", plain_step)
    elif where == "method of the instance":
        optimizer.step = types.MethodType(plain_step, optimizer)
    else:
        optimizer.step = lambda closure=None: plain_step(optimizer, closure)


PLACES = ["class", "method of the instance", "function of the instance"]


@pytest.mark.parametrize("when", ["before", "after", "in training"])
@pytest.mark.parametrize("where", PLACES)
def test_a_replaced_step_applies_averages(where, when, monkeypatch):
    model = Toy()
    optimizer = Replaced(model.parameters(), lr=1.0)
    if when == "before":
        replace_step(optimizer, where, monkeypatch)
    optimizer = distribute(model, EXACT, optimizer=optimizer)
    if when == "in training":
        model.backward(integer_gradients(model, 7))
        optimizer.step()
        with torch.no_grad():
            model.last.zero_()
    if when != "before":
        replace_step(optimizer, where, monkeypatch)
    take_steps(model, optimizer)


@pytest.mark.parametrize("where", PLACES)
def test_the_closure_of_a_replaced_step_gives_averages(where, monkeypatch):
    model = Toy()
    optimizer = Replaced(model.parameters(), lr=1.0)
    replace_step(optimizer, where, monkeypatch)
    optimizer = distribute(model, EXACT, optimizer=optimizer)
    gradients = integer_gradients(model, 0)
    optimizer.step(lambda: model.backward(gradients))
    assert torch.equal(model.last.detach().flatten().double(), -total(gradients["last"]))


def test_a_step_that_calls_the_original_one_calls_it_once():
    model = Toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    original, calls = optimizer.step, []
    optimizer.step = lambda *args: calls.append(original(*args))
    take_steps(model, distribute(model, EXACT, optimizer=optimizer))
    assert len(calls) == 2


def test_a_scheduler_takes_a_step_that_was_replaced(monkeypatch):
    model = Toy()
    optimizer = Replaced(model.parameters(), lr=1.0)
    replace_step(optimizer, "function of the instance", monkeypatch)
    optimizer = distribute(model, EXACT, optimizer=optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    take_steps(model, optimizer)
    scheduler.step()


@pytest.mark.parametrize("then", ["zero_grad", "backward", "step"])
def test_a_step_that_bypassed_the_exchange_is_named_as_the_cause(then):
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def bypass():
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.detach().sub_(p.grad)

    def run():
        gradients = integer_gradients(model, 0)
        model.backward(gradients)
        on_the_culprit(bypass)
        if hvd.rank() == hvd.size() - 1:
            if then == "zero_grad":
                optimizer.zero_grad()
            elif then == "backward":
                model.backward(gradients)
            else:
                with optimizer.skip_synchronize():
                    optimizer.step()
        optimizer.step()

    expect_error_on_every_rank(run, match="was changed after loss.backward.*a step that bypassed")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("of", ["the instance", "all optimizers"])
def test_other_pre_hooks_see_averages_and_may_change_them(of, when):
    model = Toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def clip(*_):
        seen.append(model.last.grad.clone())
        model.last.grad.mul_(0.5)

    def register():
        if of == "the instance":
            return optimizer.register_step_pre_hook(clip)
        return register_optimizer_step_pre_hook(clip)

    seen = []
    if when == "before":
        handle = register()
    optimizer = distribute(model, EXACT, optimizer=optimizer)
    if when == "after":
        handle = register()
    try:
        gradients = integer_gradients(model, 0)
        model.backward(gradients)
        optimizer.step()
    finally:
        handle.remove()
    summed = total(gradients["last"])
    assert torch.equal(seen[0].flatten().double(), summed)
    assert torch.equal(model.last.detach().flatten().double(), -0.5 * summed)
