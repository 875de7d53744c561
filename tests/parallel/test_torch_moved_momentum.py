"""An optimizer's own momentum is applied before error feedback, and not a second time after it."""

from __future__ import annotations

import copy

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Feedback, Layers, Warmup
from hvd_sparse.errors import ExchangeFailedError, InvalidArgumentError
from hvd_sparse.pytorch.attachment import attachment_of
from hvd_sparse.torch import LAGS, TopK
from tests.parallel.torch_ranks import (
    Toy,
    assert_same_on_all_ranks,
    distribute,
    gradients_of,
    integer_gradients,
    totals,
)
from tests.torch_model import residuals, velocities

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank leaves it as it is")
SPARSE = {"density": 0.1, "layers": Layers(min_numel=64)}
DENSE = {"layers": Layers(min_numel=10**6)}
FAMILY = [
    (torch.optim.Adam, {"betas": (0.5, 0.999)}),
    (torch.optim.AdamW, {"betas": (0.5, 0.999)}),
    (torch.optim.NAdam, {"betas": (0.5, 0.999)}),
    (torch.optim.RAdam, {"betas": (0.5, 0.999)}),
    (torch.optim.Adamax, {"betas": (0.5, 0.999)}),
    (torch.optim.SGD, {"momentum": 0.5}),
    (torch.optim.SGD, {"momentum": 0.5, "dampening": 0.5, "weight_decay": 0.25}),
    (torch.optim.SGD, {"momentum": 0.5, "nesterov": True}),
]


def even_gradients(model, step):
    """Returns integers whose halves are integers, too."""
    return {name: 2 * one for name, one in integer_gradients(model, step).items()}


def wrapped(kind, options, compression, **others):
    model = Toy()
    optimizer = kind(model.parameters(), **{"lr": 0.125, **options})
    return model, distribute(model, compression, optimizer=optimizer, **others)


def train(model, optimizer, steps, gradients_for=integer_gradients):
    for step in steps:
        optimizer.zero_grad()
        model.backward(gradients_for(model, step))
        optimizer.step()


@several_ranks
@pytest.mark.parametrize(("kind", "options"), FAMILY)
def test_the_law_holds_with_the_momentum_of_each_optimizer(kind, options):
    model, optimizer = wrapped(kind, options, TopK(**SPARSE))
    settings = [dict(group) for group in optimizer.param_groups]
    for step in range(4):
        kept, moved = residuals(optimizer), velocities(optimizer)
        gradients = even_gradients(model, step)
        optimizer.zero_grad()
        model.backward(gradients)
        optimizer.step()
        after = residuals(optimizer)
        smoothed = {
            name: 0.5 * one.double().flatten() + 0.5 * moved.get(name, 0.0)
            for name, one in gradients.items()
        }
        owed = {
            name: one + kept.get(name, 0.0) - after.get(name, 0.0) for name, one in smoothed.items()
        }
        summed = totals(owed)
        for name, result in gradients_of(model).items():
            assert torch.equal(summed[name], result.double().flatten()), (step, name)
        assert_same_on_all_ranks(model.parameters())
    assert set(velocities(optimizer)) == set(dict(model.named_parameters()))
    for group, before in zip(optimizer.param_groups, settings, strict=True):
        assert {**group, "params": 0} == {**before, "params": 0}


@several_ranks
def test_dense_steps_have_the_momentum_of_the_stock_optimizer():
    options = {"betas": (0.9, 0.99)}
    moved, optimizer = wrapped(torch.optim.Adam, options, TopK(**DENSE), op=hvd.Average)
    model = Toy()
    stock = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), **options),
        named_parameters=model.named_parameters(),
        op=hvd.Average,
    )
    for step in range(4):
        train(model, stock, [step])
        train(moved, optimizer, [step])
        for one, other in zip(moved.parameters(), model.parameters(), strict=True):
            momentum = stock.state[other]["exp_avg"]
            torch.testing.assert_close(one.grad, momentum, rtol=1e-5, atol=1e-6)
            assert torch.equal(optimizer.state[one]["exp_avg"], one.grad)


