"""The devices of exchanges: kernels of both, and named errors for what a device lacks."""

from __future__ import annotations

import math
from types import SimpleNamespace

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from hvd_sparse import _core
from hvd_sparse.compression import Collective, Feedback, Layers
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.errors import (
    ExchangeFailedError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
)
from hvd_sparse.places import gpus
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.places.device_clock import DeviceClock
from hvd_sparse.places.step_clock import CpuClock
from hvd_sparse.ranks.world import World
from hvd_sparse.tensorflow import LAGS, Dense, ThreeLC, TopK, devices, ops
from hvd_sparse.tensorflow.blueprint import Blueprint, Template
from hvd_sparse.tensorflow.exchange_state import ExchangeState
from hvd_sparse.tensorflow.graph_state import GraphState
from hvd_sparse.tensorflow.places import OnDevice, place_of
from hvd_sparse.tensorflow.settings import Settings
from hvd_sparse.tensorflow.step_ops import StepOps
from hvd_sparse.tensorflow.step_reading import reading_of
from hvd_sparse.tuning.measure import measure_machine
from tests.parallel_tensorflow.ranks import integer_gradients, loss_of, make_variables, total

# Operands in the CPU's memory wherever an op runs. All others are gradients.
ON_THE_HOST = {
    "HvdSparseBegin": {"residual", "states", "factors", "velocity", "token", "check_finite"},
    "HvdSparseExchange": {"token", "is_dense"},
    "HvdSparseSummed": {"finite", "token"},
    "HvdSparseEnd": {"residual", "velocity", "states"},
    "HvdSparseAddress": {"address"},
    "HvdSparseStream": {"stream"},
    "HvdSparseOverwrite": set(),
}
GRADIENTS = {"gradients", "averages", "sums", "same", "memory", "into", "source"}


@pytest.fixture
def with_cuda(monkeypatch):
    """Pretends that the core can use GPUs."""
    monkeypatch.setattr(gpus, "problem_of_gpus", lambda: None)


@pytest.mark.parametrize("op", ON_THE_HOST)
def test_every_op_has_a_kernel_on_each_device(op):
    ops._library()
    registered = kernels.get_registered_kernels_for_op(op).kernel
    on_the_host = {one.device_type: set(one.host_memory_arg) for one in registered}
    assert on_the_host == {"CPU": set(), "GPU": ON_THE_HOST[op]}
    definition = op_def_registry.get(op)
    arguments = {one.name for one in (*definition.input_arg, *definition.output_arg)}
    assert arguments - ON_THE_HOST[op] <= GRADIENTS
    handles = {one.name for one in definition.input_arg if one.type == tf.resource}
    assert handles <= ON_THE_HOST[op]


def test_the_address_of_a_tensor_is_where_its_numbers_lie():
    tensor = tf.constant([1.0, 2.0, 4.0])
    address = ops.address(tensor, device="CPU:0")
    assert address == np.asarray(memoryview(tensor)).ctypes.data


def test_the_cpu_has_no_stream():
    assert ops.stream(device="CPU:0") == 0


def test_memory_of_a_place_keeps_its_address_and_is_nobody_elses():
    place = OnDevice("CPU:0", check=lambda: None)
    values = np.array([1, 2, 4], np.float32)
    source, into = place.put(values), place.put(values)
    before = place.buffer(into)
    assert before.address != place.buffer(source).address
    values[:] = 0
    place.copy(into, place.put(values))
    assert np.array_equal(into.tensor, [0, 0, 0])
    assert np.array_equal(source.tensor, [1, 2, 4])
    assert place.buffer(into) == before == Buffer(before.address, 3, "float32")
    assert ops.address(into.tensor, device="CPU:0") == before.address


