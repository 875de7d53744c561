"""Local steps: ranks step by themselves, and at a meeting nothing of what they did is lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hvd_sparse.compression import (
    LAGS,
    AdaComm,
    Dense,
    Feedback,
    GaussianK,
    GTopK,
    Layers,
    LocalSteps,
    Outer,
    TopK,
)
from hvd_sparse.errors import (
    CheckpointMismatchError,
    ExchangeFailedError,
    InvalidArgumentError,
    UnsupportedError,
)
from tests.frameworks import any_entry, same, with_bad_entry
from tests.gpus import DEVICE
from tests.torch_model import array_of
from tests.verdict import CYCLE

FIXED = {"density": 0.1, "layers": Layers(min_numel=64)}
EVERY = 3  # local steps
EXACT = Dense(local_steps=EVERY)
SPARSE = TopK(local_steps=EVERY, **FIXED)
COMPRESSIONS = {
    "topk": SPARSE,
    "gtopk": GTopK(local_steps=EVERY, **FIXED),
    "gaussiank": GaussianK(local_steps=EVERY, **FIXED),
    "lags": LAGS(
        local_steps=EVERY,
        adaptive=False,
        warmup=None,
        **FIXED | {"layers": Layers(min_numel=64, bucket_numel=1500)},
    ),
    "bfloat16": TopK(local_steps=EVERY, wire="bfloat16", **FIXED),
    "dense": EXACT,
    "dense, int8": Dense(local_steps=EVERY, values="int8"),
}
OUTERS = {
    "lr": Outer(lr=0.5),
    "momentum": Outer(momentum=0.5),
    "nesterov": Outer(lr=0.5, momentum=0.5, nesterov=True),
}


def new(framework, compression, **options):
    return framework.model(compression, op="Average", **options)


def gradients_of(framework, step):
    """Returns integers of which averages over the ranks are integers, too."""
    given = framework.integer_gradients(step)
    return {name: framework.size * one for name, one in given.items()}


def streaming(compression, *, every=6, fragments=1, delay=0):
    """Returns the compression with meetings that stream."""
    options = LocalSteps(every=every, fragments=fragments, delay=delay)
    return replace(compression, local_steps=options)


def interval(framework, model, start, steps=EVERY):
    """Takes local steps at a rate of 1; returns this rank's difference."""
    taken = [gradients_of(framework, start + step) for step in range(steps)]
    for gradients in taken:
        model.step(gradients)
    return {name: sum(one[name] for one in taken) for name in taken[0]}


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_meeting_loses_nothing_and_makes_all_ranks_equal(framework, name):
    compression = COMPRESSIONS[name]
    if compression.values != "float32" and framework.size & (framework.size - 1):
        pytest.skip("averages of rounded values are not exact unless the ranks are a power of two")
    model = new(framework, compression)
    for meeting in range(4):
        before, kept = model.weights(), model.residuals()
        difference = interval(framework, model, 10 * meeting)
        moved = {name: before[name] - one for name, one in model.weights().items()}
        results = {name: framework.size * one for name, one in moved.items()}
        framework.assert_nothing_is_lost(difference, results, kept, model.residuals())
        framework.assert_same_on_all_ranks(model.weights())
        assert any_entry(moved)


@pytest.mark.usefixtures("several_ranks")
def test_an_adaptive_compression_meets_dense_and_then_sparse(framework, verdict):
    verdict(sparse=True)
    model = new(framework, LAGS(local_steps=2, warmup=None, **FIXED))
    buckets = []
    for meeting in range(CYCLE + 2):
        before, kept = model.weights(), model.residuals()
        difference = interval(framework, model, 10 * meeting, steps=2)
        moved = {name: before[name] - one for name, one in model.weights().items()}
        results = {name: framework.size * one for name, one in moved.items()}
        framework.assert_nothing_is_lost(difference, results, kept, model.residuals())
        framework.assert_same_on_all_ranks(model.weights())
        buckets.append(model.sparse_buckets())
    assert buckets[0] == 0
    assert buckets[-1] > 0


