"""Keras 3: a momentum that an optimizer has already goes on when it becomes a distributed one."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse.tensorflow as hvd_tf
import hvd_sparse.tensorflow.keras as hvd
from hvd_sparse.compression import Layers
from hvd_sparse.tensorflow import TopK, prepare
from tests.parallel_tensorflow.own_momentum import M, make_variables, several_ranks, summed
from tests.parallel_tensorflow.ranks import integer_gradients

ALL = TopK(density=1.0, layers=Layers(min_numel=64))
BEFORE = 20  # steps; then what Adam divides its momentum by is nearly 1
KINDS = {
    "Adam": lambda: keras.optimizers.Adam(0.125, beta_1=M),
    "Nadam": lambda: keras.optimizers.Nadam(0.125, beta_1=M),
    "Adamax": lambda: keras.optimizers.Adamax(0.125, beta_1=M),
    "SGD": lambda: keras.optimizers.SGD(0.125, momentum=M),
}
ORDERS = {
    "Adam": ["load, wrap", "wrap, load", "prepare, load", "rank 0 loads, broadcast"],
    "SGD": ["load, wrap", "rank 0 loads, broadcast after a step", "sum"],
    "Nadam": ["wrap, load"],
    "Adamax": ["load, wrap"],
}


def average(variables, step):
    gradients = integer_gradients([one.value for one in variables], step)
    return [tf.constant(one / hvd.size(), tf.float32) for one in summed(gradients)]


def trained(kind, steps):
    """Returns variables and a stock optimizer that all ranks have trained alike."""
    variables, optimizer = make_variables(), KINDS[kind]()
    for step in range(steps):
        optimizer.apply(average(variables, step), variables)
    return variables, optimizer


def copied(variables, optimizer, twins, twin):
    twin.build(twins)
    pairs = zip([*variables, *optimizer.variables], [*twins, *twin.variables], strict=True)
    for theirs, ours in pairs:
        ours.assign(theirs.value)


def momenta_of(optimizer):
    return [one for one in optimizer.variables if one.path.endswith("_momentum")]


def broadcast(variables, optimizer):
    hvd_tf.broadcast_variables([*variables, *optimizer.variables], root_rank=0)


@several_ranks
@pytest.mark.parametrize(("kind", "order"), [(k, one) for k in ORDERS for one in ORDERS[k]])
def test_the_next_step_is_that_of_the_stock_optimizer(kind, order):
    variables, stock = trained(kind, BEFORE)
    twins, twin = make_variables(), KINDS[kind]()
    op = hvd.Sum if order == "sum" else hvd.Average

    def load():
        copied(variables, stock, twins, twin)

    def step(number):
        gradients = integer_gradients([one.value for one in twins], number)
        twin.apply([one / (hvd.size() if op == hvd.Sum else 1) for one in gradients], twins)

    if order in ("load, wrap", "sum"):
        load()
    hvd.DistributedOptimizer(twin, compression=ALL, op=op)
    twin.build(twins)
    if order == "prepare, load":
        prepare(twins, ALL, optimizer=twin)
    if order in ("wrap, load", "prepare, load") or ("rank 0" in order and hvd.rank() == 0):
        load()
    if order == "rank 0 loads, broadcast":
        broadcast(twins, twin)
    before = [one.numpy() for one in variables]
    stock.apply(average(variables, BEFORE), variables)
    step(BEFORE)
    if order == "rank 0 loads, broadcast after a step":  # as Horovod's callback does it
        broadcast(twins, twin)
    pairs = list(zip(variables, twins, strict=True))
    assert all(np.any(one.numpy() != start) for start, (_, one) in zip(before, pairs, strict=True))
    if kind != "SGD":  # the second moment is that of what was delivered
        pairs = zip(momenta_of(stock), momenta_of(twin), strict=True)
    for expected, found in pairs:
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)
