"""Exchanges of elastic jobs whose ranks stay: they end, and are rebuilt.

Ranks really join and leave in tests/jobs/test_elastic.py.
"""

from __future__ import annotations

import sys

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.errors import ExchangeFailedError, InvalidArgumentError, UnsupportedError
from hvd_sparse.tensorflow import (
    LAGS,
    Exchange,
    GTopK,
    TopK,
    prepare,
    registry,
    saved_state,
    sparse_allreduce,
)
from hvd_sparse.tensorflow.elastic_errors import with_horovod_errors
from hvd_sparse.tensorflow.registry import find_exchange
from tests.parallel_tensorflow.ranks import (
    SHAPES,
    a_name,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    integer_gradients,
    loss_of,
    make_variables,
    same,
    total,
)

COMPRESSIONS = {
    "fixed": TopK(density=0.05, layers=Layers(min_numel=64)),
    "adaptive": LAGS(density=0.05, layers=Layers(min_numel=64)),
}
FIXED = COMPRESSIONS["fixed"]
together = pytest.mark.skipif(hvd.size() == 1, reason="needs another rank")
by_itself = pytest.mark.skipif(hvd.size() > 1, reason="of a rank that is alone")
pytestmark = pytest.mark.usefixtures("an_elastic_job")


class Job:
    """Variables, a function over their gradients that is traced once, and an elastic state."""

    def __init__(self, compression=FIXED, *, sync=True, **options):
        self.variables = make_variables()
        self.traced = 0

        @tf.function
        def step(gradients):
            self.traced += 1
            with tf.GradientTape() as tape:
                loss = loss_of(self.variables, gradients)
            tape = hvd.DistributedGradientTape(
                tape, compression=compression, **{"op": hvd.Sum, **options}
            )
            return tape.gradient(loss, self.variables)

        self._step = step
        self.state = hvd.elastic.TensorFlowState(self.variables, steps=0)
        if sync:
            self.state.sync()

    def step(self, number):
        """Returns averages of gradients that the laws know."""
        return self._step(integer_gradients(self.variables, number))

    def residuals(self):
        """Returns residuals by layer, even if the exchange has ended or is new to this rank."""
        for renewal in registry.renewals():
            exchange = renewal.exchange
            held = renewal.held if exchange is None else saved_state.save(exchange)
            return {} if held is None else held["residuals"]
        return {}

    def check_law(self, number):
        before = self.residuals()
        averages = self.step(number)
        gradients = integer_gradients(self.variables, number)
        assert_nothing_is_lost(SHAPES, gradients, averages, before, self.residuals())
        assert_same_on_all_ranks(averages)


def end_all():
    """Ends all exchanges, like hvd.shutdown."""
    for renewal in registry.renewals():
        renewal.close()


@together
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_traced_function_goes_on_with_the_exchange_that_follows(compression):
    job = Job(COMPRESSIONS[compression])
    for number in range(3):
        job.check_law(number)
    former, before, traced = find_exchange(job.variables), job.residuals(), job.traced
    end_all()
    with pytest.raises(tf.errors.FailedPreconditionError, match="is closed"):
        job.step(3)
    job.state.sync()
    assert find_exchange(job.variables) is not former
    assert same(job.residuals(), before)
    assert find_exchange(job.variables).steps == 3
    assert Exchange(job.variables).stats.total.steps == 3
    for number in range(3, 6):
        job.check_law(number)
    assert job.traced == traced


@together
@pytest.mark.parametrize(
    "options", [{}, {"layers": Layers(min_numel=10_000)}], ids=["sparse", "dense"]
)
def test_velocities_and_clipping_go_on_with_the_exchange_that_follows(options):
    compression = TopK(
        **{"density": 0.05, "layers": Layers(min_numel=64), **options},
        feedback=Feedback(momentum=0.5, clip_norm=8.0, weight_decay=0.25),
    )
    interrupted, whole = Job(compression), Job(compression)
    for number in range(6):
        averages = interrupted.step(number)
        for one, other in zip(averages, whole.step(number), strict=True):
            assert np.array_equal(one, other)
        if number == 2:
            exchange = find_exchange(interrupted.variables)
            (renewal,) = [one for one in registry.renewals() if one.exchange is exchange]
            renewal.close()
            interrupted.state.sync()
    assert any(np.any(one) for one in find_exchange(interrupted.variables).velocities().values())