@pytest.mark.usefixtures("several_ranks")
def test_between_meetings_a_rank_steps_alone_and_common_weights_are_lent(framework):
    model = new(framework, EXACT)
    model.fill(5.0)
    difference = interval(framework, model, 0, steps=EVERY - 1)
    assert model.stats() is None
    assert same(model.weights(), {name: 5.0 - one for name, one in difference.items()})
    own = model.weights()
    with model.common_weights():
        assert all(np.all(one == 5.0) for one in model.weights().values())
    assert same(model.weights(), own)
    interval(framework, model, EVERY, steps=1)
    assert model.stats().step == 0
    with model.common_weights():
        framework.assert_same_on_all_ranks(model.weights())


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", OUTERS)
def test_the_outer_optimizer_takes_the_average_as_its_gradient(framework, name):
    outer = OUTERS[name]
    model = new(framework, Dense(local_steps=LocalSteps(every=EVERY, outer=outer)))
    expected = {name: np.zeros(one.shape) for name, one in model.weights().items()}
    momenta = {name: np.zeros(one.shape) for name, one in model.weights().items()}
    for meeting in range(3):
        difference = interval(framework, model, 10 * meeting)
        for name, total in framework.totals(difference).items():
            average = total.reshape(expected[name].shape) / framework.size
            momenta[name] = outer.momentum * momenta[name] + average
            step = average + outer.momentum * momenta[name] if outer.nesterov else momenta[name]
            expected[name] = expected[name] - outer.lr * step
        assert same(model.weights(), expected)


@pytest.mark.usefixtures("several_ranks")
def test_a_rank_keeps_its_own_moments(framework):
    model = new(framework, SPARSE, optimizer="Adam", rate=0.5)
    interval(framework, model, 0)
    framework.assert_same_on_all_ranks(model.weights())
    assert not model.velocities()
    moments = np.concatenate([one.ravel() for one in model.moments()])
    everywhere = framework.gathered(moments)
    assert all(not np.array_equal(everywhere[0], other) for other in everywhere[1:])


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize(
    ("optimizer", "lr_scale", "factor"),
    [("AdamW", "auto", None), ("RMSprop", "auto", 1.0), ("AdamW", 3.0, 3.0)],
)
def test_learning_rates_are_scaled_within_local_steps(framework, optimizer, lr_scale, factor):
    factor = factor or min(1.5 * framework.size**0.5, 3.0)
    scaled = replace(SPARSE, local_steps=LocalSteps(every=EVERY, lr_scale=lr_scale))
    plain = replace(SPARSE, local_steps=LocalSteps(every=EVERY, lr_scale=1))
    model = new(framework, scaled, optimizer=optimizer, rate=0.25)
    twin = new(framework, plain, optimizer=optimizer, rate=factor * 0.25)
    for one in (model, twin):
        interval(framework, one, 0, steps=EVERY + 1)
    assert any_entry(model.weights())
    assert same(model.weights(), twin.weights())
    assert model.rate() == 0.25


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("optimizer", ["Adam", "RMSprop"])
def test_a_meeting_averages_moments_where_it_is_asked_to(framework, optimizer):
    own = new(framework, SPARSE, optimizer=optimizer, rate=0.5)
    model = new(
        framework,
        replace(SPARSE, local_steps=replace(SPARSE.local_steps, moments="averaged")),
        optimizer=optimizer,
        rate=0.5,
    )
    for one in (own, model):
        interval(framework, one, 0)
    assert same(model.weights(), own.weights())
    for averaged, moment in zip(model.moments(), own.moments(), strict=True):
        everywhere = framework.gathered(moment.ravel())
        np.testing.assert_allclose(averaged.ravel(), everywhere.mean(axis=0), rtol=1e-6, atol=1e-6)
        everywhere = framework.gathered(averaged.ravel())
        assert all(np.array_equal(everywhere[0], other) for other in everywhere[1:])
    interval(framework, model, 5)
    framework.assert_same_on_all_ranks(model.weights())


