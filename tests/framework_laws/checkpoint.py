"""Checkpoints of a whole job: complete or absent; any number of ranks loses nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hvd_sparse.compression import LAGS, SBC, Feedback, GaussianK, GTopK, Layers, TopK, Warmup
from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.tuning.stages import Stage
from tests.checkpoints import pretend_twice_as_many_ranks
from tests.dense_sums import DENSE_SUMS
from tests.frameworks import any_entry, same
from tests.verdict import CYCLE

FIXED = {"density": 0.1, "layers": Layers(min_numel=64)}
PINNED = {
    "adaptive": False,
    "collective": "gtopk",
    "warmup": None,
    "layers": Layers(bucket_numel=1500),
    **FIXED,
}
SIMPLE = LAGS(**PINNED)
WARMUP = Warmup(steps=2, densities=(0.5, 0.25))
COMPRESSIONS = {
    "lags": SIMPLE,
    "gtopk": GTopK(**FIXED),
    "gaussiank": GaussianK(warmup=WARMUP, feedback=Feedback(rescale=True), **FIXED),
    "sbc": SBC(**FIXED),
    "sbc with momentum": SBC(feedback=Feedback(momentum=0.5), **FIXED),
    "adaptive": LAGS(warmup=None, **FIXED),
    "lags by default": LAGS(adaptive=False, **FIXED),
    "momentum": TopK(feedback=Feedback(momentum=0.5, clip_norm=20.0, weight_decay=0.01), **FIXED),
    "gtopk with momentum": GTopK(feedback=Feedback(momentum=0.5), **FIXED),
    "lags with momentum": LAGS(feedback=Feedback(momentum=0.5), **PINNED),
    "adaptive with momentum": LAGS(feedback=Feedback(momentum=0.5), warmup=None, **FIXED),
    **{f"dense, {name}": one for name, one in DENSE_SUMS.items()},
    "dense with momentum": replace(
        DENSE_SUMS["bfloat16"], feedback=replace(DENSE_SUMS["bfloat16"].feedback, momentum=0.5)
    ),
}


def new(framework, compression=SIMPLE):
    """Makes a model with an optimizer that has a state, where momentum leaves it one."""
    momentum = compression is not None and compression.feedback.momentum != "keep"
    model = framework.model(compression, rate=0.5, optimizer="SGD" if momentum else "Adam")
    framework.seed(1 + framework.rank)
    return model


def train(framework, model, steps):
    """Takes steps whose gradients depend on random numbers, like those of dropout."""
    for step in steps:
        gradients = framework.integer_gradients(step, low=-3000, high=3001)
        model.step({n: one * framework.coin_flips(one.shape) for n, one in gradients.items()})


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_resumed_run_goes_on_bit_for_bit(framework, verdict, folder, name):
    verdict(sparse=True)
    compression = COMPRESSIONS[name]
    before = CYCLE + 1 if compression.adaptive else 3
    model = new(framework, compression)
    train(framework, model, range(before))
    model.save(folder, epoch=7)
    train(framework, model, range(before, before + 4))

    twin = new(framework, compression)
    train(framework, twin, range(20, 22))
    assert twin.load(folder) == {"epoch": 7}
    train(framework, twin, range(before, before + 4))
    assert same(model.weights(), twin.weights())
    assert all(map(np.array_equal, model.moments(), twin.moments()))
    assert same(model.residuals(), twin.residuals())
    assert same(model.velocities(), twin.velocities())
    assert any_entry(twin.velocities()) == ("momentum" in name)
    if framework.size == 1:
        return
    assert any_entry(twin.residuals()) == (name != "dense, float32")
    assert twin.stats().step == before + 3
    if compression.adaptive:
        assert twin.tuning().stage is Stage.SETTLED
        assert twin.tuning() == model.tuning()
        assert twin.sparse_buckets() == 1


def test_a_later_checkpoint_replaces_the_former_and_leaves_nothing_behind(framework, folder):
    model = new(framework)
    for epoch in range(3):
        model.save(folder, epoch=epoch)
        train(framework, model, [epoch])
    assert model.load(folder) == {"epoch": 2}
    assert [path.name for path in folder.parent.iterdir()] == ["last"]


def test_a_job_that_died_between_two_renames_finds_the_former(framework, folder):
    model = new(framework)
    train(framework, model, [0])
    model.save(folder, epoch=1)
    framework.barrier()
    if framework.rank == 0:
        folder.rename(f"{folder}.old")
    framework.barrier()
    assert model.load(folder) == {"epoch": 1}


def test_where_there_is_no_checkpoint_none_is_loaded(framework, folder):
    assert new(framework).load(folder) is None


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", ["gaussiank", "dense, bfloat16"])
def test_the_sum_of_residuals_of_more_ranks_is_spread_and_nothing_is_lost(framework, folder, name):
    model = new(framework, COMPRESSIONS[name])
    train(framework, model, range(5))
    model.save(folder)
    owed = framework.totals(model.residuals())
    if framework.rank == 0:
        pretend_twice_as_many_ranks(folder, framework.size)
    framework.barrier()

    twin = new(framework, COMPRESSIONS[name])
    twin.prepare()
    with pytest.raises(CheckpointMismatchError, match='residuals="spread"'):
        twin.load(folder)
    twin.load(folder, residuals="spread")
    found = twin.residuals()
    assert same(framework.totals(found), {name: 2 * part for name, part in owed.items()})
    for part in found.values():
        (indices,) = np.nonzero(part)
        assert np.all(indices % framework.size == framework.rank)
    assert same(model.weights(), twin.weights())
    train(framework, twin, [9])
    if name == "gaussiank":
        assert twin.stats().density_asked < 0.2  # the warm-up is over
    framework.assert_same_on_all_ranks(twin.weights())


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", ["lags", "dense, bfloat16"])
def test_residuals_can_be_given_up(framework, folder, name):
    model = new(framework, COMPRESSIONS[name])
    train(framework, model, range(3))
    model.save(folder)
    assert any_entry(model.residuals())
    twin = new(framework, COMPRESSIONS[name])
    train(framework, twin, range(20, 22))
    assert any_entry(twin.residuals())
    twin.load(folder, residuals="reset")
    assert not any_entry(twin.residuals())
    assert same(model.weights(), twin.weights())


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("policy", ["own", "spread"])
def test_a_file_that_is_missing_is_an_error_on_every_rank_and_changes_nothing(
    framework, folder, policy
):
    model = new(framework)
    train(framework, model, range(3))
    model.save(folder)
    last = framework.size - 1
    if framework.rank == 0:
        (file,) = (
            path
            for path in folder.glob(f"rank-{last}-of-{framework.size}.*")
            if path.suffix != ".manifest"
        )
        file.unlink()
    framework.barrier()
    twin = new(framework)
    twin.prepare()
    with pytest.raises(CheckpointMismatchError, match=rf"rank-?s? ?\[?{last}"):
        twin.load(folder, residuals=policy)
    assert not any_entry(twin.weights())


@pytest.mark.usefixtures("several_ranks")
def test_a_folder_that_one_rank_cannot_write_is_an_error_on_every_rank(framework, folder):
    model = new(framework)
    with pytest.raises(OSError, match="nowhere"):
        model.save(Path("/proc/nowhere/last") if framework.rank == 0 else folder)


def test_an_unknown_policy_is_refused(framework, folder):
    with pytest.raises(InvalidArgumentError, match="own, spread, reset, got 'half'"):
        new(framework).load(folder, residuals="half")


@pytest.mark.usefixtures("several_ranks")
def test_an_argument_that_one_rank_refuses_is_an_error_on_every_rank(framework, folder):
    model, twin = new(framework), new(framework)
    train(framework, model, range(2))
    is_last = framework.rank == framework.size - 1
    told = "" if is_last else f"rank {framework.size - 1} could not go on: .*"
    with pytest.raises(InvalidArgumentError, match=f"{told}must be the path of a folder.*got ''"):
        model.save("" if is_last else folder)
    with pytest.raises(InvalidArgumentError, match=f"{told}must be the path.*got None"):
        model.save(None if is_last else folder)
    model.save(folder)
    with pytest.raises(InvalidArgumentError, match=f"{told}own, spread, reset, got 'Own'"):
        twin.load(folder, residuals="Own" if is_last else "own")
    with pytest.raises(InvalidArgumentError, match=r"'own'.*'reset'|'reset'.*'own'"):
        twin.load(folder, residuals="own" if is_last else "reset")
    twin.prepare()
    twin.load(folder)
    assert same(model.weights(), twin.weights())


def test_a_model_without_sparse_gradients_is_saved_as_well(framework, folder):
    model = new(framework, None)
    train(framework, model, range(2))
    model.save(folder, epoch=2)
    weights = model.weights()
    train(framework, model, range(2, 3))
    assert not same(model.weights(), weights)
    assert model.load(folder) == {"epoch": 2}
    assert same(model.weights(), weights)