@together
def test_in_eager_mode_the_next_gradients_build_it():
    variables = make_variables()

    def step(number):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, integer_gradients(variables, number))
        tape = hvd.DistributedGradientTape(tape, compression=FIXED, op=hvd.Sum)
        return tape.gradient(loss, variables)

    step(0)
    before = saved_state.save(find_exchange(variables))["residuals"]
    end_all()
    assert find_exchange(variables) is None
    averages = step(1)
    after = saved_state.save(find_exchange(variables))["residuals"]
    assert_nothing_is_lost(SHAPES, integer_gradients(variables, 1), averages, before, after)


@together
def test_restoring_takes_up_the_sums_of_the_last_commit():
    job = Job()
    job.step(0)
    job.state.steps = 1
    job.state.commit()
    before, steps = job.residuals(), find_exchange(job.variables).steps
    job.step(1)
    job.state.steps = 2
    assert not same(job.residuals(), before)
    job.state.restore()
    job.state.sync()
    assert same(job.residuals(), before)
    assert (job.state.steps, find_exchange(job.variables).steps) == (1, steps)
    job.check_law(2)


@together
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("policy", ["spread", "reset"])
def test_a_rank_that_joins_finds_the_exchange_of_the_others(policy, compression):
    """The last rank leaves in order, and rejoins without any state."""
    job = Job(COMPRESSIONS[compression])
    Exchange(job.variables).elastic_residuals = policy
    for number in range(3):
        job.step(number)
    owed = {name: total(part) for name, part in job.residuals().items()}
    registry.pool_all()
    end_all()
    if hvd.rank() == hvd.size() - 1:
        registry._renewals.clear()
        job = Job(COMPRESSIONS[compression], sync=False)
    job.state.sync()
    found = {name: total(part) for name, part in job.residuals().items()}
    if policy == "reset":
        owed = {name: np.zeros_like(part) for name, part in owed.items()}
    assert same(found, owed)
    for number in range(3, 6):
        job.check_law(number)
    assert find_exchange(job.variables).steps == 6
    assert not registry._awaited


@together
def test_a_rank_that_joins_with_other_options_is_told_so():
    job = Job()
    job.step(0)
    end_all()
    if hvd.rank() == hvd.size() - 1:
        registry._renewals.clear()
    job.state.sync()
    if hvd.rank() == hvd.size() - 1:
        other = make_variables()
        with tf.GradientTape() as tape:
            loss = loss_of(other, integer_gradients(other, 1))
        tape = hvd.DistributedGradientTape(tape, compression=GTopK, op=hvd.Sum)
        with pytest.raises(InvalidArgumentError, match=r"compression is GTopK.*on this rank"):
            tape.gradient(loss, other)
    hvd.allreduce(tf.zeros(1), name=a_name())


@by_itself
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    "options", [{"op": hvd.Average}, {"gradient_predivide_factor": 4.0, "op": hvd.Average}, {}]
)
def test_gradients_of_a_rank_that_is_alone_stay_what_they_are(compression, options):
    job = Job(COMPRESSIONS[compression], **options)
    for number in range(3):
        for ours, gradient in zip(
            job.step(number), integer_gradients(job.variables, number), strict=True
        ):
            assert np.array_equal(ours, gradient)
    assert Exchange(job.variables).stats.last is None
    assert Exchange(job.variables).tuning is None
    traced = job.traced
    end_all()
    job.state.sync()
    assert np.array_equal(job.step(3)[0], integer_gradients(job.variables, 3)[0])
    assert job.traced == traced


