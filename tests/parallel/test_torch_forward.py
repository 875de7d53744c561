"""Steps that do not wait train with the bits of steps that do."""

from __future__ import annotations

import copy

import horovod.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import optimizer as torch_optimizer

from hvd_sparse.pytorch import in_flight
from hvd_sparse.torch import Dense
from tests.gpus import DEVICE
from tests.parallel.forward_training import (
    COMPRESSIONS,
    USUAL,
    Unusual,
    Usual,
    assert_equal,
    flying,
    several,
    start,
)
from tests.parallel.torch_ranks import Toy, assert_same_on_all_ranks, distribute, integer_gradients

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=0.01),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, foreach=True, amsgrad=True),
    "adamw default": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "nadam": lambda params: torch.optim.NAdam(params, lr=1e-2),
    "radam": lambda params: torch.optim.RAdam(params, lr=1e-2),
    "adamax": lambda params: torch.optim.Adamax(params, lr=1e-2),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2, lr_decay=0.1),
    "adadelta": lambda params: torch.optim.Adadelta(params),
}


def nothing(optimizer):
    pass


def train(
    model, compression, optimizer, *, steps=10, each_step=nothing, after_step=nothing, **options
):
    """Returns the losses, the weights and the state after a training with a schedule."""
    torch.manual_seed(0)
    model = model().to(DEVICE)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "lr": 0.005},
    ]
    optimizer = distribute(
        model, compression, optimizer=OPTIMIZERS[optimizer](groups), op=hvd.Average, **options
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    generator = torch.Generator().manual_seed(hvd.rank())
    losses = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for _ in range(options.get("backward_passes_per_step", 1)):
            words = torch.randint(30, (4, 6), generator=generator).to(DEVICE)
            loss = functional.cross_entropy(model(words).flatten(0, 1), words.roll(1, 1).flatten())
            loss.backward()
        each_step(optimizer)
        optimizer.exchange.mark_step(f"step {step}")
        optimizer.step()
        after_step(optimizer)
        schedule.step()
        losses.append(loss.item())
    kept = optimizer.state_dict()
    assert not any(in_flight.is_in_flight(p) for p in model.parameters())
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert_same_on_all_ranks(weights.values())
    return losses, weights, kept


def assert_the_same_training(model, compression, optimizer, **options):
    usual = train(model, compression, optimizer, **options)
    forward = train(
        model,
        compression,
        optimizer,
        wait_in_forward=True,
        **options,
    )
    assert_equal(forward, usual)


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("model", [Usual, Unusual])
def test_presets_train_with_the_same_bits(name, model, verdict):
    verdict(sparse=True)
    assert_the_same_training(
        model, COMPRESSIONS[name], "nesterov" if name != "own momentum" else "sgd"
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_train_with_the_same_bits(name):
    assert_the_same_training(Unusual, COMPRESSIONS["topk"], name)


@several
def test_an_optimizer_takes_the_implementation_that_it_takes_for_ordinary_parameters(monkeypatch):
    """On a GPU that is one of many tensors at a time; here the CPU poses as such a device."""
    monkeypatch.setattr(
        torch_optimizer, "_get_foreach_kernels_supported_devices", lambda: ["cpu", "cuda"]
    )
    taken, lerp = [], torch._foreach_lerp_
    monkeypatch.setattr(torch, "_foreach_lerp_", lambda *all_: taken.append(1) or lerp(*all_))
    assert_the_same_training(Unusual, COMPRESSIONS["dense"], "adamw default")
    assert len(taken) > 2 * 10  # a usual step takes one for each group of parameters


@pytest.mark.parametrize("name", ["topk", "dense"])
def test_several_passes_and_clipping_train_with_the_same_bits(name):
    def clip(optimizer):
        optimizer.synchronize()
        params = [param for group in optimizer.param_groups for param in group["params"]]
        nn.utils.clip_grad_norm_(params, 0.1)

    compression = COMPRESSIONS[name]
    assert_the_same_training(Usual, compression, "adam", backward_passes_per_step=2)
    assert_the_same_training(Usual, compression, "adam", each_step=clip)


@several
def test_steps_without_a_gradient_are_taken_as_usual():
    weights = []
    for waits in (False, True):
        model, optimizer = start(waits=waits)
        for _ in range(2):
            optimizer.zero_grad()  # else the usual way would take its averages for gradients
            optimizer.step()
        weights.append([p.detach().clone() for p in model.parameters()])
        assert optimizer.exchange.stats.total.steps == 3
    assert_equal(*weights)


@several
def test_attention_outside_of_training_takes_the_same_way():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to(DEVICE)
    expected = copy.deepcopy(layer)
    results = []
    x = torch.randn(2, 5, 16).to(DEVICE)
    for one, waits in ((expected, False), (layer, True)):
        optimizer = distribute(one, Dense(), wait_in_forward=waits)
        one.eval()(x).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            results.append(one.eval()(x))
    assert torch.equal(*results)


@several
@pytest.mark.parametrize("name", ["topk", "dense"])
def test_an_evaluation_in_inference_mode_or_autocast_changes_nothing(name):
    def evaluate(optimizer):
        params = [param for group in optimizer.param_groups for param in group["params"]]
        with torch.inference_mode(), torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            assert all(bool(param.isfinite().all()) for param in params)

    compression = COMPRESSIONS[name]
    usual = train(Usual, compression, "adam")
    forward = train(
        Usual,
        compression,
        "adam",
        wait_in_forward=True,
        after_step=evaluate,
    )
    assert_equal(forward, usual)


def in_place(model):
    model.compile(backend="aot_eager")
    return model


COMPILED = {
    "module": lambda model: torch.compile(model, backend="aot_eager"),
    "in place": in_place,
    "function": lambda model: torch.compile(lambda x: model(x), backend="aot_eager"),
}


@several
@pytest.mark.filterwarnings("ignore:Using `torch.compile")  # ours is set once in a process
@pytest.mark.parametrize("kind", COMPILED)
def test_compiled_models_train_as_plain_ones(kind):
    weights = []
    for compiled in (lambda model: model, COMPILED[kind]):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 4)).to(DEVICE)
        optimizer = distribute(model, USUAL, wait_in_forward=True)
        call = compiled(model)
        for step in range(4):
            optimizer.zero_grad()
            call(torch.full((2, 20), 1.0 + step, device=DEVICE)).square().sum().backward()
            optimizer.step()
            assert flying(model)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert_equal(*weights)
    torch.compiler.reset()