@pytest.mark.usefixtures("several_ranks")
def test_narrow_weights_move_by_less_than_their_last_place(framework):
    model = new(
        framework,
        TopK(density=1.0, layers=Layers(min_numel=1), local_steps=1 + 1),
        dtype="bfloat16",
    )
    model.fill(256.0)
    for step in range(4):  # weights of 256 and above have a last place of 2
        gradients = {name: np.zeros(one.shape) for name, one in model.weights().items()}
        gradients["first"][:] = -2.0 if framework.rank == 0 and step % 2 == 0 else 0.0
        model.step(gradients)
    framework.assert_same_on_all_ranks(model.weights())
    moved = 256.0 + np.round(2 / framework.size) * 2  # two steps of 2 / size each
    assert np.all(np.abs(model.weights()["first"] - moved) <= 2.0)


@pytest.mark.usefixtures("several_ranks")
def test_ranks_meet_early_where_all_ask_for_it(framework):
    model = new(framework, EXACT)
    before = model.weights()
    difference = interval(framework, model, 0, steps=1)
    model.meet()
    framework.assert_same_on_all_ranks(model.weights())
    for name, total in framework.totals(difference).items():
        moved = (before[name] - model.weights()[name]).ravel()
        assert np.array_equal(framework.size * moved, total)
    after = model.weights()
    model.meet()  # nobody has stepped since
    assert same(model.weights(), after)
    interval(framework, model, 5, steps=EVERY - 1)
    assert model.stats().step == 0  # the interval began with the meeting


@pytest.mark.usefixtures("several_ranks")
def test_ranks_that_have_taken_other_steps_are_named(framework):
    model = new(framework, EXACT)
    last = framework.size - 1
    interval(framework, model, 10)  # in the first steps, DDP itself makes ranks wait
    interval(framework, model, 0, steps=2 if framework.rank == last else 1)
    with pytest.raises(ExchangeFailedError, match=f"1 local steps .* rank {last} 2"):
        model.meet()
    with pytest.raises(ExchangeFailedError):
        interval(framework, model, 5)


@pytest.mark.usefixtures("several_ranks")
def test_ranks_that_began_with_other_weights_are_named(framework):
    model = new(framework, EXACT)
    model.fill(float(framework.rank == 1))
    with pytest.raises(ExchangeFailedError, match=r"rank 0 and rank 1 .* different weights"):
        interval(framework, model, 0)


@pytest.mark.usefixtures("several_ranks")
def test_weights_may_be_loaded_between_two_intervals(framework):
    model = new(framework, EXACT)
    interval(framework, model, 0)
    model.fill(7.0)
    difference = interval(framework, model, 5)
    for name, total in framework.totals(difference).items():
        moved = (7.0 - model.weights()[name]).ravel()
        assert np.array_equal(framework.size * moved, total)


@pytest.mark.usefixtures("several_ranks")
def test_a_rank_whose_weights_are_not_finite_stops_no_other(framework):
    model = new(framework, SPARSE)
    interval(framework, model, 0)
    common, kept = model.weights(), model.residuals()
    difference = interval(framework, model, 5, steps=EVERY - 1)
    last = gradients_of(framework, 9)
    if framework.rank == framework.size - 1:
        last = with_bad_entry(last, "second", float("nan"), index=3)
    with pytest.raises(framework.refusal):
        model.step(last)
    assert same(model.weights(), common)
    owed = {name: part + last[name] for name, part in difference.items()}
    for name, part in model.residuals().items():
        given = np.nan_to_num(owed[name].ravel(), nan=0.0)
        bad = np.isnan(owed[name].ravel())
        assert np.array_equal((part - kept[name])[~bad], given[~bad])
    interval(framework, model, 10)
    framework.assert_same_on_all_ranks(model.weights())


