"""Residuals in checkpoints, and hvd.broadcast_optimizer_state, which does not touch them."""

from __future__ import annotations

import io
from dataclasses import replace

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers, Warmup
from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.torch import LAGS, TopK
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
    take_over_from_rank_0,
)
from tests.torch_model import residuals

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank has no residuals")
COMPRESSION = LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64, bucket_numel=1500))


def optimizers(model):
    return {
        "SGD": lambda: torch.optim.SGD(model.parameters(), lr=0.5),
        "momentum": lambda: torch.optim.SGD(
            model.parameters(), lr=0.5, momentum=0.5, weight_decay=0.25
        ),
        "Adam": lambda: torch.optim.Adam(model.parameters(), lr=0.5, weight_decay=0.25),
    }


def new_optimizer(model, kind, compression=COMPRESSION):
    return distribute(model, compression, optimizer=optimizers(model)[kind]())


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()


def stored(state):
    """Returns a state dict after saving and loading it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("kind", ["SGD", "momentum", "Adam"])
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(kind):
    model = Toy()
    optimizer = new_optimizer(model, kind)
    train(model, optimizer, range(3))
    weights, state = stored(model.state_dict()), stored(optimizer.state_dict())
    train(model, optimizer, range(3, 6))

    twin = Toy()
    resumed = new_optimizer(twin, kind)
    train(twin, resumed, range(20, 22))
    twin.load_state_dict(weights)
    resumed.load_state_dict(state)
    train(twin, resumed, range(3, 6))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
    for name, residual in residuals(optimizer).items():
        assert torch.equal(residual, residuals(resumed)[name])


def test_a_saved_state_does_not_change_with_further_steps():
    model = Toy()
    optimizer = new_optimizer(model, "SGD")
    train(model, optimizer, range(1))
    before = residuals(optimizer)
    state = optimizer.state_dict()
    saved = state.get("hvd_sparse", {}).get("residuals", {})
    copies = {name: residual.clone() for name, residual in saved.items()}
    train(model, optimizer, range(1, 3))
    for name, copy in copies.items():
        assert torch.equal(saved[name], copy)
    optimizer.load_state_dict(state)
    for name, residual in residuals(optimizer).items():
        assert torch.equal(residual, before[name])


@several_ranks
def test_a_state_of_another_rank_is_refused_and_can_be_reset():
    model = Toy()
    optimizer = new_optimizer(model, "momentum")
    train(model, optimizer, range(2))
    state = hvd.broadcast_object(optimizer.state_dict(), 0, name="state")
    kept = residuals(optimizer)
    if hvd.rank() > 0:
        with pytest.raises(CheckpointMismatchError, match=f"rank 0 and this is rank {hvd.rank()}"):
            optimizer.load_state_dict(state)
        for name, residual in residuals(optimizer).items():
            assert torch.equal(residual, kept[name])
        with pytest.raises(CheckpointMismatchError, match=r"optimizer.exchange.reset_residual\(st"):
            optimizer.load_state_dict(state)
        optimizer.load_state_dict(optimizer.exchange.reset_residual(state))
        assert "hvd_sparse" in state
        assert not any(residual.any() for residual in residuals(optimizer).values())
    else:
        optimizer.load_state_dict(state)
    train(model, optimizer, range(2, 4))
    assert_same_on_all_ranks(model.parameters())


@several_ranks
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"size": 64}, f"saved by 64 ranks and there are {hvd.size()} now"),
        ({"layers": {"other": 1200}}, "'other'.*'last'"),
        ({"residuals": {"last": torch.zeros(599)}}, "residual of 'last' is damaged"),
        ({"version": 99}, "format 99"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, match):
    model = Toy()
    optimizer = new_optimizer(model, "SGD")
    state = optimizer.state_dict()
    state["hvd_sparse"] |= change
    with pytest.raises(CheckpointMismatchError, match=match):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_residuals_go_on_in_other_buckets(kind):
    model, twin = Toy(), Toy()
    parts = replace(COMPRESSION, feedback=replace(COMPRESSION.feedback, momentum="keep"))
    optimizer = new_optimizer(model, kind, parts)
    train(model, optimizer, range(3))
    state = stored(optimizer.state_dict())
    whole = replace(parts, layers=replace(parts.layers, bucket_numel=1 << 20))
    resumed = new_optimizer(twin, kind, whole)
    resumed.load_state_dict(state)
    before = residuals(optimizer)
    for name, residual in residuals(resumed).items():
        assert torch.equal(residual, before[name])
    gradients = integer_gradients(twin, 5)
    twin.backward(gradients)
    resumed.step()
    assert_nothing_is_lost(twin, 5, before, resumed, gradients)


def test_thresholds_of_another_sparsifier_are_not_taken_up():
    model, twin = Toy(), Toy()
    optimizer = new_optimizer(model, "SGD")
    train(model, optimizer, range(3))
    resumed = new_optimizer(twin, "SGD", replace(COMPRESSION, sparsifier="top_k"))
    resumed.load_state_dict(stored(optimizer.state_dict()))
    before = residuals(optimizer)
    for name, residual in residuals(resumed).items():
        assert torch.equal(residual, before[name])
    memories = [s.get("hvd_sparse", {}).get("states", {}) for s in
                (optimizer.state_dict(), resumed.state_dict())]  # fmt: skip
    assert hvd.size() == 1 or any(part.any() for part in memories[0].values())
    assert not any(part.any() for part in memories[1].values())


def test_a_state_without_residuals_empties_them():
    model = Toy()
    optimizer = new_optimizer(model, "momentum")
    plain = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    train(model, optimizer, range(2))
    assert hvd.size() == 1 or all(r.any() for r in residuals(optimizer).values())
    optimizer.load_state_dict(plain.state_dict())
    assert not any(r.any() for r in residuals(optimizer).values())


@several_ranks
@pytest.mark.parametrize(
    "wrap",
    [lambda plain, _: plain, lambda plain, names: hvd.DistributedOptimizer(plain, names)],
    ids=["torch", "Horovod"],
)
def test_torch_and_horovod_pass_over_the_residuals_of_a_state(wrap):
    model, twin = Toy(), Toy()
    optimizer = new_optimizer(model, "Adam")
    train(model, optimizer, range(2))
    state = stored(optimizer.state_dict())
    assert "hvd_sparse" in state
    stock = wrap(optimizers(twin)["Adam"](), twin.named_parameters())
    stock.load_state_dict(state)
    again = stock.state_dict()
    assert set(again) == {"state", "param_groups"}
    assert again["param_groups"] == state["param_groups"]
    for key, moments in state["state"].items():
        assert all(torch.equal(again["state"][key][name], part) for name, part in moments.items())


def test_reset_residual_empties_this_ranks_residuals():
    model = Toy()
    optimizer = new_optimizer(model, "SGD")
    train(model, optimizer, range(2))
    assert optimizer.exchange.reset_residual() is None
    before = residuals(optimizer)
    assert not any(r.any() for r in before.values())
    gradients = integer_gradients(model, 5)
    optimizer.zero_grad()
    model.backward(gradients)
    optimizer.step()
    assert_nothing_is_lost(model, 5, before, optimizer, gradients)


@pytest.mark.parametrize("kind", ["SGD", "momentum", "Adam"])
@pytest.mark.parametrize("loaded", ["nowhere", "on rank 0", "everywhere"])
def test_the_state_is_broadcast_and_residuals_stay(kind, loaded):
    model = Toy()
    first = new_optimizer(model, kind)
    train(model, first, range(3))
    weights, state = model.state_dict(), first.state_dict()
    kept = residuals(first)

    resumed = Toy()
    for p in resumed.parameters():
        torch.nn.init.constant_(p, 3.0)
    optimizer = new_optimizer(resumed, kind)
    has_state = loaded == "everywhere" or (loaded == "on rank 0" and hvd.rank() == 0)
    if has_state:
        resumed.load_state_dict(weights)
        optimizer.load_state_dict(state)
        if kind != "SGD":  # for an optimizer without state, Horovod broadcasts no options
            optimizer.param_groups[0]["lr"] = 0.125
    hvd.broadcast_parameters(resumed.state_dict(), root_rank=0)
    at_start = [p.detach().clone() for p in resumed.parameters()]
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for p, value in zip(resumed.parameters(), at_start, strict=True):
        assert torch.equal(p, value)
        assert p.grad is None
    assert optimizer.exchange.stats.total.steps == 0
    for name, residual in residuals(optimizer).items():
        expected = kept[name] if has_state else torch.zeros_like(residual)
        assert torch.equal(residual, expected)
    train(resumed, optimizer, range(3, 6))
    assert_same_on_all_ranks(resumed.parameters())
    if loaded != "nowhere" and kind != "SGD":
        assert optimizer.param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize("others", ["get it broadcast", "load it without residuals"])
def test_a_warm_up_goes_on_where_rank_0_was(others):
    compression = TopK(
        density=0.01, layers=Layers(min_numel=64), warmup=Warmup(steps=2, densities=(0.5, 0.1))
    )
    model = Toy()
    optimizer = new_optimizer(model, "momentum", compression)
    train(model, optimizer, range(3))
    state = hvd.broadcast_object(optimizer.state_dict(), 0, name="state")
    optimizer = new_optimizer(model, "momentum", compression)
    take_over_from_rank_0(optimizer, state, others)
    asked = []
    for step in range(3):
        train(model, optimizer, [step])
        last = optimizer.exchange.stats.last
        asked.append(round(last.density_asked, 2) if last else None)
    assert hvd.size() == 1 or asked == [0.1, 0.01, 0.01]
    assert_same_on_all_ranks(model.parameters())


@several_ranks
@pytest.mark.parametrize(
    "others", ["get it broadcast", "load it without residuals", "went on", "reset theirs"]
)
def test_ranks_draw_the_same_entries_wherever_residuals_were_lost(others):
    compression = TopK(density=0.01, layers=Layers(min_numel=64), sparsifier="random_k")

    def entries(model, optimizer, step):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step, low=1))
        optimizer.step()
        return [int(p.grad.count_nonzero()) for p in model.parameters()]

    model = Toy()
    optimizer = new_optimizer(model, "momentum", compression)
    counts = [entries(model, optimizer, step) for step in range(3)]
    state = hvd.broadcast_object(optimizer.state_dict(), 0, name="state")
    if others == "reset theirs":
        if hvd.rank() > 0:
            optimizer.exchange.reset_residual()
    elif others == "went on":  # and rank 0 goes back
        counts += [entries(model, optimizer, step) for step in range(3, 5)]
        take_over_from_rank_0(optimizer, state, "get it broadcast")
    else:
        optimizer = new_optimizer(model, "momentum", compression)
        take_over_from_rank_0(optimizer, state, others)
    counts += [entries(model, optimizer, step) for step in range(3, 6)]
    assert counts == counts[:1] * len(counts)


def test_the_stock_broadcast_is_as_it_was():
    model = Toy()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5 + hvd.rank())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert len(optimizer.state_dict()["state"]) == 4