def test_what_does_not_fit_is_not_copied():
    two, three = tf.constant([1.0, 2.0]), tf.constant([1.0, 2.0, 4.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="the same shape"):
        ops.overwrite(two, three, device="CPU:0")


def test_a_machine_is_measured_in_memory_of_tensorflow():
    machine = measure_machine(as_sparsifier("gaussian"), OnDevice("CPU:0", check=lambda: None))
    assert 1e-12 < machine.select_seconds_per_entry < 1e-6
    assert 1e-12 < machine.scatter_seconds_per_entry < 1e-6
    assert 0 < machine.exchange_overhead < 1e-2


def test_gradients_have_the_clock_of_their_device():
    exchange = SimpleNamespace(check=lambda: None)
    assert isinstance(place_of("CPU:0", exchange).clock, CpuClock)
    assert isinstance(OnDevice("CPU:0", exchange.check).clock, DeviceClock)


class SlowStep:
    """Marks of a step that pass at the third look."""

    def __init__(self):
        self.looks = 0

    @property
    def passed(self):
        self.looks += 1
        return self.looks >= 3

    def times(self):
        assert self.looks >= 3
        return 5.0, 2.0, [1.0, math.nan, 0.0]


def test_a_step_is_read_when_its_marks_have_passed_and_not_before():
    step = SlowStep()
    read = reading_of(step, 2, check=lambda: None)
    assert step.looks == 0
    times = read()
    assert (times.step, times.forward, times.ready[0]) == (5.0, 2.0, 1.0)
    assert len(times.ready) == 2


def test_who_waits_for_a_device_learns_that_the_exchange_has_ended():
    def check():
        raise ExchangeFailedError("rank 1 is gone")

    with pytest.raises(ExchangeFailedError, match="rank 1 is gone"):
        reading_of(SlowStep(), 2, check)()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("/job:localhost/replica:0/task:0/device:GPU:1", "GPU:1"),
        ("/job:localhost/replica:0/task:0/device:CPU:0", "CPU:0"),
        ("GPU:0", "GPU:0"),
        ("", "CPU:0"),
    ],
)
def test_devices_have_a_name_within_the_process(name, short):
    assert devices.short_name(name) == short


def test_variables_lie_on_one_device():
    places = [("a", "CPU:0"), ("b", "CPU:0")]
    assert devices.common_device([]) == devices.common_device(places) == "CPU:0"
    with pytest.raises(UnsupportedError, match="variable 'a' is on CPU:0 and 'c' on GPU:1"):
        devices.common_device([*places, ("c", "GPU:1")])


def test_the_cpu_is_named_alike_everywhere():
    blueprint = Blueprint.of(make_variables(), [False] * 4, Settings.checked(TopK))
    assert blueprint.device == devices.CPU
    assert devices.core_name(devices.CPU) == "cpu"
    devices.check_device(devices.CPU)
    devices.check_options(devices.CPU, LAGS(collective=Collective(nodes_first=True)))


def test_other_devices_are_refused():
    with pytest.raises(UnsupportedError, match=r"variables lie on TPU:0; .* on NVIDIA GPUs"):
        devices.check_device("TPU:0")


@pytest.mark.skipif(_core.with_cuda, reason="this build has CUDA")
def test_a_build_without_cuda_says_how_to_get_it():
    with pytest.raises(UnsupportedError, match=r"GPU:1, and this build .*HVD_SPARSE_WITH_CUDA=1"):
        devices.check_device("GPU:1")
    world, dense = _core.LoopbackWorld(1), _core.DrivenBucket.DENSE
    exchange = _core.Exchange.over_loopback(world, 0, select_on="caller", local_size=1)
    bucket = _core.DrivenBucket(dense, scale=1.0, output_scale=1.0, ks=[], ops=1)
    rules = _core.StepRules(device="cuda:1")
    with pytest.raises(UnavailableError, match=r"cuda:1 need it: .*HVD_SPARSE_WITH_CUDA=1"):
        _core.StepDriver(exchange, [(4, 1)], [bucket], None, None, None, rules)


def agree_on(compression, places, sliced=False):
    """Agrees on an exchange of two variables, as ranks do before they build it."""
    templates = [
        Template(name, (8, 8), "float32", place) for name, place in zip("ab", places, strict=True)
    ]
    blueprint = Blueprint(tuple(templates), (False, sliced), Settings.checked(compression))
    world = World.from_horovod(hvd, hvd.global_process_set)
    return blueprint.agreed(world, hvd.global_process_set.ranks, 0)


