"""The simulated step: worked by hand, and bounds on any step."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.pipeline import Stage, simulate, simulate_dense
from hvd_sparse.planning.profile import Link, Network
from tests.profiles import profile_of

# Forward takes 1 second, then gradients come after 1, 2 and 4 more seconds.
MODEL = profile_of([10, 20, 40], [1.0, 2.0, 4.0], forward=1.0)
DENSE = Network(size=2, links=((1, Link(alpha=0, beta=0)),), dense=Link(alpha=1.0, beta=0.1))


def stages(*triples):
    return [Stage(layers=n, select=select, exchange=exchange) for n, select, exchange in triples]


def seen(step):
    return [(b.ready, b.selected, b.start, b.end) for b in step.buckets]


def test_selection_on_the_thread_of_backward_delays_it():
    found = simulate(MODEL, stages((1, 0.5, 4.0), (1, 0.5, 1.0), (1, 0.5, 1.0)))
    assert seen(found) == [(2.0, 2.5, 2.5, 6.5), (4.5, 5.0, 6.5, 7.5), (9.0, 9.5, 9.5, 10.5)]
    assert found.step == 10.5
    assert found.exposed == 1.0
    assert found.hidden == 5.0


def test_selection_beside_backward_does_not_delay_it():
    found = simulate(MODEL, stages((1, 0.5, 4.0), (1, 3.0, 1.0), (1, 0.5, 1.0)), select_on="engine")
    assert seen(found) == [(2.0, 2.5, 2.5, 6.5), (4.0, 7.0, 7.0, 8.0), (8.0, 8.5, 8.5, 9.5)]
    assert found.step == 9.5


def test_a_bucket_is_ready_with_its_last_layer():
    found = simulate(MODEL, stages((2, 0.0, 1.0), (1, 0.0, 1.0)))
    assert [bucket.ready for bucket in found.buckets] == [4.0, 8.0]
    assert found.step == 9.0


def test_dense_gradients_that_wait_for_the_network_go_together():
    model = profile_of([10, 20, 40, 5], [1.0, 2.0, 1.0, 1.0], forward=0.0, network=DENSE)
    found = simulate_dense(model)
    # 40 bytes take 5 seconds; layers 1 to 3 are ready when the network is free again.
    assert [(b.layers, b.start, b.end) for b in found.buckets] == [(1, 1, 6), (3, 6, 6 + 27)]
    small = simulate_dense(model, fusion_bytes=100)
    assert [b.layers for b in small.buckets] == [1, 1, 1, 1]
    assert simulate_dense(model, fusion_bytes=240).step == 6 + 25 + 3


def test_buckets_must_take_every_layer_once():
    for wrong in (stages((2, 0, 0)), stages((4, 0, 0)), stages((0, 0, 0), (3, 0, 0))):
        with pytest.raises(InvalidArgumentError, match="each of 3 layers once"):
            simulate(MODEL, wrong)
    with pytest.raises(InvalidArgumentError, match="select_on must be one of"):
        simulate(MODEL, stages((3, 0, 0)), select_on="moon")


SECONDS = st.floats(0, 10)


@given(
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=6),
    st.sampled_from(["caller", "engine"]),
)
def test_a_step_is_never_shorter_than_its_parts_and_never_longer_than_their_sum(times, select_on):
    profile = profile_of([10] * len(times), [backward for backward, _, _ in times], forward=1.0)
    found = simulate(
        profile, stages(*((1, select, exchange) for _, select, exchange in times)),
        select_on=select_on,
    )  # fmt: skip
    select = sum(one for _, one, _ in times)
    exchange = sum(one for _, _, one in times)
    assert found.step >= max(profile.compute, 1.0 + exchange, 1.0 + select) - 1e-9
    assert found.step <= profile.compute + select + exchange + 1e-9
    assert found.hidden + found.exposed >= exchange - select - 1e-9
    for before, after in itertools.pairwise(found.buckets):
        assert after.start >= max(before.end, after.selected)
