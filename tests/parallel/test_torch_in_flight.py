"""Parameters whose update is in flight: whatever uses one waits, and nothing is lost."""

from __future__ import annotations

import copy
import time
import weakref

import horovod.torch as hvd
import pytest
import torch
from torch import nn

from hvd_sparse.compression import Feedback
from hvd_sparse.errors import (
    ExchangeFailedError,
    InvalidArgumentError,
    NonFiniteGradientError,
    UnsupportedError,
)
from hvd_sparse.pytorch import forward
from hvd_sparse.pytorch.attachment import require_attachment
from hvd_sparse.torch import TopK
from tests.gpus import DEVICE
from tests.parallel.forward_training import (
    COMPRESSIONS,
    FIXED,
    USUAL,
    flying,
    several,
    start,
)
from tests.parallel.torch_ranks import (
    ON_ANY_RANK,
    Toy,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
    totals,
)
from tests.torch_model import residuals


@several
def test_a_step_does_not_wait_for_a_late_rank_and_the_next_use_does():
    model = Toy().to(DEVICE)
    optimizer = distribute(model, USUAL, wait_in_forward=True)
    late = hvd.rank() == hvd.size() - 1
    hvd.barrier()
    if late:
        time.sleep(1)
    begin = time.monotonic()
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    returned = time.monotonic() - begin
    assert flying(model) == set(dict(model.named_parameters()))
    assert all(p.grad is None for p in model.parameters())
    assert bool(model.first.any())
    waited = time.monotonic() - begin
    assert returned < 0.5
    assert late or waited > 0.5
    assert "first" not in flying(model)
    assert flying(model)
    optimizer.state_dict()
    assert not flying(model)
    assert optimizer.exchange.stats.last.step == 0
    assert late or optimizer.exchange.stats.last.wait_seconds > 0.2


@several
@pytest.mark.parametrize("name", ["topk", "one bucket", "lags", "dense, int8"])
def test_nothing_is_lost(name):
    model = Toy().to(DEVICE)
    optimizer = distribute(
        model,
        COMPRESSIONS[name],
        wait_in_forward=True,
    )
    for step in range(5):
        kept = residuals(optimizer)
        before = {
            name: p.detach().cpu().double().flatten().clone()
            for name, p in model.named_parameters()
        }
        gradients = integer_gradients(model, step)
        model.backward(gradients)
        optimizer.step()
        assert flying(model)
        given = {name: one.cpu().double().flatten() for name, one in gradients.items()}
        for layer, left in residuals(optimizer).items():
            given[layer] = given[layer] + kept.get(layer, 0.0) - left
        summed = totals(given)
        for layer, param in model.named_parameters():
            assert torch.equal(
                before[layer] - summed[layer], param.detach().cpu().double().flatten()
            )
        assert_same_on_all_ranks(model.parameters())


@several
@pytest.mark.parametrize("bad", ["first", "bias"])  # in a bucket, and summed by Horovod
def test_a_part_that_is_not_finite_is_refused_alone(bad):
    model = Toy().to(DEVICE)
    optimizer = distribute(model, USUAL, wait_in_forward=True)
    gradients = integer_gradients(model, 0)
    if hvd.rank() == hvd.size() - 1:
        gradients[bad].view(-1)[3] = float("nan")
    model.backward(gradients)
    optimizer.step()
    assert bool(model.second.any())
    with pytest.raises(NonFiniteGradientError):
        model.get_parameter(bad).sum()
    assert not model.get_parameter(bad).any()
    assert bool(model.last.any())
    kept = residuals(optimizer)
    if bad == "first":
        finite = gradients[bad].cpu().nan_to_num().flatten()
        assert torch.equal(kept[bad].float(), finite)
    assert_same_on_all_ranks(model.parameters())
    assert optimizer.exchange.stats.last.step == 0
    model.backward(integer_gradients(model, 1))
    optimizer.step()
    assert bool(model.get_parameter(bad).any())
    assert_same_on_all_ranks(model.parameters())
    assert optimizer.exchange.stats.total.steps == 2


@several
def test_at_the_end_a_refused_part_is_told_and_the_others_are_applied():
    model = Toy().to(DEVICE)
    optimizer = distribute(model, USUAL, wait_in_forward=True)
    gradients = integer_gradients(model, 0)
    gradients["first"].fill_(float("inf"))
    model.backward(gradients)
    optimizer.step()
    with pytest.raises(NonFiniteGradientError):
        optimizer.synchronize()
    assert not flying(model)
    assert not model.first.any()
    assert bool(model.last.any())
    optimizer.synchronize()  # nothing is left, and no step is taken
    assert optimizer.exchange.stats.total.steps == 1


@several
@pytest.mark.parametrize(
    "use",
    [
        lambda model, _: model.state_dict(),
        lambda model, _: copy.deepcopy(model),
        lambda model, _: [p.data for p in model.parameters()],
        lambda model, _: nn.utils.parameters_to_vector(model.parameters()),
        lambda model, _: torch._foreach_add(list(model.parameters()), 1.0),
        lambda model, _: hvd.broadcast_parameters(model.state_dict(), root_rank=0),
        lambda _, optimizer: hvd.broadcast_optimizer_state(optimizer, root_rank=0),
        lambda _, optimizer: optimizer.synchronize(),
        lambda _, optimizer: optimizer.set_backward_passes_per_step(1),
        lambda _, optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    ],
)
def test_whatever_reads_weights_waits(use):
    expected, optimizer = start(USUAL)
    model, optimizer = start()
    assert flying(model)
    use(model, optimizer)
    assert not flying(model)
    assert all(type(p) is nn.Parameter for p in model.parameters())
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@several
def test_gradients_and_shapes_do_not_wait():
    model, optimizer = start()
    optimizer.zero_grad()
    optimizer.zero_grad(set_to_none=False)
    model.zero_grad()
    assert [p.grad for p in model.parameters()] == [None] * 4
    assert model.first.shape == (40, 30)
    assert model.first.requires_grad
    model.bias.grad = torch.ones(7, device=DEVICE)  # the script's own
    assert len(flying(model)) == 4
    optimizer.state_dict()
    assert torch.equal(model.bias.grad.cpu(), torch.ones(7))