@several
@pytest.mark.parametrize("name", ["topk", "adaptive"])
def test_a_training_that_is_resumed_goes_on_with_the_same_bits(name, folder, verdict):
    verdict(sparse=True)
    compression = COMPRESSIONS[name]

    def new():
        model = Toy().to(DEVICE)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return model, distribute(
            model, compression, optimizer=optimizer, op=hvd.Average, wait_in_forward=True
        )

    def steps(model, optimizer, first):
        for step in range(first, first + 3):
            model.backward(integer_gradients(model, step))
            optimizer.step()

    model, optimizer = new()
    steps(model, optimizer, 0)
    assert flying(model)
    optimizer.exchange.save_checkpoint(folder, model, epoch=1)
    steps(model, optimizer, 3)
    expected = [p.detach().clone() for p in model.parameters()]
    optimizer.state_dict()

    other, optimizer = new()
    steps(other, optimizer, 7)
    assert optimizer.exchange.load_checkpoint(folder, other) == {"epoch": 1}
    steps(other, optimizer, 3)
    assert_equal([p.detach() for p in other.parameters()], expected)


@several
def test_layers_that_a_pass_leaves_out_may_come_in_the_next_pass():
    weights = []
    for waits in (False, True):
        model = Toy().to(DEVICE)
        optimizer = distribute(
            model,
            USUAL,
            wait_in_forward=waits,
            backward_passes_per_step=2,
        )
        for step in range(3):
            optimizer.zero_grad()
            gradients = integer_gradients(model, step)
            model.backward({name: one for name, one in gradients.items() if name != "first"})
            model.backward(gradients)
            optimizer.step()
        weights.append([p.detach().clone() for p in model.parameters()])
    assert_equal(*weights)