@by_itself
def test_a_rank_that_is_alone_keeps_what_it_held():
    job = Job()
    job.step(0)
    (renewal,) = registry.renewals()
    held = {"rank": 0, "size": 2, "step": 7, "residuals": {"first": np.ones(1200, np.float32)}}
    renewal.close()
    renewal.hold(held)
    job.state.sync()
    job.step(1)
    job.state.commit()
    job.state.restore()
    assert renewal.held is held
    assert np.array_equal(renewal.held["residuals"]["first"], np.ones(1200))


@together
def test_what_has_ended_an_exchange_is_an_error_after_which_training_begins_again():
    job = Job()
    job.step(0)
    last = hvd.rank() == hvd.size() - 1

    @hvd.elastic.run
    def train(state):
        del state
        if last:
            find_exchange(job.variables).fail("enough of it")
        job.step(1)

    caught = []
    restore = job.state.restore

    def restore_and_stop():
        caught.append(sys.exc_info()[1])
        restore()
        raise KeyboardInterrupt

    job.state.restore = restore_and_stop
    with pytest.raises(KeyboardInterrupt):
        train(job.state)
    (error,) = caught
    assert isinstance(error, ExchangeFailedError), error
    assert isinstance(error, HorovodInternalError)
    assert f"rank {hvd.size() - 1} ended the exchange: enough of it" in str(error)
    assert isinstance(error.__cause__, tf.errors.AbortedError)
    hvd.allreduce(tf.zeros(1), name=a_name())


def test_errors_of_the_script_end_it():
    job = Job()

    @hvd.elastic.run
    def train(state):
        del state
        tf.debugging.check_numerics(tf.constant(np.nan), "a mistake")

    with pytest.raises(tf.errors.InvalidArgumentError, match="a mistake"):
        train(job.state)


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (
            "[gloo/transport/tcp/pair.cc:598] Connection closed\n [[node loss]]",
            HorovodInternalError,
        ),
        ("Horovod has been shut down.\n\t [[{{node loss}}]]", HorovodInternalError),
        ("ValueError: of a py_function", RuntimeError),
    ],
)
def test_horovods_errors_are_known_whatever_its_operations_are_called(told, kind):
    @with_horovod_errors
    def train():
        raise tf.errors.UnknownError(None, None, told)

    with pytest.raises(kind) as caught:
        train()
    assert type(caught.value) is kind
    assert str(caught.value) == told


def test_our_errors_keep_their_type_while_a_function_is_traced():
    @tf.function
    def traced(value):
        raise ExchangeFailedError("a rank has gone")

    with pytest.raises(ExchangeFailedError, match="a rank has gone"):
        traced(tf.constant(1.0))


@together
def test_a_state_of_variables_waits_for_nobody_before_it_is_synchronised():
    variable = tf.Variable(tf.fill((3,), float(hvd.rank() + 1)))
    if hvd.rank() == 0:
        state = hvd.elastic.TensorFlowState([variable], steps=5)
    hvd.allreduce(tf.zeros(1), name=a_name())
    if hvd.rank() != 0:
        state = hvd.elastic.TensorFlowState([variable], steps=0)
    state.sync()
    assert np.array_equal(variable, np.ones(3))
    assert state.steps == 5


def test_what_a_reset_would_lose_is_refused_by_name():
    variables = make_variables()
    with pytest.raises(InvalidArgumentError, match="spread, reset, got 'own'"):
        Exchange(variables).elastic_residuals = "own"
    with pytest.raises(UnsupportedError, match=r"prepare\(\) is not for elastic jobs"):
        prepare(variables, FIXED)
    some = hvd.ProcessSet([0])
    with pytest.raises(UnsupportedError, match="process_set must be that of all ranks"):
        hvd.DistributedGradientTape(tf.GradientTape(), compression=FIXED, process_set=some)
    residual = tf.Variable(tf.zeros(9))
    summed = tf.function(lambda tensor: sparse_allreduce(tensor, residual))
    with pytest.raises(UnsupportedError, match=r"part of a tf\.function in an elastic job"):
        summed(tf.ones(9))
    assert hvd.DistributedGradientTape(tf.GradientTape()) is not None
