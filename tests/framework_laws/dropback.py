"""DropBack: tracked weights are trained, all others are what the seed makes them, on all ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hvd_sparse.compression import LAGS, Dense, Layers, TopK
from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError, UnsupportedError
from hvd_sparse.pytorch import dropback as module
from tests.frameworks import SHAPES, same

TRACKED = 0.1
RATE = 2.0**-6
FROZEN_AT = 3
NUMEL = sum(map(math.prod, SHAPES.values()))
COUNT = math.ceil(TRACKED * NUMEL)
COMPRESSIONS = {"float32": Dense(), "int8": Dense(values="int8")}


def dropping(framework, compression=COMPRESSIONS["float32"], *, momentum=0.0, **options):
    """Returns a model whose weights differ by rank until DropBack has made them anew, and that."""
    model = framework.model(compression, rate=RATE)
    model._optimizer.param_groups[0]["momentum"] = momentum
    generator = torch.Generator().manual_seed(framework.rank)
    with torch.no_grad():
        for parameter in model._module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    options = {"tracked": TRACKED, "freeze_after": FROZEN_AT, "seed": 5, **options}
    return model, module.DropBack(model._optimizer, **options)


def flat(arrays):
    """Returns arrays by name as one, in the order of the parameters."""
    return np.concatenate([arrays[name].ravel() for name in SHAPES])


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.5, 0.0), (0.5, 0.25)])
def test_others_than_the_tracked_weights_are_the_initial_ones_after_each_step(
    framework, name, momentum, decay
):
    model, _ = dropping(framework, COMPRESSIONS[name], momentum=momentum)
    model._optimizer.param_groups[0]["weight_decay"] = decay
    initial = flat(model.weights())
    tracked = []
    for step in range(6):
        model.step(framework.integer_gradients(step))
        framework.assert_same_on_all_ranks(model.weights())
        moved = flat(model.weights()) != initial
        assert 0.9 * COUNT < moved.sum() <= COUNT
        tracked.append(moved)
    assert not np.array_equal(tracked[0], tracked[1])
    for later in tracked[FROZEN_AT:]:
        assert not np.any(later & ~tracked[FROZEN_AT - 1])


def test_the_tracked_weights_are_those_that_have_moved_farthest(framework):
    model, _ = dropping(framework, freeze_after=4)
    initial = weights = flat(model.weights()).astype(np.float32)
    for step in range(6):
        average = flat(model.step(framework.integer_gradients(step))).astype(np.float32)
        weights = weights - np.float32(RATE) * average
        if step < 4:
            order = np.argsort(-np.abs(weights - initial), kind="stable")
            tracked = np.zeros(NUMEL, bool)
            tracked[order[:COUNT]] = True
        weights = np.where(tracked, weights, initial)
        assert np.array_equal(flat(model.weights()), weights)


@pytest.mark.usefixtures("several_ranks")
def test_bytes_fall_once_the_tracked_weights_stay_the_same(framework):
    model, _ = dropping(framework)
    sent = []
    for step in range(FROZEN_AT + 2):
        model.step(framework.integer_gradients(step))
        sent.append(model.stats().bytes_sent)
    assert sent[0] == sent[FROZEN_AT - 1]
    assert sent[FROZEN_AT] == sent[-1] < 1.5 * TRACKED * sent[0]


def test_initial_weights_depend_on_the_seed(framework):
    first, again, other = (dropping(framework, seed=seed)[0].weights() for seed in (1, 1, 2))
    assert same(first, again)
    for name, one in first.items():
        assert not np.any(one == other[name])


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("before", [FROZEN_AT - 1, FROZEN_AT + 1])
def test_a_resumed_dropback_goes_on_bit_for_bit(framework, folder, before, momentum):
    model, dropback = dropping(framework, COMPRESSIONS["int8"], momentum=momentum)
    for step in range(before):
        model.step(framework.integer_gradients(step))
    model.save(folder, dropback=dropback.state_dict())
    twin, theirs = dropping(framework, COMPRESSIONS["int8"], momentum=momentum, seed=6)
    twin.step(framework.integer_gradients(20))
    theirs.load_state_dict(twin.load(folder)["dropback"])
    for step in range(before, before + 3):
        for one in (model, twin):
            one.step(framework.integer_gradients(step))
    assert same(model.weights(), twin.weights())
    assert same(model.residuals(), twin.residuals())
    if framework.size > 1:
        assert model.stats().bytes_sent == twin.stats().bytes_sent


@pytest.mark.usefixtures("several_ranks")
def test_ranks_that_load_different_states_are_refused(framework):
    _, dropback = dropping(framework)
    state = {**dropback.state_dict(), "steps": framework.rank}
    with pytest.raises(InvalidArgumentError, match="load_state_dict was called with"):
        dropback.load_state_dict(state)


def test_a_state_of_another_model_is_refused(framework):
    _, dropback = dropping(framework)
    state = dropback.state_dict()
    with pytest.raises(CheckpointMismatchError, match="another model"):
        dropback.load_state_dict({**state, "initial": state["initial"][1:]})
    with pytest.raises(CheckpointMismatchError, match="another model"):
        dropback.load_state_dict({**state, "masks": [torch.ones(3, dtype=torch.bool)]})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tracked": 0.0}, r"tracked must lie in \(0, 1\], got 0"),
        ({"tracked": "few"}, "tracked must be a number"),
        ({"freeze_after": 0}, r"freeze_after must lie in \[1, .*got 0"),
        ({"seed": -1}, "seed must lie in"),
        ({"seed": 0.5}, "seed must be an integer"),
    ],
)
def test_a_bad_argument_of_one_rank_is_refused_on_all(framework, options, match):
    model = framework.model(COMPRESSIONS["float32"])
    options = options if framework.rank == framework.size - 1 else {}
    options = {"tracked": 0.1, "freeze_after": 9, **options}
    with pytest.raises(InvalidArgumentError, match=match):
        module.DropBack(model._optimizer, **options)
    model.step(framework.integer_gradients(0))


@pytest.mark.usefixtures("several_ranks")
def test_ranks_whose_arguments_differ_are_refused(framework):
    model = framework.model(COMPRESSIONS["float32"])
    with pytest.raises(InvalidArgumentError, match="seed is 1 on rank 1 and 0 on rank 0"):
        module.DropBack(model._optimizer, tracked=0.1, freeze_after=9, seed=min(framework.rank, 1))
    assert not np.any(flat(model.weights()))


def test_other_optimizers_are_refused(framework):
    model = framework.model(COMPRESSIONS["float32"], optimizer="Adam")
    with pytest.raises(UnsupportedError, match=r"needs torch\.optim\.SGD, got Adam"):
        module.DropBack(model._optimizer, tracked=0.1, freeze_after=9)
    assert not np.any(flat(model.weights()))


@pytest.mark.usefixtures("several_ranks")
def test_exchanges_that_cannot_have_masks_are_refused_before_training(framework, quick_measuring):
    model = framework.model(LAGS(layers=Layers(min_numel=1)))
    with pytest.raises(UnsupportedError, match="adaptive=False"):
        module.DropBack(model._optimizer, tracked=0.1, freeze_after=9)


@pytest.mark.usefixtures("several_ranks")
def test_sparse_gradients_of_tracked_weights_are_exchanged_as_well(framework):
    model, _ = dropping(framework, TopK(density=0.2, layers=Layers(min_numel=1)), momentum=0.5)
    initial = flat(model.weights())
    for step in range(FROZEN_AT + 3):
        model.step(framework.integer_gradients(step))
    framework.assert_same_on_all_ranks(model.weights())
    assert 0 < np.sum(flat(model.weights()) != initial) <= COUNT
