"""PyTorch's devices: unsupported ones, streams, and the timing of a GPU."""

from __future__ import annotations

from contextlib import nullcontext

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse import _core
from hvd_sparse.compression import Collective, Layers
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.places.device_clock import DeviceClock
from hvd_sparse.places.step_clock import CpuClock, StepClock
from hvd_sparse.pytorch.devices import StepStream, check_device, common_device, current_stream
from hvd_sparse.pytorch.places import OnDevice, place_of
from hvd_sparse.pytorch.settings import Settings, check_dense, check_devices
from hvd_sparse.torch import LAGS, Dense, ThreeLC, TopK
from hvd_sparse.torch.host import HorovodHost
from hvd_sparse.tuning.measure import measure_machine
from tests import laws
from tests.gpus import needs_gpu


def test_tensors_on_no_gpu_and_not_on_the_cpu_are_refused_by_name():
    check_device("tensor 'a'", torch.zeros(1))
    with pytest.raises(UnsupportedError, match="tensor 'a' is on device 'meta'"):
        check_device("tensor 'a'", torch.zeros(1, device="meta"))


def test_parameters_lie_on_one_device():
    on_cpu, elsewhere = ("a", torch.zeros(1)), ("b", torch.zeros(1, device="meta"))
    assert common_device([]) == common_device([on_cpu, on_cpu]) == torch.device("cpu")
    with pytest.raises(UnsupportedError, match="'a' is on device 'cpu' and 'b' on 'meta'"):
        common_device([on_cpu, elsewhere])


def settings_of(named, compression):
    return Settings(
        compression=compression,
        backward_passes_per_step=1,
        reduction=Reduction(averages=True, gradient_predivide_factor=1.0),
        sparse_as_dense=False,
        grad_scaler=None,
        waits_in_forward=False,
        named=named,
    )


def test_sums_of_a_node_are_refused_on_a_device_before_anything_is_planned():
    compression = LAGS(collective=Collective(nodes_first=True))
    elsewhere = [("b", torch.zeros(1, device="meta"))]
    check_devices(settings_of([("a", torch.zeros(1))], compression))
    for taken in (LAGS(), Dense(), ThreeLC()):
        check_devices(settings_of(elsewhere, taken))
    with pytest.raises(UnsupportedError, match="nodes_first=True takes no gradients of device 'me"):
        check_devices(settings_of(elsewhere, compression))


def check_on_horovod(named, compression):
    check_dense(settings_of(named, compression), HorovodHost())


def test_a_horovod_without_gpus_is_named_where_gradients_travel_dense(monkeypatch):
    large = [("w", torch.zeros(8, 8, device="meta"))]
    small = [*large, ("b", torch.zeros(8, device="meta"))]
    fixed = TopK(layers=Layers(min_numel=64))
    check_on_horovod([("a", torch.zeros(1))], LAGS())
    check_on_horovod(large, fixed)
    with pytest.raises(UnsupportedError, match=r"'b' on device 'meta' \(it is small\).*NCCL"):
        check_on_horovod(small, fixed)
    with pytest.raises(UnsupportedError, match=r"'w' on device 'meta' \(LAGS measures dense"):
        check_on_horovod(large, LAGS(layers=Layers(min_numel=64)))
    monkeypatch.setattr(hvd, "cuda_built", lambda: True)
    check_on_horovod(small, LAGS())


def test_the_cpu_has_no_stream():
    assert current_stream(torch.device("cpu")) == 0


class FakeStream:
    """A stream that records which streams it waits for."""

    def __init__(self, number):
        self.cuda_stream = number
        self.waits_for = []

    def wait_stream(self, stream):
        self.waits_for.append(stream)


def test_a_step_has_one_stream_which_follows_those_that_its_gradients_come_from():
    one, two, three = (FakeStream(number) for number in (1, 2, 3))
    current, entered = [one], []
    step = StepStream(lambda: current[0], lambda stream: nullcontext(entered.append(stream)))
    step.begin()
    assert step.number == 1
    for current[0] in (one, two, one, three):
        with step.follow():
            pass
    assert one.waits_for == [two, three]
    assert entered == 4 * [one]
    step.hand_back()  # to the stream of the caller
    assert three.waits_for == [one]
    assert two.waits_for == []


def test_gradients_of_one_stream_wait_for_nothing():
    stream = FakeStream(1)
    step = StepStream(lambda: stream)
    for _ in range(2):
        step.begin()
        with step.follow():
            pass
        step.hand_back()
    assert stream.waits_for == []


def test_the_stream_of_a_step_waits_for_that_of_the_last_one():
    one, two = FakeStream(1), FakeStream(2)
    current = [one]
    step = StepStream(lambda: current[0])
    for current[0] in (one, one, two):
        step.begin()
    assert two.waits_for == [one]
    assert one.waits_for == []


def test_a_step_on_the_cpu_has_no_stream():
    step = StepStream.on(torch.device("cpu"))
    step.begin()
    with step.follow():
        pass
    step.hand_back()
    assert step.number == 0


def test_gradients_have_the_clock_of_their_device():
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    assert isinstance(place_of(torch.device("cpu"), exchange).clock, CpuClock)
    place = place_of(torch.device("cuda:0"), exchange)
    assert isinstance(place, OnDevice)
    assert isinstance(place.clock, DeviceClock)
    assert place.device == "cuda:0"


# ---- On a GPU -----------------------------------------------------------------------------------


@needs_gpu
def test_a_step_takes_what_the_device_takes_for_it():
    place = place_of(torch.device("cuda:0"), Exchange.over_loopback(_core.LoopbackWorld(1), 0))
    timed = StepClock([Layer("a", 1), Layer("b", 1)], place.clock)
    cycles = 50_000_000  # tens of milliseconds, by which the CPU runs ahead
    torch.cuda._sleep(20 * cycles)  # until the clock that counts them has its full rate
    torch.cuda.synchronize()
    timed.end_step()
    readings = []
    for _ in range(2):
        torch.cuda._sleep(cycles)
        with timed.arrival("b"):
            pass
        torch.cuda._sleep(2 * cycles)
        with timed.arrival("a"):
            torch.cuda._sleep(cycles)
        readings.append(timed.end_step())
    for read in readings:
        times = read()
        assert times.ready[0] == pytest.approx(2 * times.forward, rel=0.2)
        assert times.step == pytest.approx(4 * times.forward, rel=0.2)


@needs_gpu
def test_every_time_of_a_device_is_a_time():
    place = place_of(torch.device("cuda:0"), Exchange.over_loopback(_core.LoopbackWorld(1), 0))
    machine = measure_machine(laws.EVERY_SPARSIFIER["gaussian"], place)
    assert 1e-13 < machine.select_seconds_per_entry < 1e-6
    assert 0 < machine.select_overhead < 1e-2
    assert 1e-11 < machine.merge_seconds_per_entry < 1e-6
    assert 0 < machine.scatter_seconds_per_entry < 1e-6
    assert 1e-12 < machine.copy_seconds_per_entry < 1e-5
    assert 1e-12 < machine.take_seconds_per_entry < 1e-6
    assert 1e-12 < machine.pass_seconds_per_entry < 1e-6
    assert 1e-12 < machine.write_seconds_per_entry < 1e-6
