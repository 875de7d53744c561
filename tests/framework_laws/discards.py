"""A step whose averages are thrown away before the optimizer steps has no effect on later ones."""

from __future__ import annotations

import pytest

from hvd_sparse.compression import LAGS, Dense, GTopK, Layers, ThreeLC, TopK
from tests.frameworks import any_entry, same
from tests.torch_model import WAYS_TO_DROP
from tests.verdict import CYCLE

FIXED = {"density": 0.1, "layers": Layers(min_numel=64)}
COMPRESSIONS = {
    "topk": TopK(**FIXED),
    "gtopk, narrow": GTopK(wire="bfloat16", **FIXED),
    "lags": LAGS(adaptive=False, **FIXED | {"layers": Layers(min_numel=64, bucket_numel=1500)}),
    "dense, int8": Dense(values="int8"),
    "threelc": ThreeLC(),
}


def gradients_of(framework, step):
    """Returns values that no code of few bits holds exactly."""
    return {name: one**3 / 7 for name, one in framework.integer_gradients(step).items()}


def state_of(model):
    return model.residuals(), model.velocities(), model.weights()


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("way", WAYS_TO_DROP)
def test_training_goes_on_as_if_a_step_that_was_thrown_away_had_not_been(
    framework, way, name, optimizer
):
    dropping, plain = (
        framework.model(COMPRESSIONS[name], op="Average", optimizer=optimizer, rate=2.0**-6)
        for _ in range(2)
    )
    for step in range(4):
        for _ in range(step % 3):
            dropping.drop(gradients_of(framework, 100 + step), way)
        for model in (dropping, plain):
            model.step(gradients_of(framework, step), explicitly=True)
    assert any_entry(plain.residuals())
    for dropped, kept in zip(state_of(dropping), state_of(plain), strict=True):
        assert same(dropped, kept)
    framework.assert_same_on_all_ranks(dropping.weights())


@pytest.mark.usefixtures("several_ranks")
def test_a_step_is_undone_whatever_plan_follows_it(framework, verdict):
    verdict(sparse=True)
    model = framework.model(LAGS(warmup=None, **FIXED), op="Average", optimizer="Adam")
    for step in range(CYCLE + 4):
        model.step(framework.integer_gradients(step), explicitly=True)
        before = state_of(model)
        model.drop(framework.integer_gradients(100 + step), "missing")
        assert all(same(*pair) for pair in zip(before, state_of(model), strict=True))
    assert model.sparse_buckets()


@pytest.mark.usefixtures("several_ranks")
def test_what_is_missing_when_the_optimizer_steps_was_thrown_away(framework):
    model = framework.model(TopK(**FIXED), op="Sum", optimizer="SGD")
    model.step(framework.integer_gradients(0), explicitly=True)
    before = model.residuals()
    gradients = framework.integer_gradients(1)
    results = model.step(gradients, explicitly=True, without="first")
    after = model.residuals()
    assert (after["first"] == before["first"]).all()
    assert not (after["second"] == before["second"]).all()
    rest = {name: one for name, one in gradients.items() if name != "first"}
    kept = ({name: one[name] for name in rest if name in one} for one in (before, after))
    framework.assert_nothing_is_lost(rest, results, *kept)
