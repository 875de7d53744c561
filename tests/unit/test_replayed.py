"""The stand-in for training: exact waits, real hooks, gradients with exact sums."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from memory import GIB, most_ranks, needed
from modes import compression_of
from paper_models import MODELS
from replayed import (
    EXACT,
    LARGEST,
    NOISE_NUMEL,
    SIGNAL_NUMEL,
    Clock,
    Gradients,
    Training,
    gradient_memory,
    most_steps,
)

from hvd_sparse.compression import LAGS, Layers, TopK
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.places import step_clock
from hvd_sparse.places.step_clock import StepClock

pytestmark = pytest.mark.long  # it looks at benchmarks alone


class Time:
    """A clock for tests, whose sleeps always take a little too long."""

    def __init__(self, oversleep):
        self.now = 100.0
        self.oversleep = oversleep

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds + self.oversleep

    def pass_by(self, seconds):
        self.now += seconds


@pytest.mark.parametrize("oversleep", [0.0, 0.003, 0.02])
@pytest.mark.parametrize("dilation", [0.5, 10.0])
def test_waits_add_up_whatever_is_overslept(oversleep, dilation):
    time = Time(oversleep)
    clock = Clock(dilation, now=time, sleep=time.sleep)
    clock.start()
    start = time.now
    for _ in range(50):
        clock.spend(0.01)
    late = time.now - start - 50 * 0.01 * dilation
    assert -1e-9 <= late <= oversleep + 1e-9


def test_a_hook_delays_what_follows_and_the_work_of_a_layer_does_not():
    time = Time(0.0)
    clock = Clock(1.0, now=time, sleep=time.sleep)
    clock.start()
    start = time.now
    for _ in range(10):
        clock.spend(0.1, lambda: time.pass_by(0.04))
        time.pass_by(0.02)  # a hook
    assert time.now - start == pytest.approx(10 * (0.1 + 0.02))


def training(model="ResNet-20", rank=0, forward=0.0, backward=0.0):
    memory = gradient_memory(MODELS[model])
    return Training(
        MODELS[model], forward=forward, backward=backward, clock=Clock(1.0),
        gradients=Gradients(rank), memory=memory,
    )  # fmt: skip


def test_hooks_fire_once_each_from_the_last_layer_to_the_first():
    replayed = training()
    fired = []
    for number, (_, value) in enumerate(replayed.named_parameters()):
        value.register_post_accumulate_grad_hook(lambda _, n=number: fired.append(n))
    replayed.forward(0).backward()
    layer_of = [
        number
        for number, layer in enumerate(MODELS["ResNet-20"].layers)
        for _ in layer.tensors
    ]  # fmt: skip
    assert sorted(fired) == list(range(len(layer_of)))
    layers = [layer_of[n] for n in fired]
    assert layers == sorted(layers, reverse=True)


def test_a_tuner_times_the_layers_as_they_are_replayed_whatever_hooks_take(monkeypatch):
    time = Time(0.0005)
    monkeypatch.setattr(step_clock.time, "perf_counter", time)
    model, dilation, backward = MODELS["ResNet-20"], 10.0, 0.2
    replayed = Training(
        model, forward=0.1, backward=backward,
        clock=Clock(dilation, now=time, sleep=time.sleep), gradients=Gradients(0),
        memory=gradient_memory(model),
    )  # fmt: skip
    weights = [layer.tensors[0] for layer in reversed(model.layers)]
    timed = StepClock([Layer(tensor.name, tensor.numel) for tensor in weights])

    def hook(name):
        with timed.arrival(name):
            time.pass_by(0.03)  # selecting

    for parameter in replayed.parameters:
        parameter.value.register_post_accumulate_grad_hook(
            lambda _, name=parameter.tensor.name: hook(name)
        )
    for step in range(2):
        replayed.forward(step).backward()
        reading = timed.end_step()
    times = reading()
    first, *others = reversed(model.spread(backward))
    assert times.forward == pytest.approx(dilation * (0.1 + first), rel=0.1)
    ready = times.ready[1:]
    assert ready[-1] == pytest.approx(dilation * sum(others), rel=0.01)
    for seconds, seen in zip(others, (b - a for a, b in pairwise(times.ready)), strict=True):
        assert seen == pytest.approx(dilation * seconds, rel=0.1, abs=0.001)


def test_gradients_lie_in_the_given_memory_and_have_the_shapes_of_the_model():
    replayed = training()
    for step in range(2):
        replayed.forward(step).backward()
        for parameter in replayed.parameters:
            gradient = parameter.value.grad
            assert gradient.shape == parameter.tensor.shape
            assert gradient.is_contiguous()
            assert gradient.data_ptr() == parameter.gradient.data_ptr()
            assert gradient._version == 0
            assert gradient.any()
            parameter.value.grad = None


def test_parameters_take_no_memory_of_their_own():
    assert all(value.untyped_storage().nbytes() == 4 for _, value in training().named_parameters())


def gradient(numel, *, rank=0, tensor=0, step=0):
    out = torch.empty(numel)
    Gradients(rank).write(out, tensor=tensor, step=step)
    return out


def test_gradients_are_integers_that_stay_exact_for_the_allowed_steps():
    values = gradient(3_000_000)
    assert bool((values == values.round()).all())
    assert 64 < values.abs().max() <= 2 * LARGEST
    assert 16 * most_steps(16) * 2 * LARGEST <= EXACT


def test_gradients_have_heavy_tails():
    values = gradient(1_000_000)
    kurtosis = ((values - values.mean()) ** 4).mean() / values.var() ** 2
    assert kurtosis > 6  # 3 for a normal distribution


def test_gradients_share_a_signal_between_ranks_and_steps_and_differ_in_noise():
    own = gradient(100_000)
    assert torch.equal(own, gradient(100_000))
    for other in (gradient(100_000, rank=1), gradient(100_000, step=1)):
        assert torch.corrcoef(torch.stack([own, other]))[0, 1] == pytest.approx(0.5, abs=0.1)
    unrelated = gradient(100_000, tensor=1)
    assert abs(torch.corrcoef(torch.stack([own, unrelated]))[0, 1]) < 0.1


@pytest.mark.parametrize("period", [SIGNAL_NUMEL, NOISE_NUMEL])
def test_a_large_gradient_does_not_repeat_itself(period):
    values = gradient(2 * period)
    same = (values[:period] == values[period:]).float().mean()
    assert same < 0.2


@pytest.mark.parametrize(
    ("mode", "compression"),
    [
        ("LAGS", LAGS()),
        ("LAGS(density=0.01, collective='allgather')",
         LAGS(density=0.01, collective="allgather")),
        ("TopK(layers=Layers(layer_wise=False))", TopK(layers=Layers(layer_wise=False))),
    ],
)  # fmt: skip
def test_a_mode_names_a_compression(mode, compression):
    assert compression_of(mode) == compression


@pytest.mark.parametrize("mode", ["", "SGD", "LAGS(0.1)", "LAGS(density=f())", "os.abort()", "1"])
def test_what_names_no_compression_is_refused(mode):
    with pytest.raises(ValueError, match="literal options"):
        compression_of(mode)


def test_options_beyond_their_limits_are_refused():
    with pytest.raises(InvalidArgumentError, match="density"):
        compression_of("LAGS(density=2)")


def test_ranks_are_halved_until_they_fit():
    model, modes = MODELS["AlexNet"], ("compute", "dense", "LAGS", "GTopK")
    ranks = most_ranks(model, 32, modes, 20 * GIB)
    assert ranks in (8, 16)
    assert needed(model, ranks, modes) <= 20 * GIB < needed(model, 2 * ranks, modes)
    with pytest.raises(ValueError, match="two ranks of AlexNet do not fit"):
        most_ranks(model, 32, modes, GIB)