def test_what_is_done_on_the_cpu_alone_is_refused_on_all_ranks(with_cuda):
    with pytest.raises(UnsupportedError, match="nodes_first=True takes no gradients of GPU:0"):
        agree_on(LAGS(collective=Collective(nodes_first=True)), ["GPU:0", "GPU:0"])


def test_what_a_gpu_can_have_is_agreed_on(with_cuda):
    for adaptive in (True, False):
        compression = LAGS(
            adaptive=adaptive,
            feedback=Feedback(clip_norm=1.0, weight_decay=0.1, momentum=0.5, quality_every=3),
        )
        assert agree_on(compression, ["GPU:0", "GPU:0"]).device == "GPU:0"
    for compression in (Dense(values="int8"), ThreeLC()):
        assert agree_on(compression, ["GPU:0", "GPU:0"]).device == "GPU:0"


@pytest.mark.parametrize("device", ["GPU:0", "GPU:1"])
def test_a_step_is_asked_to_run_where_its_gradients_lie(device):
    graph = GraphState("placed")
    state = ExchangeState(graph, [], [Layer("bias", 7)], momentum=True, device=devices.CPU)
    step = StepOps(
        graph.number,
        state,
        members=[],
        with_velocity_only=[0],
        settings=Settings.checked(TopK(feedback=Feedback(momentum=0.5))),
        device=device,
        allreduce=lambda index, gradient: gradient,
    )

    @tf.function
    def reduce(gradient):
        return step.build([gradient], tf.ones(()))

    traced = reduce.get_concrete_function(tf.TensorSpec((7,), tf.float16))
    placed = {one.type: one.device for one in traced.graph.get_operations()}
    for kind in ("Begin", "Exchange", "Summed", "End"):
        assert placed[f"HvdSparse{kind}"].endswith(device)
    assert placed["Cast"].endswith(device)  # the velocity is float32
    assert placed["AssignVariableOp"].endswith(devices.CPU)  # of the sparsifiers' state


def test_several_devices_are_refused_unless_horovod_gathers(with_cuda):
    with pytest.raises(UnsupportedError, match="'a' is on GPU:0 and 'b' on GPU:1"):
        agree_on(TopK, ["GPU:0", "GPU:1"])
    assert agree_on(TopK, ["GPU:0", "CPU:0"], sliced=True).device == "GPU:0"


@pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")
def test_a_step_is_refused_where_the_core_is_told_that_a_dense_sum_is_not_finite(monkeypatch):
    host_checked = ops._host_checked
    monkeypatch.setattr(
        ops, "_host_checked", lambda sums, checks, _: host_checked(sums, checks, "GPU:0")
    )
    variables = make_variables()

    @tf.function
    def step(gradients):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, gradients)
        tape = hvd.DistributedGradientTape(
            tape, compression=TopK(layers=Layers(min_numel=64)), op=hvd.Sum
        )
        return tape.gradient(loss, variables)

    for number in range(3):
        gradients = integer_gradients(variables, number)
        if number != 1:
            bias = step(gradients)[1]
            assert np.array_equal(total(gradients[1]), bias)
            continue
        if hvd.rank() == 0:
            gradients[1] = tf.fill(gradients[1].shape, np.inf)
        with pytest.raises(tf.errors.InvalidArgumentError, match="sent dense is not finite"):
            step(gradients)


def test_ranks_need_not_lie_alike(with_cuda):
    place = f"GPU:{hvd.rank()}"
    for compression in (TopK, LAGS):
        assert agree_on(compression, [place, place]).device == place


@pytest.mark.skipif(hvd.size() == 1, reason="a single rank lies like itself")
def test_ranks_lie_alike_where_a_plan_is_made_for_all(with_cuda):
    place = "GPU:0" if hvd.rank() == 0 else "CPU:0"
    assert agree_on(TopK, [place, place]).device == place
    with pytest.raises(InvalidArgumentError, match="kind of device is CPU on rank 1 and GPU on ra"):
        agree_on(LAGS, [place, place])