@several
def test_one_rank_may_evaluate_alone():
    model, optimizer = start()
    if hvd.rank() == 0:
        with torch.no_grad():
            assert sum(float(p.sum()) for p in model.parameters())
        assert not flying(model)
    optimizer.synchronize()
    for step in (1, 2):
        model.backward(integer_gradients(model, step))
        optimizer.step()
    assert_same_on_all_ranks(model.parameters())
    assert optimizer.exchange.stats.total.steps == 3


@several
def test_closures_and_hooks_before_the_step_see_averages():
    seen = []
    model = Toy().to(DEVICE)
    optimizer = distribute(model, USUAL, wait_in_forward=True)

    def closure():
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        return 1.0

    optimizer.step(closure)
    assert not flying(model)
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.first.grad.clone()))
    model.backward(integer_gradients(model, 1))
    optimizer.step()
    assert not flying(model)
    assert_same_on_all_ranks(seen)


@several
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_torchscript_waits_at_the_module_and_is_found_out_elsewhere():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 4))
    scripted = torch.jit.script(layers.to(DEVICE))
    optimizer = distribute(scripted, USUAL, wait_in_forward=True)
    x = torch.ones(2, 20, device=DEVICE)
    for _ in range(3):
        scripted(x).sum().backward()
        optimizer.step()
    scripted(x)
    assert not flying(scripted)
    assert_same_on_all_ranks(scripted.parameters())
    scripted(x).sum().backward()
    optimizer.step()
    error = (UnsupportedError, ExchangeFailedError)  # of this rank, or of another
    with pytest.raises(error, match="computed with a weight whose update was still"):
        scripted.forward(x).sum().backward()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"wait_in_forward": "yes"}, "wait_in_forward must be one of True, False, got 'yes'"),
        ({"compression": TopK(local_steps=4)}, "local_steps must be None with wait_in_forward"),
        ({"grad_scaler": torch.amp.GradScaler("cpu")}, "grad_scaler must be None with"),
        (
            {"compression": TopK(feedback=Feedback(quality_every=5))},
            "quality_every must be None with wait_in_forward",
        ),
    ],
)
def test_options_that_do_not_go_together_are_named(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        distribute(Toy(), **{"compression": TopK(), "wait_in_forward": True, **options})


class OwnFunctions(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Tuned(torch.optim.SGD):
    pass


@pytest.mark.parametrize("kind", ["subclass", "asgd", "differentiable", "class", "elastic"])
def test_what_it_cannot_do_is_refused_before_anything_is_sent(kind, monkeypatch):
    model = Toy().to(DEVICE)
    if kind == "elastic":
        monkeypatch.setattr(forward, "in_elastic_job", lambda: True)
    if kind == "class":
        model.first = OwnFunctions(torch.zeros(40, 30, device=DEVICE))
    make, text = {
        "subclass": (lambda p: Tuned(p, lr=1.0), "got Tuned"),
        "asgd": (lambda p: torch.optim.ASGD(p), "got ASGD"),
        "differentiable": (lambda p: torch.optim.SGD(p, lr=1.0, differentiable=True), "different"),
        "elastic": (lambda p: torch.optim.SGD(p, lr=1.0), "cannot be used in an elastic job"),
        "class": (lambda p: torch.optim.SGD(p, lr=1.0), "'first' is of class OwnFunctions"),
    }[kind]
    optimizer = make(model.parameters())
    with pytest.raises(UnsupportedError, match=text):
        distribute(model, USUAL, wait_in_forward=True, optimizer=optimizer)


@several
def test_a_watcher_is_told_of_steps_that_have_ended():
    model, optimizer = start()
    told = []
    optimizer.exchange.watch(lambda _, step: told.append(step))
    for step in range(1, 4):
        model.backward(integer_gradients(model, step))
        optimizer.step()
    assert told == [0, 1, 2]
    with pytest.raises(UnsupportedError, match="norms=True"):
        optimizer.exchange.watch(print, norms=True)


@several
def test_a_script_that_steps_amid_a_step_is_refused_as_usual():
    model, optimizer = start()

    def zero_too_early():
        model.backward(integer_gradients(model, 1))
        optimizer.zero_grad()

    with pytest.raises(ON_ANY_RANK, match="zero_grad"):
        zero_too_early()
    assert not flying(model)


@several
def test_an_optimizer_that_is_dropped_amid_its_last_step_is_freed_by_the_next():
    exchange = weakref.ref(require_attachment(start()[1]).exchange)
    assert exchange() is not None  # until the step has been applied
    start()
    assert exchange() is None


@several
def test_a_newer_optimizer_takes_over_after_the_step_in_flight():
    expected, _ = start(USUAL)
    model, _ = start()
    distribute(model, TopK(**FIXED))
    assert not flying(model)
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, theirs)
