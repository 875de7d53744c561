"""Gradients that are IndexedSlices: Horovod gathers the rows of each rank."""

from __future__ import annotations

from dataclasses import replace

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression import Collective, Feedback, Layers, Warmup
from hvd_sparse.compression.sparsifiers import HardThreshold
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.ranks import messages
from hvd_sparse.tensorflow import LAGS, GaussianK, GTopK, TopK, prepare
from hvd_sparse.tensorflow.blueprint import Blueprint, BlueprintRecord, Template
from hvd_sparse.tensorflow.registry import find_exchange
from hvd_sparse.tensorflow.settings import Settings
from tests.parallel_tensorflow.ranks import make_variables, on_each_device

SHAPES = {"table": (20, 8), "weight": (16, 8)}
COMPRESSION = TopK(density=1.0, layers=Layers(min_numel=1))

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")


def step(variables, rows, **options):
    """Returns averages of gradients of ones; the table's are in these rows, "all" or None."""
    table, weight = variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight)
        if rows is not None:
            loss += tf.reduce_sum(table if isinstance(rows, str) else tf.gather(table, rows))
    options = {"compression": COMPRESSION, "op": hvd.Sum, **options}
    return hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)


def total(rows_of):
    """Returns the sum over the ranks of the table's gradients, given each rank's rows."""
    expected = np.zeros(SHAPES["table"], np.float32)
    for rows in map(rows_of, range(hvd.size())):
        if rows is not None:
            np.add.at(expected, slice(None) if isinstance(rows, str) else rows, 1)
    return expected


def assert_gathered(sliced, rows_of):
    """Checks that the rows of all ranks are there in order, each with its share of the average."""
    rows = np.concatenate([rows_of(rank) for rank in range(hvd.size())])
    assert np.array_equal(sliced.indices, rows)
    wide = tf.float32 if sliced.dtype == tf.bfloat16 else sliced.dtype
    part = tf.cast(tf.ones((), wide) / tf.cast(hvd.size(), wide), sliced.dtype)
    assert np.all(sliced.values == part)


@on_each_device
@pytest.mark.parametrize("as_dense", [False, True])
def test_slices_are_gathered_or_made_dense(as_dense, device):
    variables = make_variables(SHAPES, device=device)
    traced = tf.function(lambda rows: step(variables, rows, sparse_as_dense=as_dense))
    sliced, whole = traced(tf.constant([hvd.rank(), hvd.rank(), 19]))
    assert isinstance(sliced, tf.IndexedSlices) != as_dense
    assert np.array_equal(tf.convert_to_tensor(sliced), total(lambda rank: [rank, rank, 19]))
    assert np.array_equal(whole, np.full(SHAPES["weight"], hvd.size()))


@on_each_device
@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.bfloat16], ids=lambda one: one.name)
def test_slices_of_any_number_type_are_averaged(dtype, device):
    variables = make_variables(SHAPES, dtype=dtype, device=device)
    sliced, _ = step(variables, [hvd.rank(), 19], op=hvd.Average)
    assert sliced.dtype == dtype
    assert_gathered(sliced, lambda rank: [rank, 19])


@pytest.mark.usefixtures("an_elastic_job")
def test_slices_are_averaged_over_the_ranks_of_an_elastic_job():
    variables = make_variables(SHAPES)
    for _ in range(2):
        sliced, _ = step(variables, [0], op=hvd.Average)
        assert_gathered(sliced, lambda rank: [0])


def test_a_rank_that_joins_may_lack_a_gradient_of_slices():
    templates = tuple(Template(name, shape, "float32", "CPU:0") for name, shape in SHAPES.items())
    settings = Settings.checked(COMPRESSION)
    told = Blueprint(templates, (True, False), settings)
    assert told.is_for(Blueprint(templates, (True, None), settings))
    assert told.is_for(Blueprint(templates, (None, False), settings))
    assert not told.is_for(Blueprint(templates, (False, False), settings))


@pytest.mark.parametrize(
    "compression",
    [
        LAGS(warmup=Warmup(steps=3), feedback=Feedback(quality_every=5)),
        GTopK(
            collective=Collective(name="gtopk", slack=2),
            feedback=Feedback(clip_norm=1.0, momentum=0.5),
        ),
        GaussianK(sparsifier=HardThreshold(threshold=1e-3), wire="float16"),
    ],
)
def test_a_rank_that_joins_makes_the_exchange_that_it_is_told_of(compression):
    settings = Settings.checked(compression, op=hvd.Sum, sparse_as_dense=True)
    settings = replace(settings, follows_rate=True, marks_non_finite=True, dampening=0.25)
    templates = (Template("table", (20, None), "bfloat16", "GPU:0"), Template("b", (), "half", ""))
    told = Blueprint(templates, (True, None), settings, serial=7)
    sent = messages.encode([told.record])
    (record,) = messages.decode(sent, list[BlueprintRecord])
    assert Blueprint.of_record(record) == told
    assert repr(Blueprint.of_record(record)) == repr(told)


USERS = {
    "all": lambda rank: [rank, 19],
    "all but the first": lambda rank: None if rank == 0 else [rank, 19],
    "none": lambda rank: None,
    "the first": lambda rank: [3] if rank == 0 else None,
    "the first whole": lambda rank: "all" if rank == 0 else [rank],
}


@on_each_device
@pytest.mark.parametrize("first", ["all", "the first", "all but the first"])
def test_a_rank_may_lack_a_gradient_of_slices_or_have_a_whole_one(first, device):
    variables = make_variables(SHAPES, device=device)
    for users in (first, *USERS):
        sliced, whole = step(variables, USERS[users](hvd.rank()))
        assert isinstance(sliced, tf.IndexedSlices), users
        assert np.array_equal(tf.convert_to_tensor(sliced), total(USERS[users])), users
        assert np.array_equal(whole, np.full(SHAPES["weight"], hvd.size())), users


def test_another_number_of_rows_needs_no_new_graph():
    variables = make_variables(SHAPES)
    for rows in range(1, 8):
        step(variables, list(range(rows)))
    assert find_exchange(variables)._eager.experimental_get_tracing_count() <= 2


def test_what_no_rank_had_a_gradient_of_at_first_counts_as_a_tensor():
    variables = make_variables(SHAPES)
    table, _ = step(variables, None)
    assert np.array_equal(table, np.zeros(SHAPES["table"]))
    with pytest.raises(UnsupportedError, match=r"'table' counts as a tensor.*prepare\(.*sliced="):
        step(variables, [0])
    table, _ = step(variables, "all")
    assert np.array_equal(table, total(lambda rank: "all"))


def test_slices_that_were_prepared_may_lack_in_the_first_step():
    variables = make_variables(SHAPES)
    prepare(variables, COMPRESSION, op=hvd.Sum, sliced=variables[:1])
    for users in ("none", "all"):
        sliced, _ = step(variables, USERS[users](hvd.rank()))
        assert np.array_equal(tf.convert_to_tensor(sliced), total(USERS[users]))