@pytest.mark.parametrize(
    "name", ["topk", "dense, int8", "momentum", "adaptive", "late", "fragments", "over time"]
)
@pytest.mark.parametrize("extra", [0, 2], ids=["after a meeting", "amid an interval"])
def test_an_interval_goes_on_bit_for_bit(framework, verdict, plans_over_time, folder, name, extra):
    verdict(sparse=True)
    plans_over_time(*[{"every": 4, "fragments": 2, "delay": 1}] * 20)
    others = {
        "momentum": TopK(local_steps=LocalSteps(every=EVERY, outer=OUTERS["nesterov"]), **FIXED),
        "adaptive": LAGS(local_steps=EVERY, warmup=None, **FIXED),
        "late": streaming(SPARSE, every=EVERY, delay=EVERY),
        "fragments": streaming(SPARSE, every=4, fragments=2, delay=1),
        "over time": LAGS(local_steps="auto", collective="allgather", **FIXED),
    }
    compression = {**COMPRESSIONS, **others}[name]
    before = {"adaptive": EVERY * (CYCLE + 1), "over time": 11}.get(name, EVERY * 2) + extra
    model = new(framework, compression, optimizer="Adam", rate=0.5)
    interval(framework, model, 0, steps=before)
    model.save(folder, epoch=7)
    interval(framework, model, before, steps=5)

    twin = new(framework, compression, optimizer="Adam", rate=0.5)
    interval(framework, twin, 50, steps=EVERY + 1)
    assert twin.load(folder) == {"epoch": 7}
    interval(framework, twin, before, steps=5)
    assert same(model.weights(), twin.weights())
    assert all(map(np.array_equal, model.moments(), twin.moments()))
    assert same(model.residuals(), twin.residuals())
    model.meet()
    twin.meet()
    assert same(model.weights(), twin.weights())


@pytest.mark.usefixtures("several_ranks")
def test_a_checkpoint_amid_an_interval_shares_the_common_weights(framework, folder):
    model = new(framework, SPARSE)
    interval(framework, model, 0)
    common = model.weights()
    interval(framework, model, 5, steps=1)
    own = model.weights()
    model.save(folder)
    assert same(model.weights(), own)
    twin = new(framework, SPARSE)
    with pytest.raises(CheckpointMismatchError, match="amid an interval, 1 local steps"):
        twin.load(folder, residuals="spread")
    twin.load(folder, residuals="reset")
    assert same(twin.weights(), common)
    with pytest.raises(CheckpointMismatchError, match="no local_steps now"):
        new(framework, TopK(**FIXED)).load(folder)
    model.meet()
    model.save(folder)
    twin.load(folder, residuals="spread")
    assert same(framework.totals(twin.residuals()), framework.totals(model.residuals()))


@pytest.mark.usefixtures("several_ranks")
def test_all_ranks_choose_the_next_interval_alike(framework):
    model = new(framework, Dense(local_steps=AdaComm(first=4, seconds=1e-9)))
    lengths = []
    for step in range(12):
        model.report_loss(8.0 if step == 0 else 2.0 + framework.rank)
        model.step(gradients_of(framework, step))
        lengths.append(model.local_steps())
    framework.assert_equal_on_all_ranks(lengths)
    assert lengths[:4] == [4, 4, 4, lengths[3]]
    assert lengths[-1] == 1


@pytest.mark.usefixtures("several_ranks")
def test_adacomm_asks_for_the_loss_on_all_ranks(framework):
    model = new(framework, Dense(local_steps=AdaComm(first=2, seconds=1e-9)))
    with pytest.raises(InvalidArgumentError, match="report_loss"):
        interval(framework, model, 0, steps=2)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_adacomm_adapts_after_losses_that_are_not_finite(framework, caplog, bad):
    caplog.set_level("WARNING", "hvd_sparse")
    model = new(framework, Dense(local_steps=AdaComm(first=4, seconds=1e-9)))
    lengths = []
    for step in range(16):
        is_bad = step < 4 and framework.rank == framework.size - 1
        model.report_loss(float(bad) if is_bad or step == 5 else 2.0)
        model.step(gradients_of(framework, step))
        lengths.append(model.local_steps())
    framework.assert_equal_on_all_ranks(lengths)
    assert list(dict.fromkeys(lengths)) == [4, 2, 1]
    assert caplog.text.count("not finite, and are left out") == (framework.rank == 0)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        ("2.5", "loss must be a number, got '2.5'"),
        (None, "loss must be a number, got None"),
        (torch.ones(2), r"one element, got torch.float32 of shape \(2,\)"),
        (torch.tensor(1j), "real tensor"),
    ],
)
@pytest.mark.usefixtures("several_ranks")
def test_a_loss_that_is_no_number_is_refused_where_it_is_reported(framework, loss, text):
    model = new(framework, Dense(local_steps=AdaComm(first=4)))
    with pytest.raises(InvalidArgumentError, match=text):
        model.report_loss(loss)