@several_ranks
@pytest.mark.parametrize(
    "compression",
    [TopK(**DENSE), TopK(density=1.0, layers=Layers(min_numel=1)), LAGS(**DENSE)],
    ids=repr,
)
def test_where_all_is_delivered_a_step_is_that_of_the_stock_sgd(compression):
    options = {"momentum": 0.75, "dampening": 0.5}
    moved, optimizer = wrapped(torch.optim.SGD, options, compression, op=hvd.Average)
    model = Toy()
    stock = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.125, **options),
        named_parameters=model.named_parameters(),
        op=hvd.Average,
    )
    # Its first buffer is a gradient that is not dampened.
    train(moved, optimizer, range(8), lambda model, step: integer_gradients(model, max(step, 1)))
    for step in range(8):
        gradients = integer_gradients(model, max(step, 1))
        if step == 0:
            gradients = {name: one * 0.5 for name, one in gradients.items()}
        train(model, stock, [step], lambda _, __, gradients=gradients: gradients)
    for one, other in zip(moved.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@several_ranks
def test_velocities_of_sgd_keep_what_was_delivered():
    model, optimizer = wrapped(torch.optim.SGD, {"momentum": 0.5}, TopK(**SPARSE))
    expected = dict.fromkeys(dict(model.named_parameters()), torch.zeros(1, dtype=torch.float64))
    for step in range(4):
        for name, gradient in even_gradients(model, step).items():
            expected[name] = 0.5 * expected[name] + 0.5 * gradient.double().flatten()
        train(model, optimizer, [step], even_gradients)
        for name, velocity in velocities(optimizer).items():
            assert torch.equal(velocity, expected[name]), name


@several_ranks
def test_the_momentum_of_a_schedule_is_that_of_each_step():
    model, optimizer = wrapped(torch.optim.Adam, {"betas": (0.5, 0.9)}, TopK(**DENSE))
    expected = torch.zeros(7, dtype=torch.float64)
    for step, momentum in enumerate((0.5, 0.75, 0.25)):
        for group in optimizer.param_groups:
            group["betas"] = (momentum, 0.9)
        gradients = integer_gradients(model, step)
        expected = momentum * expected + (1 - momentum) * gradients["bias"].double()
        optimizer.zero_grad()
        model.backward(gradients)
        optimizer.step()
        assert torch.equal(velocities(optimizer)["bias"], expected)
    assert [group["betas"] for group in optimizer.param_groups] == [(0.25, 0.9)]


@pytest.mark.parametrize(
    ("kind", "options", "compression"),
    [
        (torch.optim.SGD, {}, {}),
        (torch.optim.SGD, {"momentum": 0.5}, {"feedback": Feedback(momentum="keep")}),
        (torch.optim.RMSprop, {"momentum": 0.5}, {}),
        (torch.optim.Adagrad, {}, {}),
        (torch.optim.Adam, {"betas": (0.0, 0.9)}, {}),
        (torch.optim.Adam, {}, {"feedback": Feedback(momentum="keep")}),
    ],
)
def test_an_optimizer_without_a_momentum_to_move_keeps_what_it_has(kind, options, compression):
    model, optimizer = wrapped(kind, options, TopK(**SPARSE, **compression))
    train(model, optimizer, range(2))
    assert not velocities(optimizer)
    assert_same_on_all_ranks(model.parameters())


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
def test_muon_keeps_its_momentum():
    model = Toy({"first": (40, 30), "last": (30, 20)})
    muon = torch.optim.Muon(model.parameters(), momentum=0.5, lr=0.125)
    optimizer = distribute(model, TopK(**SPARSE), optimizer=muon, op=hvd.Average)
    train(model, optimizer, range(3))
    assert not velocities(optimizer)
    assert_same_on_all_ranks(model.parameters())
    assert_same_on_all_ranks(state["momentum_buffer"] for state in optimizer.state.values())


class Failing(torch.optim.Adam):
    """Fails where its step would begin, if told so."""

    fails = False

    def step(self, closure=None):
        if self.fails:
            raise ZeroDivisionError
        return super().step(closure)


def after_a_step_that_failed():
    """Returns an optimizer whose last step raised, with its momentum hidden."""
    model, optimizer = wrapped(Failing, {}, TopK(**SPARSE))
    train(model, optimizer, range(1))
    optimizer.fails = True
    with pytest.raises(ZeroDivisionError):
        train(model, optimizer, range(1, 2))
    return optimizer


@several_ranks
def test_a_step_that_fails_leaves_the_settings_to_what_is_saved():
    optimizer = after_a_step_that_failed()
    assert optimizer.state_dict()["param_groups"][0]["betas"] == (0.9, 0.999)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


@several_ranks
def test_the_step_after_one_that_fails_has_the_momentum():
    optimizer = after_a_step_that_failed()
    assert attachment_of(optimizer).exchange.momentum.of_step()[0] == 0.9


def two_groups(model, first, second):
    groups = [
        {"params": [model.first, model.bias], "betas": (first, 0.9)},
        {"params": [model.second, model.last], "betas": (second, 0.9)},
    ]
    return torch.optim.Adam(groups, lr=0.125)


@several_ranks
def test_groups_of_several_momenta_keep_them_and_may_not_begin_to_differ():
    model = Toy()
    optimizer = distribute(model, TopK(**SPARSE), optimizer=two_groups(model, 0.5, 0.25))
    train(model, optimizer, range(2))
    assert not velocities(optimizer)
    model = Toy()
    optimizer = distribute(model, TopK(**SPARSE), optimizer=two_groups(model, 0.5, 0.5))
    train(model, optimizer, range(2))
    assert velocities(optimizer)
    optimizer.param_groups[0]["betas"] = (0.25, 0.9)
    with pytest.raises((InvalidArgumentError, ExchangeFailedError), match=r"one beta1.*0\.25"):
        train(model, optimizer, range(2))


@several_ranks
def test_a_step_of_sgd_that_fails_or_has_a_closure_leaves_its_settings():
    model, optimizer = wrapped(torch.optim.SGD, {"momentum": 0.5}, TopK(**SPARSE))
    before = [{**group, "params": 0} for group in optimizer.param_groups]

    def closure():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        optimizer.step(closure)
    optimizer.step(lambda: model.backward(integer_gradients(model, 0)))
    assert [{**group, "params": 0} for group in optimizer.param_groups] == before
    assert velocities(optimizer)["bias"].any()


@several_ranks
def test_a_closure_that_fails_leaves_the_settings():
    model, optimizer = wrapped(torch.optim.Adam, {}, TopK(**SPARSE))

    def closure():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        optimizer.step(closure)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    optimizer.step(lambda: model.backward(integer_gradients(model, 0)))
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    assert velocities(optimizer)["bias"].any()


@several_ranks
@pytest.mark.parametrize(
    ("kind", "options", "key", "factor"),
    [
        (torch.optim.Adam, {"betas": (0.5, 0.9)}, "exp_avg", 1 - 0.5**3),
        (torch.optim.SGD, {"momentum": 0.5}, "momentum_buffer", 2),
    ],
)
def test_a_checkpoint_goes_on_with_its_momentum_with_or_without_a_compression(
    kind, options, key, factor
):
    model, optimizer = wrapped(kind, options, TopK(**SPARSE), op=hvd.Average)
    train(model, optimizer, range(3))
    moved, saved = velocities(optimizer), optimizer.state_dict()
    names = [name for name, _ in model.named_parameters()]
    for number, name in enumerate(names):  # as the stock optimizer reads it
        own = saved["state"][number][key]
        assert own.shape == getattr(model, name).shape
        assert torch.equal(own.double().flatten(), factor * moved[name])
    del saved["hvd_sparse"]  # as the stock optimizer saves it
    _, other = wrapped(kind, options, TopK(**SPARSE), op=hvd.Average)
    other.load_state_dict(saved)
    assert all(torch.equal(part, moved[name]) for name, part in velocities(other).items())
    assert not any(part.any() for part in residuals(other).values())


@several_ranks
@pytest.mark.parametrize(
    ("kind", "options"), [(torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9})]
)
def test_a_run_goes_on_bit_for_bit(kind, options):
    model, optimizer = wrapped(kind, options, TopK(**SPARSE), op=hvd.Average)
    train(model, optimizer, range(3))
    twin, resumed = wrapped(kind, options, TopK(**SPARSE), op=hvd.Average)
    twin.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, steps in ((model, optimizer), (twin, resumed)):
        train(one, steps, range(3, 6))
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert all(torch.equal(residuals(optimizer)[n], r) for n, r in residuals(resumed).items())


