"""Masks: masked entries obey all laws, the others are zero and cost nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hvd_sparse.compression import LAGS, Dense, Feedback, Layers, LocalSteps, TopK
from hvd_sparse.errors import (
    CheckpointMismatchError,
    ExchangeFailedError,
    GradientInFlightError,
    InvalidArgumentError,
    UnsupportedError,
)
from hvd_sparse.pytorch.attachment import require_attachment
from tests.checkpoints import pretend_twice_as_many_ranks
from tests.dense_sums import DENSE_SUMS
from tests.frameworks import SHAPES, any_entry, same

ALL = Layers(min_numel=1, bucket_numel=1500)
BY_HOST = "by the host"
COMPRESSIONS = {
    **DENSE_SUMS,
    BY_HOST: Dense(layers=Layers(min_numel=1 << 20)),
    "topk": TopK(density=0.2, layers=ALL, feedback=Feedback(momentum="keep")),
    "momentum": TopK(density=0.2, layers=ALL, feedback=Feedback(momentum=0.5)),
}
WITH_VELOCITY = Dense(values="int8", feedback=Feedback(momentum=0.5))


def masks_of(seed, shapes=SHAPES, *, share=0.3):
    """Returns masks that are the same on all ranks; none for `second`, and none of `last`."""
    rng = np.random.default_rng(seed)
    masks = {name: rng.random(shape) < share for name, shape in shapes.items() if name != "second"}
    return {**masks, "last": np.zeros(shapes["last"], bool)} if "last" in shapes else masks


def masked(arrays, masks):
    """Returns flat arrays, with zeros where masks are False."""
    return {
        name: np.where(masks[name].ravel(), one.ravel(), 0) if name in masks else one.ravel()
        for name, one in arrays.items()
    }


def not_zero(arrays):
    """Returns those of some arrays that are not all zeros."""
    return {name: one for name, one in arrays.items() if np.any(one)}


def checked_step(framework, model, step, masks, *, momentum=0.0):
    """Takes a step, and checks the law on the masks, and that all else is zero."""
    gradients = framework.integer_gradients(step, low=-3000, high=3001)
    before, velocity = model.residuals(), model.velocities()
    results = model.step(gradients)
    given = masked(gradients, masks)
    for name, one in velocity.items():
        given[name] = given[name] + momentum * one
    framework.assert_nothing_is_lost(given, results, before, model.residuals())
    framework.assert_same_on_all_ranks(results)
    for arrays in (results, model.residuals(), model.velocities()):
        assert same(masked(arrays, masks), {name: one.ravel() for name, one in arrays.items()})
    return results


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", COMPRESSIONS)
def test_nothing_is_lost_of_masked_entries_and_others_are_zero(framework, name):
    model = framework.model(COMPRESSIONS[name])
    momentum = COMPRESSIONS[name].feedback.own_momentum
    checked_step(framework, model, 0, {}, momentum=momentum)
    masks = masks_of(0)
    model.set_masks(masks)
    for step in range(1, 5):
        checked_step(framework, model, step, masks, momentum=momentum)
    framework.assert_same_on_all_ranks(model.weights())
    assert any_entry(model.residuals()) == (name not in ("float32", BY_HOST))


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["float32", "int8", BY_HOST])
def test_masked_entries_of_any_number_type_are_summed_exactly(framework, name, dtype):
    model = framework.model(COMPRESSIONS[name], dtype=dtype)
    masks = masks_of(1)
    model.set_masks(masks)
    for step in range(3):
        gradients = framework.integer_gradients(step)
        before = model.residuals()
        results = model.step(gradients)
        framework.assert_nothing_is_lost(
            masked(gradients, masks), results, before, model.residuals()
        )
    framework.assert_same_on_all_ranks(model.weights())


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", ["float32", "int8", BY_HOST, "topk"])
def test_bytes_fall_with_the_masks_and_rise_without_them(framework, name):
    shapes = {"a": (200, 100), "b": (100, 100)}
    model = framework.model(COMPRESSIONS[name], shapes)

    def bytes_of_a_step():
        model.step(framework.integer_gradients(0, shapes))
        return model.stats().bytes_sent + model.stats().dense_bytes

    whole = bytes_of_a_step()
    model.set_masks(masks_of(0, shapes, share=0.1))
    assert 0.05 * whole < bytes_of_a_step() < 0.15 * whole
    model.set_masks(None)
    assert bytes_of_a_step() >= 0.95 * whole


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", ["int8", "momentum", "dense with velocity"])
def test_residuals_and_velocities_stay_where_masks_do(framework, name):
    model = framework.model((COMPRESSIONS | {"dense with velocity": WITH_VELOCITY})[name])
    momentum = 0.0 if name == "int8" else 0.5
    present = {}
    for turn, masks in enumerate([masks_of(1), masks_of(2), {}, masks_of(3)]):
        for step in range(2):
            checked_step(framework, model, 2 * turn + step, present, momentum=momentum)
        residuals, velocities = model.residuals(), model.velocities()
        assert any_entry(residuals)
        assert any_entry(velocities) == (momentum > 0)
        model.set_masks(masks)
        assert same(model.residuals(), masked(residuals, masks))
        assert same(not_zero(model.velocities()), not_zero(masked(velocities, masks)))
        present = masks


def test_masks_of_nothing_exchange_nothing(framework):
    model = framework.model(COMPRESSIONS["int8"])
    model.set_masks({name: np.zeros(shape, bool) for name, shape in SHAPES.items()})
    results = model.step(framework.integer_gradients(0))
    assert any_entry(results) == (framework.size == 1)
    if framework.size > 1:
        assert model.stats().bytes_sent == model.stats().dense_bytes == 0
    model.set_masks({})
    assert any_entry(model.step(framework.integer_gradients(1)))


@pytest.mark.usefixtures("several_ranks")
def test_a_gradient_is_clipped_to_the_norm_of_its_masked_entries(framework):
    model = framework.model(Dense(feedback=Feedback(momentum="keep", clip_norm=8.0)), {"w": (8, 4)})
    mask = np.zeros((8, 4), bool)
    mask[:4] = True
    model.set_masks({"w": mask})
    gradient = np.where(mask, 2.0 / framework.size, 1000.0)  # of which the masked norm is small
    (result,) = model.step({"w": gradient}).values()
    np.testing.assert_allclose(result, np.where(mask, 2.0, 0.0), rtol=1e-6)


FITS = {"first": np.ones(SHAPES["first"], bool)}
BAD_MASKS = {  # by rank, and a part of the message
    "an unknown name": (lambda _: {"third": FITS["first"]}, r"exchanged \('first'.*got 'third'"),
    "a shape": (lambda _: {"first": FITS["first"].T.copy()}, r"\(40, 30\), got \(30, 40\)"),
    "a type": (lambda _: {"first": FITS["first"].astype(np.uint8)}, "torch.bool, got torch.uint8"),
    "no tensor": (lambda _: {"first": [True]}, "must be a tensor, got list"),
    "a device": (lambda _: {"first": torch.ones(40, 30, dtype=bool, device="meta")}, "got meta"),
    "no dict": (lambda _: [True], "got list"),
    "other entries": (lambda rank: FITS | {"bias": np.arange(7) == rank}, "mask of 'bias' is 1 of"),
    "another mask": (lambda rank: FITS if rank else {}, "mask of 'first' is"),
}


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("case", BAD_MASKS)
def test_bad_masks_are_refused_on_all_ranks_and_change_nothing(framework, case, everywhere):
    model = framework.model(COMPRESSIONS["int8"])
    masks = masks_of(5)
    model.set_masks(masks)
    checked_step(framework, model, 0, masks)
    before = model.residuals()
    make, match = BAD_MASKS[case]
    bad = make(framework.rank)
    if not everywhere and case not in ("other entries", "another mask"):
        bad = bad if framework.rank == 1 else masks
    with pytest.raises(InvalidArgumentError, match=match):
        model.set_masks(bad)
    assert same(model.residuals(), before)
    checked_step(framework, model, 1, masks)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize(
    ("compression", "match"),
    [
        (LAGS(layers=ALL), "adaptive=False"),
        (Dense(local_steps=LocalSteps(every=2)), "local_steps"),
    ],
    ids=["adaptive", "local steps"],
)
def test_exchanges_that_cannot_have_masks_say_so(framework, quick_measuring, compression, match):
    model = framework.model(compression, op="Average")
    with pytest.raises(UnsupportedError, match=match):
        model.set_masks(masks_of(0))
    model.step(framework.integer_gradients(0))


@pytest.mark.usefixtures("several_ranks")
def test_masks_cannot_change_while_gradients_are_in_flight(framework):
    model = framework.model(COMPRESSIONS["int8"])

    def change_amid_a_step():  # which another rank may have ended before
        model._backward(framework.integer_gradients(0))
        model.set_masks(masks_of(0))

    match = "set_masks.. was called"
    with pytest.raises((GradientInFlightError, ExchangeFailedError), match=match):
        change_amid_a_step()


@pytest.mark.usefixtures("several_ranks")
def test_masks_cannot_change_between_averages_and_step(framework):
    model = framework.model(COMPRESSIONS["int8"])
    model._backward(framework.integer_gradients(0))
    model._average()
    with pytest.raises(GradientInFlightError, match="call it after the step"):
        model.set_masks(masks_of(0))
    with model._not_synchronizing():
        model._optimizer.step()
    model.set_masks(masks_of(0))


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", ["int8", "momentum"])
@pytest.mark.parametrize("before", [None, 8, 9])
def test_a_run_with_masks_that_is_resumed_goes_on_bit_for_bit(framework, folder, name, before):
    momentum = COMPRESSIONS[name].feedback.own_momentum
    model, twin = framework.model(COMPRESSIONS[name]), framework.model(COMPRESSIONS[name])
    masks = masks_of(8)
    model.set_masks(masks)
    checked_step(framework, model, 0, masks, momentum=momentum)
    model.save(folder)
    if before is not None:
        twin.set_masks(masks_of(before))
    twin.step(framework.integer_gradients(7))
    twin.load(folder)
    for step in range(1, 3):
        checked_step(framework, model, step, masks, momentum=momentum)
        checked_step(framework, twin, step, masks, momentum=momentum)
    assert same(model.weights(), twin.weights())
    assert same(model.residuals(), twin.residuals())
    assert same(model.velocities(), twin.velocities())


@pytest.mark.usefixtures("several_ranks")
def test_masks_come_with_residuals_of_other_ranks(framework, folder):
    model, twin = framework.model(COMPRESSIONS["int8"]), framework.model(COMPRESSIONS["int8"])
    masks = masks_of(8)
    model.set_masks(masks)
    checked_step(framework, model, 0, masks)
    model.save(folder)
    if framework.rank == 0:
        pretend_twice_as_many_ranks(folder, framework.size)
    framework.barrier()
    twin.load(folder, residuals="spread")
    kept, spread = framework.totals(model.residuals()), framework.totals(twin.residuals())
    assert same({name: 2 * one for name, one in kept.items()}, spread)
    checked_step(framework, twin, 1, masks)


@pytest.mark.usefixtures("several_ranks")
def test_a_checkpoint_with_masks_is_refused_where_there_can_be_none(
    framework, folder, quick_measuring
):
    layers = Layers(min_numel=1)
    model = framework.model(TopK(layers=layers))
    model.set_masks(masks_of(0))
    model.step(framework.integer_gradients(0))
    model.save(folder)
    twin = framework.model(TopK(adaptive=True, layers=layers))
    with pytest.raises(CheckpointMismatchError, match=r"masks do not fit.*adaptive"):
        twin.load(folder)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", ["int8", "momentum"])
def test_an_exchange_that_is_rebuilt_keeps_its_masks(framework, name):
    momentum = COMPRESSIONS[name].feedback.own_momentum
    model = framework.model(COMPRESSIONS[name])
    masks = masks_of(4)
    model.set_masks(masks)
    checked_step(framework, model, 0, masks, momentum=momentum)
    before = model.residuals()
    renewal = require_attachment(model._optimizer).renewal
    renewal.give_up()  # as hvd.shutdown does
    renewal.renew()
    assert same(model.residuals(), before)
    checked_step(framework, model, 1, masks, momentum=momentum)


@pytest.mark.usefixtures("several_ranks")
def test_ranks_that_join_adopt_the_masks(framework):
    model = framework.model(COMPRESSIONS["int8"])
    masks = masks_of(4)
    model.set_masks(masks)
    checked_step(framework, model, 0, masks)
    renewal = require_attachment(model._optimizer).renewal
    renewal.give_up()
    if framework.rank > 0:
        renewal.hold(None)  # as of a rank that has just joined
    renewal.renew()
    checked_step(framework, model, 1, masks)
