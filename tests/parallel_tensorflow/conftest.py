"""Tests of hvd_sparse.tensorflow that run on every rank at once."""

from __future__ import annotations

import gc

import pytest
import tensorflow as tf

from tests.framework_laws.fixtures import folder, several_ranks
from tests.parallel_tensorflow.tensorflow_framework import TensorFlow
from tests.parallel_tensorflow.turns import take_turns
from tests.quick_measuring import quick_measuring
from tests.rank_guard import Horovod, hooks
from tests.verdict import verdict

__all__ = ["folder", "quick_measuring", "several_ranks", "verdict"]

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)
GPUS = tf.config.list_physical_devices("GPU")
for gpu in GPUS:  # the ranks share them
    tf.config.experimental.set_memory_growth(gpu, True)

globals().update(hooks(Horovod("horovod.tensorflow")))


def pytest_itemcollected(item):
    """Marks combinations of laws as long that repeat what PyTorch shows."""
    take_turns(item)


@pytest.fixture
def device():
    """The device of a model's variables; see every_place.py for others."""
    return "CPU:0"


@pytest.fixture
def mode():
    """The mode in which a model's steps run; see every_place.py for the other one."""
    return "graph"


@pytest.fixture
def framework(device, mode):
    """TensorFlow, for the laws of tests/framework_laws."""
    return TensorFlow(device, mode)


@pytest.fixture(autouse=True)
def on_the_device_of_the_test(request):
    """Places tensors on the CPU unless a test requests a GPU; TensorFlow would prefer a GPU."""
    if not GPUS:
        yield
        return
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    with tf.device(parameters.get("device", "CPU:0")):
        yield


@pytest.fixture
def own_exchanges():
    """Hides exchanges of other tests: Keras may hold variables of another test's saved model."""
    from hvd_sparse.tensorflow.registry import live_exchanges

    gc.collect()
    others = live_exchanges()
    return lambda: [one for one in live_exchanges() if one not in others]


@pytest.fixture
def an_elastic_job(monkeypatch):
    """Pretends that a launcher started an elastic job, without exchanges of other tests."""
    from hvd_sparse.tensorflow import registry

    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    monkeypatch.setattr(registry, "_renewals", {})
    monkeypatch.setattr(registry, "_awaited", [])
    yield
    registry.set_policy("spread")
    for renewal in registry.renewals():
        renewal.close()
