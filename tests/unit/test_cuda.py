"""Gradients on a GPU: the same bits as on the CPU, or a clear refusal."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import horovod.torch.mpi_ops as hvd_ops
import numpy as np
import pytest
import torch

from hvd_sparse import _core
from hvd_sparse.buckets import Layer
from hvd_sparse.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.device_clock import DeviceClock
from hvd_sparse.places.step_clock import CpuClock, StepClock
from hvd_sparse.torch import LAGS, TopK
from hvd_sparse.torch.devices import Arrivals, check_device, common_device, current_stream
from hvd_sparse.torch.places import OnDevice, place_of
from hvd_sparse.torch.settings import check_devices, check_horovod
from hvd_sparse.torch.slots import buffer_of
from hvd_sparse.tuning.measure import measure_machine
from tests import laws
from tests.gpus import needs_gpu

ON_THE_CPU = [c for c in _core.collectives() if c != "hierarchical"]


def add_bucket(exchange, device, *, sparsifier="top_k", collective="allgather", segments=(100,)):
    return exchange.add_bucket(
        "a bucket",
        numels=[sum(segments)],
        segments=list(segments),
        capacity_ks=[max(1, n // 10) for n in segments],
        sparsifier=laws.EVERY_SPARSIFIER[sparsifier],
        collective=collective,
        device=device,
    )


# ---- Refusals: without a GPU --------------------------------------------------------------------


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:9999", ""])
def test_a_device_of_no_known_name_is_refused(device):
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    with pytest.raises(InvalidArgumentError, match="device must be 'cpu', or 'cuda:' and a number"):
        add_bucket(exchange, device)


def test_a_device_that_is_not_there_is_refused():
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    with pytest.raises(UnavailableError, match=r"CUDA|cuda:99"):
        add_bucket(exchange, "cuda:99")


def test_hierarchical_takes_no_gradients_of_a_device():
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    with pytest.raises(InvalidArgumentError, match="'hierarchical' adds up residuals on the CPU"):
        add_bucket(exchange, "cuda:0", collective="hierarchical")


@pytest.mark.skipif(_core.with_cuda, reason="this build has CUDA")
def test_a_build_without_cuda_says_how_to_get_it():
    with pytest.raises(UnavailableError, match="no CUDA"):
        _core.cuda_devices()
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    with pytest.raises(UnavailableError, match="HVD_SPARSE_WITH_CUDA=1"):
        add_bucket(exchange, "cuda:0")


@pytest.mark.skipif(_core.with_cuda, reason="this build has CUDA")
def test_work_for_a_stream_is_refused_without_cuda():
    block, memory = _core.Block([1], [1.0]), buffer_of(torch.zeros(10))
    for give in (
        lambda: _core.merge_work(block, block, k=1, device="cuda:0"),
        lambda: _core.pass_work(memory, memory, threshold=1.0, k=1, device="cuda:0"),
        lambda: _core.select_work(memory, memory, k=1, device="cuda:0"),
        lambda: _core.step_work([memory], memory, [memory], ks=[1], device="cuda:0"),
    ):
        with pytest.raises(UnavailableError, match=r"cuda:0 needs it: .* HVD_SPARSE_WITH_CUDA=1"):
            give()


def test_the_cpu_has_no_work_for_streams():
    block = _core.Block([1], [1.0])
    with pytest.raises(InvalidArgumentError, match=r"needs a device cuda:0 or the like, got cpu"):
        _core.merge_work(block, block, k=1, device="cpu")


def test_tensors_on_no_gpu_and_not_on_the_cpu_are_refused_by_name():
    check_device("tensor 'a'", torch.zeros(1))
    with pytest.raises(UnsupportedError, match="tensor 'a' is on device 'meta'"):
        check_device("tensor 'a'", torch.zeros(1, device="meta"))


def test_parameters_lie_on_one_device():
    on_cpu, elsewhere = ("a", torch.zeros(1)), ("b", torch.zeros(1, device="meta"))
    assert common_device([]) == common_device([on_cpu, on_cpu]) == torch.device("cpu")
    with pytest.raises(UnsupportedError, match="'a' is on device 'cpu' and 'b' on 'meta'"):
        common_device([on_cpu, elsewhere])


def test_hierarchical_is_refused_on_a_device_before_anything_is_planned():
    elsewhere = [("b", torch.zeros(1, device="meta"))]
    check_devices([("a", torch.zeros(1))], LAGS(collective="hierarchical"))
    check_devices(elsewhere, LAGS())
    with pytest.raises(UnsupportedError, match=r"'hierarchical' takes no gradients of device 'me"):
        check_devices(elsewhere, LAGS(collective="hierarchical"))


def test_a_horovod_without_gpus_is_named_where_gradients_travel_dense(monkeypatch):
    large = [("w", torch.zeros(8, 8, device="meta"))]
    small = [*large, ("b", torch.zeros(8, device="meta"))]
    fixed = TopK(min_numel=64)
    check_horovod([("a", torch.zeros(1))], LAGS())
    check_horovod(large, fixed)
    with pytest.raises(UnsupportedError, match=r"'b' on device 'meta' \(it is small\).*NCCL"):
        check_horovod(small, fixed)
    with pytest.raises(UnsupportedError, match=r"'w' on device 'meta' \(LAGS measures dense"):
        check_horovod(large, LAGS(min_numel=64))
    function = "horovod_torch_allreduce_async_torch_meta_FloatTensor"
    monkeypatch.setattr(hvd_ops.mpi_lib, function, None, raising=False)
    check_horovod(small, LAGS())


def test_the_cpu_has_no_stream():
    assert current_stream(torch.device("cpu")) == 0


class FakeStream:
    """Remembers for whom it waits."""

    def __init__(self):
        self.waits_for = []

    def wait_stream(self, stream):
        self.waits_for.append(stream)


def test_gradients_leave_behind_all_streams_that_they_came_from():
    one, two, three = (FakeStream() for _ in range(3))
    current = [one, two, one, three]
    arrivals = Arrivals(lambda: current[0])
    for _ in range(3):
        arrivals.note()
        current.pop(0)
    assert current == [three]
    arrivals.join()
    assert three.waits_for == [one, two]
    arrivals.join()  # of the next step, in which none has come
    assert three.waits_for == [one, two]
    assert one.waits_for == two.waits_for == []


def test_gradients_of_one_stream_wait_for_nothing():
    stream = FakeStream()
    arrivals = Arrivals(lambda: stream)
    for _ in range(2):
        arrivals.note()
    arrivals.join()
    assert stream.waits_for == []


def test_gradients_have_the_clock_of_their_device():
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    assert isinstance(place_of(torch.device("cpu"), exchange).clock, CpuClock)
    place = place_of(torch.device("cuda:0"), exchange)
    assert isinstance(place, OnDevice)
    assert isinstance(place.clock, DeviceClock)
    assert place.device == "cuda:0"


# ---- On a GPU -----------------------------------------------------------------------------------


def run_steps(world, rank, device, sparsifier, collective, dtype):
    """What is applied, and what stays, in some steps of one rank."""
    exchange = Exchange.over_loopback(world, rank)
    segments = (1000, 1, 3333)
    bucket = add_bucket(
        exchange, device, sparsifier=sparsifier, collective=collective, segments=segments
    )
    numel = sum(segments)
    residual = torch.zeros(numel, device=device)
    states = torch.zeros(len(segments), 4)
    seen = []
    for step in range(4):
        gradient = torch.from_numpy(laws.integer_gradient(numel, rank=rank, step=step))
        gradient = gradient.to(device=device, dtype=dtype)
        stream = current_stream(gradient.device)
        handle = exchange.start(
            bucket,
            [buffer_of(gradient)],
            residual=buffer_of(residual),
            states=buffer_of(states),
            ks=[max(1, n // 10) for n in segments],
            decays=[1.0],
            stream=stream,
        )
        exchange.wait(handle, stream=stream)
        exchange.commit()
        seen += [gradient.float().cpu().numpy(), residual.cpu().numpy(), states.numpy().copy()]
    exchange.close()
    return seen


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("collective", ON_THE_CPU)
@pytest.mark.parametrize("sparsifier", _core.sparsifiers())
def test_steps_have_the_bits_of_the_cpu(sparsifier, collective, dtype):
    seen = {}
    for device in ("cpu", "cuda:0"):
        world = _core.LoopbackWorld(3)

        def run(rank, world=world, device=device):
            return run_steps(world, rank, device, sparsifier, collective, dtype)

        with ThreadPoolExecutor(3) as threads:
            seen[device] = list(threads.map(run, range(3)))
    for of_cpu, of_gpu in zip(seen["cpu"], seen["cuda:0"], strict=True):
        for a, b in zip(of_cpu, of_gpu, strict=True):
            np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))


@needs_gpu
def test_work_for_a_stream_has_the_bits_of_the_cpu():
    generator = np.random.default_rng(1)
    numel, k = 50_000, 300
    blocks = []
    for _ in range(2):
        indices = np.sort(generator.choice(numel, k, replace=False)).astype(np.int32)
        blocks.append(_core.Block(indices, generator.normal(size=k).astype(np.float32)))
    expected = _core.Block([], [])
    _core.merge(*blocks, expected)
    _core.keep_top_k(expected, k)
    stream = current_stream(torch.device("cuda:0"))
    merging = _core.merge_work(*blocks, k=k, device="cuda:0")
    merging.give(stream)
    assert np.array_equal(merging.fetch().indices(), expected.indices())
    assert np.array_equal(merging.fetch().values(), expected.values())

    gradient = torch.from_numpy(generator.normal(size=numel).astype(np.float32))
    residual = torch.zeros(numel, device="cuda:0")
    on_gpu = gradient.to("cuda:0")
    memory = buffer_of(on_gpu), buffer_of(residual)
    selecting = _core.select_work(*memory, k=k, device="cuda:0")
    selecting.give(stream)
    block = selecting.fetch()
    places = np.sort(np.argsort(-gradient.abs().numpy(), kind="stable")[:k])
    assert np.array_equal(block.indices() & 0x7FFFFFFF, places)
    assert np.array_equal(block.values(), gradient.numpy()[places])
    gradient[torch.from_numpy(places)] = 0
    assert torch.equal(residual.cpu(), gradient)


@needs_gpu
def test_a_step_takes_what_the_device_takes_for_it():
    place = place_of(torch.device("cuda:0"), Exchange.over_loopback(_core.LoopbackWorld(1), 0))
    timed = StepClock([Layer("a", 1), Layer("b", 1)], place.clock)
    timed.end_step()
    cycles = 50_000_000  # tens of milliseconds, of which the CPU runs ahead
    torch.cuda._sleep(20 * cycles)  # until the clock that counts them has its full rate
    torch.cuda.synchronize()
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