@several_ranks
def test_accumulated_passes_warm_up_and_clipping_keep_replicas_equal():
    warmup = Warmup(steps=1, densities=(0.5, 0.25))
    compression = LAGS(adaptive=False, warmup=warmup, **SPARSE)
    model, optimizer = wrapped(
        torch.optim.AdamW, {}, compression, op=hvd.Average, backward_passes_per_step=2
    )
    for step in range(4):
        optimizer.zero_grad()
        for _ in range(2):
            model.backward(integer_gradients(model, step))
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        assert_same_on_all_ranks(model.parameters())
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    assert velocities(optimizer)["bias"].any()


@several_ranks
@pytest.mark.parametrize(
    ("kind", "options", "op"),
    [
        (torch.optim.SGD, {"momentum": 0.75, "dampening": 0.5, "weight_decay": 0.25}, hvd.Average),
        (torch.optim.SGD, {"momentum": 0.75, "maximize": True, "weight_decay": 0.25}, hvd.Sum),
        (torch.optim.Adam, {"betas": (0.75, 0.9), "weight_decay": 0.25}, hvd.Sum),
        (torch.optim.AdamW, {"betas": (0.75, 0.9), "weight_decay": 0.25}, hvd.Average),
        (torch.optim.NAdam, {"betas": (0.75, 0.9)}, hvd.Average),
    ],
)
def test_the_first_step_has_the_stock_momentum_however_that_has_arrived(kind, options, op):
    model = Toy()
    optimizer = kind(model.parameters(), lr=0.125, **options)
    named = model.named_parameters()
    stock = hvd.DistributedOptimizer(optimizer, named_parameters=named, op=op)
    train(model, stock, range(3))
    saved = copy.deepcopy((model.state_dict(), stock.state_dict()))
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    states = {name: copy.deepcopy(stock.state[p]) for name, p in model.named_parameters()}
    train(model, stock, [3])
    gradients = gradients_of(model)

    for order in (
        ("load", "wrap"),
        ("wrap", "load"),
        ("root loads", "wrap", "broadcast"),
        ("wrap", "root loads", "broadcast"),
        ("wrap", "load", "broadcast"),
    ):
        other = Toy()
        moved = kind(other.parameters(), lr=0.125, **options)
        for arrival in order:
            if arrival == "wrap":
                distribute(other, TopK(**DENSE), optimizer=moved, op=op)
            elif arrival == "broadcast":
                hvd.broadcast_parameters(other.state_dict(), 0)
                hvd.broadcast_optimizer_state(moved, 0)
            elif arrival == "load" or hvd.rank() == 0:
                weights, state = copy.deepcopy(saved)
                other.load_state_dict(weights)
                moved.load_state_dict(state)
        train(other, moved, [3])
        for name, param in other.named_parameters():
            if kind is torch.optim.SGD:
                expected, found = getattr(model, name), param
            else:  # its second moment is that of what is delivered
                state, decay = states[name], options.get("weight_decay", 0.0)
                decay = decay * before[name] if kind is torch.optim.Adam else 0.0
                begun = 1 - float(state.get("mu_product", 0.75**3))
                expected = 0.75 * state["exp_avg"] / begun + 0.25 * (gradients[name] + decay)
                found = param.grad + decay
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=f"{order} {name}")


@several_ranks
@pytest.mark.parametrize(
    ("kind", "options"), [(torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.75})]
)
def test_a_broadcast_amid_training_and_the_end_of_the_exchange_lose_no_momentum(kind, options):
    runs = [wrapped(kind, options, TopK(**DENSE), op=hvd.Average) for _ in range(2)]
    for model, optimizer in runs:
        train(model, optimizer, range(3))
    hvd.broadcast_optimizer_state(runs[0][1], 0)
    for model, optimizer in runs:
        train(model, optimizer, [3])
    assert all(map(torch.equal, runs[0][0].parameters(), runs[1][0].parameters()))
    model, optimizer = runs[0]
    kept = optimizer.state_dict()["state"]
    attachment_of(optimizer).renewal.give_up()
    for number, param in enumerate(model.parameters()):
        own = optimizer.state[param]
        assert all(torch.equal(one, own[key]) for key, one in kept[number].items())