@pytest.mark.usefixtures("several_ranks")
def test_an_optimizer_without_a_learning_rate_takes_local_steps(framework):
    model = new(framework, EXACT, optimizer="WithoutRate")
    before = model.weights()
    difference = interval(framework, model, 0)
    for name, total in framework.totals(difference).items():
        moved = (before[name] - model.weights()[name]).ravel()
        assert np.array_equal(framework.size * moved, total)
    with pytest.raises(UnsupportedError, match="WithoutRate has no 'lr'"):
        new(framework, Dense(local_steps=AdaComm(first=4)), optimizer="WithoutRate")


CONSTANTS = {
    "mask": torch.full((3, 4), torch.finfo(torch.float32).min),
    "infinite": torch.full((2,), float("-inf")),
    "third": torch.tensor([0.456, 1 / 3, 3e38, 1e-45, -0.0]),
    "expanded": torch.ones(1, 4).expand(3, 4),
    "rounded": torch.tensor([0.1], dtype=torch.bfloat16),
    "wide": torch.tensor([1e308], dtype=torch.float64),
}


@pytest.mark.usefixtures("several_ranks")
def test_buffers_that_are_equal_keep_their_bits_and_others_are_averaged(framework):
    model = new(framework, EXACT)
    module = torch.nn.Module()
    for name, one in CONSTANTS.items():
        module.register_buffer(name, one.to(DEVICE).expand_as(one))
    own = float(framework.rank)
    module.register_buffer("own", torch.full((1, 3), own, device=DEVICE).expand(2, 3))
    module.register_buffer("large", torch.full((2,), 3e38, device=DEVICE) - own * 1e37)
    for _ in range(2):
        model.meet(module)
    for name, one in CONSTANTS.items():
        assert torch.equal(getattr(module, name).cpu(), one), name
    assert torch.all(module.own == (framework.size - 1) / 2)
    assert torch.all((module.large < 3e38) & (module.large > 2.5e38))
    framework.assert_same_on_all_ranks({"large": array_of(module.large)})


@pytest.mark.usefixtures("several_ranks")
def test_sums_are_refused(framework):
    with pytest.raises(UnsupportedError, match="averages"):
        framework.model(EXACT, op="Sum")


@pytest.mark.usefixtures("several_ranks")
def test_a_compression_without_local_steps_never_meets(framework):
    model = framework.model(TopK(**FIXED))
    with pytest.raises(InvalidArgumentError, match=r"meet\(\) needs"):
        model.meet()


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize(("density", "told"), [(0.01, True), (0.1, False)])
def test_a_density_that_is_low_for_several_steps_is_told_of_once(framework, caplog, density, told):
    caplog.set_level("WARNING", "hvd_sparse")
    new(framework, TopK(density=density, layers=Layers(min_numel=64), local_steps=2)).prepare()
    assert ("1 % of what several local steps" in caplog.text) == (told and framework.rank == 0)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("policy", ["own", "spread"])
@pytest.mark.parametrize("unit", ["differences of weights", "gradients"])
def test_residuals_of_the_other_unit_are_refused(framework, folder, policy, unit):
    if unit == "gradients" and not framework.loads_whole:
        pytest.skip("what is saved lacks parts that local steps have")
    alone, together = (
        replace(SPARSE, feedback=replace(SPARSE.feedback, momentum="keep")),
        TopK(feedback=Feedback(momentum="keep"), **FIXED),
    )
    theirs, ours = (alone, together) if unit != "gradients" else (together, alone)
    model, twin = new(framework, theirs), new(framework, ours)
    interval(framework, model, 0)
    model.save(folder)
    advice = '(residuals="reset"|leave the residuals out)'
    with pytest.raises(CheckpointMismatchError, match=f"hold {unit}, .*{advice}"):
        twin.load(folder, residuals=policy)
    assert not (framework.loads_whole and any_entry(twin.weights()))
    twin.load(folder, residuals="reset")
    assert same(twin.weights(), model.weights())
    if framework.loads_whole:
        twin.save(folder)
        model.load(folder)  # zeros have no unit
        assert not any_entry(model.residuals())
