"""Tuning, with simulated ranks and invented times."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest

from hvd_sparse.compression import LAGS, Adaptive, Warmup
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.places.place import OnCpu
from hvd_sparse.places.step_clock import StepTimes
from hvd_sparse.planning.network import Link, Network
from hvd_sparse.planning.pipeline import simulate_dense
from hvd_sparse.planning.plan import BucketPlan, Plan
from hvd_sparse.planning.profile import Machine
from hvd_sparse.planning.quantities import shown_seconds
from hvd_sparse.tuning import tuner as tuning
from hvd_sparse.tuning.stages import Stage
from hvd_sparse.tuning.step_rows import profile_of
from hvd_sparse.tuning.tuner import Tuner, Verdict

LAYERS = (Layer("head", 1000), Layer("body", 50_000), Layer("stem", 3000))
MACHINE = Machine(
    select_seconds_per_entry=1e-9,
    select_overhead=1e-5,
    merge_seconds_per_entry=1e-9,
    code_seconds_per_entry=1e-9,
)


def bucket(layers, densities, collective, wire):
    numels = {layer.name: layer.numel for layer in LAYERS}
    return BucketPlan(
        layers=layers,
        numels=tuple(numels[name] for name in layers),
        densities=densities,
        collective=collective,
        wire=wire,
        select_seconds=1e-3,
        exchange_seconds=1 / 3,
    )


SECONDS = {"size": 3, "dense_seconds": 1.0, "compute_seconds": 0.25}
SPARSE = Plan(
    buckets=(
        bucket(("head",), (1.0,), "dense", "plain"),
        bucket(("stem", "body"), (0.1, 1 / 3), "gtopk", "packed"),
    ),
    step_seconds=0.5,
    **SECONDS,
)
ALL_SENT = replace(
    SPARSE,
    buckets=(
        bucket(("head",), (1.0,), "dense", "plain"),
        bucket(("stem", "body"), (1.0, 1.0), "shard_sum", "plain"),
    ),
)
DENSE = Plan(
    buckets=(bucket(("head", "stem", "body"), (1.0,) * 3, "dense", "plain"),),
    step_seconds=1.0,
    **SECONDS,
)


class World:
    """Ranks whose messages arrive one step later, as they do between processes."""

    def __init__(self, size):
        self.size = size
        self.sent = {}
        self.counts = [0] * size

    def channel(self, rank):
        world = self

        class Channel:
            def gather(self, numbers):
                return world.send(rank, list(numbers), lambda rows: rows)

            def broadcast(self, text):
                assert "\n" not in text
                return world.send(rank, text, lambda texts: texts[0])

        return Channel()

    def send(self, rank, numbers, result):
        key = self.counts[rank]
        self.counts[rank] += 1
        self.sent.setdefault(key, {})[rank] = numbers

        def arrived():
            rows = self.sent[key]
            assert len(rows) == self.size, "not all ranks have sent"
            numbers = [row for row in rows.values() if isinstance(row, list)]
            assert len({len(row) for row in numbers}) <= 1
            return result([rows[rank] for rank in range(self.size)])

        return arrived


def tuners(size=3, compression=None, places=None, dense16=None, dense=None):
    world = World(size)
    link = Link(alpha=1e-4, beta=1e-8)
    dense = dense or link
    network = Network(size=size, links=((1, link), (2, link)), dense=dense, dense16=dense16)
    return [
        Tuner(
            LAYERS,
            compression or LAGS(warmup=None),
            network=network,
            machine=MACHINE,
            channel=world.channel(rank),
            rank=rank,
            place=None if places is None else places[rank],
        )
        for rank in range(size)
    ]


def times(seconds, *, ready=(0.0, 0.3, 0.1)):
    return lambda: StepTimes(step=seconds, forward=seconds / 4, ready=ready)


def run(ranks, steps, seconds, *, before=0):
    """Runs steps of all ranks; returns the changes.

    Args:
        ranks: Tuners of all ranks.
        steps: Number of steps.
        seconds: Function from `sparse` to the seconds of a step.
        before: Number of steps made earlier.
    """
    changes = []
    for step in range(before, before + steps):
        changed = [one.end_step(times(seconds(one.tuning.sparse)), steps=step + 1) for one in ranks]
        assert len({one.tuning.stage for one in ranks}) == 1
        assert len({one.tuning.sparse for one in ranks}) == 1
        if changed[0] is not None:
            changes.append((step, changed[0].stage, changed[0].sparse))
        assert all((change is None) == (changed[0] is None) for change in changed)
    return changes


@pytest.fixture
def planned(monkeypatch):
    """Makes the planner return a fixed plan."""

    def choose(plan):
        monkeypatch.setattr(tuning, "make_plan", lambda profile, rules: plan)

    return choose


def test_it_goes_sparse_where_that_is_faster(planned, caplog):
    planned(SPARSE)
    ranks = tuners()
    with caplog.at_level(logging.INFO, logger="hvd_sparse"):
        changes = run(ranks, 40, lambda sparse: 0.5 if sparse else 1.0)
    assert [(stage, sparse) for _, stage, sparse in changes] == [(Stage.SPARSE, True)]
    assert ranks[1].tuning.stage is Stage.SETTLED
    assert ranks[1].tuning.plan == SPARSE
    assert ranks[2].tuning.sparse_seconds == 0.5
    assert ranks[2].tuning.dense_seconds == 1.0
    assert [record.levelname for record in caplog.records] == ["INFO"]


# The host's sums take a second, of which a plan knows before the first step.
SLOW = Link(alpha=1.0, beta=1e-8)


def test_no_step_is_dense_where_the_network_shows_that_dense_ones_lose(planned, caplog):
    planned(SPARSE)
    ranks = tuners(dense=SLOW)
    assert all((one.tuning.stage, one.tuning.sparse) == (Stage.FIRST, True) for one in ranks)
    first = ranks[0].tuning.choices
    assert {density for bucket in first for density in bucket.densities} == {0.01}
    with caplog.at_level(logging.INFO, logger="hvd_sparse"):
        changes = run(ranks, 40, lambda sparse: 0.4 if sparse else 1.0)
    assert all(sparse for _, _, sparse in changes)
    assert Stage.DENSE not in {stage for _, stage, _ in changes}
    found = ranks[1].tuning
    assert (found.stage, found.plan, found.profile.forward) == (Stage.SETTLED, SPARSE, 0.1)
    assert (found.dense_seconds, found.dense_estimate) == (None, SPARSE.dense_seconds)
    (record,) = caplog.records
    assert "gradients are sent sparse" in record.message
    run(ranks, 1000, lambda sparse: 0.4 if sparse else 1.0, before=40)
    assert all(one.tuning.sparse for one in ranks)


@pytest.mark.parametrize("plan", [SPARSE, DENSE])
def test_dense_steps_are_timed_where_the_first_sparse_ones_leave_a_doubt(planned, plan):
    planned(plan)
    ranks = tuners(dense=SLOW)
    changes = run(ranks, 40, lambda sparse: 0.6 if sparse else 1.0)
    assert changes[0][1:] == (Stage.DENSE, False)
    assert all(one.tuning.dense_seconds == 1.0 for one in ranks)
    assert ranks[0].tuning.sparse == (plan is SPARSE)


def test_a_restart_on_a_slow_network_begins_with_sparse_steps(planned):
    planned(SPARSE)
    ranks = tuners()
    run(ranks, 40, lambda sparse: 0.4 if sparse else 1.0)
    for one in ranks:
        one.restart(replace(one.tuning.network, dense=SLOW))
    assert {one.tuning.stage for one in ranks} == {Stage.FIRST}
    run(ranks, 40, lambda sparse: 0.4 if sparse else 1.0, before=40)
    assert ranks[0].tuning.stage is Stage.SETTLED


@pytest.mark.parametrize(("free", "fits"), [((math.inf,) * 3, True), ((math.inf, 1e5, 1e9), False)])
def test_our_dense_sums_need_memory_on_every_rank(monkeypatch, free, fits):
    rules = []

    def make_plan(_, allowed):
        rules.append(allowed)
        return SPARSE

    class Device(OnCpu):
        def __init__(self, free):
            super().__init__()
            self.free_bytes = lambda: free

    monkeypatch.setattr(tuning, "make_plan", make_plan)
    ranks = tuners(places=[Device(one) for one in free])
    run(ranks, 20, lambda sparse: 0.5 if sparse else 1.0)
    assert [one.dense_sums for one in rules] == [("dense", "shard_sum") if fits else ("dense",)]


# Sums of float16: as fast as those of float32, byte for byte; slower than a whole step in float32.
FAST16, SLOW16 = Link(alpha=1e-4, beta=1e-8), Link(alpha=1.0, beta=1e-8)


@pytest.mark.parametrize(
    ("dense16", "sparse_seconds", "warns"),
    [
        (FAST16, 0.35, False),
        (FAST16, 0.84, True),
        (FAST16, 1.5, True),  # steps are dense then
        (SLOW16, 0.84, False),
        (None, 0.84, False),
    ],
)
def test_it_warns_if_sums_in_16_bits_are_faster_than_the_best_steps(
    planned, caplog, dense16, sparse_seconds, warns
):
    planned(SPARSE)
    ranks = tuners(dense16=dense16)
    assert ranks[0].tuning.dense16_seconds is None
    with caplog.at_level(logging.INFO, logger="hvd_sparse"):
        run(ranks, 30, lambda sparse: sparse_seconds if sparse else 1.0)
    narrow = ranks[0].tuning.dense16_seconds
    assert (narrow is None) == (dense16 is None)
    if narrow is not None:
        assert 0.35 < narrow < 0.84 if dense16 is FAST16 else narrow > 1
    (record,) = caplog.records
    assert record.levelname == ("WARNING" if warns or sparse_seconds > 1 else "INFO")
    assert ("in 16 bits" in record.message) == warns
    if warns:
        step = shown_seconds(min(sparse_seconds, 1.0))
        assert f"takes {shown_seconds(narrow)} (simulated with sums of float16" in record.message
        assert f"and this one {step}: use compression=Dense(values=" in record.message
        assert "Horovod's Compression.fp16 or DDP's fp16_compress_hook" in record.message


def test_a_device_is_told_of_the_hosts_16_bits_alone(planned, monkeypatch, caplog):
    planned(SPARSE)
    monkeypatch.setattr(Machine, "on_device", True)
    run(tuners(dense16=FAST16), 30, lambda sparse: 0.9 if sparse else 1.0)
    (record,) = caplog.records
    assert "use Horovod's Compression.fp16" in record.message


@pytest.mark.parametrize("gain", [0.04, 0.06])
def test_the_margin_holds_for_16_bits_too(planned, caplog, gain):
    planned(SPARSE)
    ranks = tuners(dense16=FAST16)
    run(ranks, 10, lambda sparse: 1.0)  # makes the plan
    narrow = ranks[0].tuning.dense16_seconds
    run(ranks, 30, lambda sparse: narrow / (1 - gain) if sparse else 1.0, before=10)
    assert ("in 16 bits" in caplog.text) == (gain > 0.05)


def test_it_says_nothing_of_a_warm_up(planned, caplog):
    planned(DENSE)
    warmup = Warmup(steps=30, densities=(0.25,))
    ranks = tuners(compression=LAGS(warmup=warmup))
    run(ranks, 25, lambda sparse: 1.0)
    assert ranks[0].tuning.stage is Stage.SETTLED
    assert not caplog.records
    run(ranks, 25, lambda sparse: 1.0, before=25)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("sparse_seconds", [1.0, 0.86, 3.0])
def test_it_goes_dense_and_says_so_where_sparse_does_not_win_by_a_margin(
    planned, caplog, sparse_seconds
):
    planned(SPARSE)
    ranks = tuners()
    changes = run(ranks, 40, lambda sparse: sparse_seconds if sparse else 1.0)
    assert [sparse for _, _, sparse in changes] == [True, False]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "gradients are sent dense" in record.message
    assert f"{shown_seconds(sparse_seconds)} sparse, 1 s dense" in record.message
    sparse = "sparse ones, which hold back 67 % of the entries, must be 15 % shorter"
    assert sparse in record.message


@pytest.mark.parametrize("dense", [0.01, 100.0])
@pytest.mark.parametrize(
    ("plan", "part", "sparse"),
    [
        (SPARSE, 0.84, True),
        (SPARSE, 0.86, False),
        (ALL_SENT, 0.94, True),
        (ALL_SENT, 0.96, False),
    ],
)
def test_the_margin_is_a_part_of_the_step_and_grows_with_what_is_held_back(
    planned, dense, plan, part, sparse
):
    planned(plan)
    ranks = tuners()
    run(ranks, 40, lambda sparse: part * dense if sparse else dense)
    assert ranks[0].tuning.sparse is sparse


def test_plans_are_made_from_a_profile_whose_dense_step_is_the_one_that_was_timed(planned):
    planned(SPARSE)
    ranks = tuners()
    run(ranks, 40, lambda sparse: 0.2 if sparse else 0.41)
    assert simulate_dense(ranks[0].tuning.profile).step == pytest.approx(0.41)


def test_of_a_plan_that_is_dense_no_sparse_steps_are_told(planned):
    planned(SPARSE)
    ranks = tuners(compression=LAGS(adaptive=Adaptive(every=100), warmup=None))
    run(ranks, 30, lambda sparse: 0.5 if sparse else 1.0)
    assert ranks[0].tuning.sparse_seconds == 0.5
    planned(DENSE)
    run(ranks, 120, lambda sparse: 1.0, before=30)
    assert ranks[0].tuning.plan == DENSE
    assert ranks[0].tuning.sparse_seconds is None


def test_a_plan_that_is_all_dense_is_not_tried(planned, caplog):
    planned(DENSE)
    ranks = tuners()
    assert [sparse for *_, sparse in run(ranks, 40, lambda _: 1.0)] == [False]
    assert ranks[0].tuning.stage is Stage.SETTLED
    assert ranks[0].tuning.sparse_seconds is None
    (record,) = caplog.records
    assert "a step takes 1 s, and no sparse plan is predicted to be 2 % shorter" in record.message


def test_it_begins_again_in_time(planned, caplog):
    planned(SPARSE)
    ranks = tuners(compression=LAGS(adaptive=Adaptive(every=100), warmup=None))
    seconds = {True: 0.5, False: 1.0}
    run(ranks, 30, seconds.__getitem__)
    assert ranks[0].tuning.stage is Stage.SETTLED
    seconds[True] = 2.0
    changes = run(ranks, 120, seconds.__getitem__)
    assert [sparse for *_, sparse in changes] == [False, True, False]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_steps_that_nothing_is_decided_by_are_not_kept(planned):
    planned(SPARSE)
    ranks = tuners()
    run(ranks, 500, lambda sparse: 0.5 if sparse else 1.0)
    assert ranks[0].tuning.stage is Stage.SETTLED
    assert ranks[0]._readings == []


def test_steps_are_read_once_when_the_last_that_counts_is_over(planned):
    planned(SPARSE)
    (alone,) = tuners(1)
    read, counted = [], []
    for step in range(1, 24):
        counts = alone.times_next_step
        known = len(read)

        def reading(step=step):
            read.append(step)
            return times(0.5 if alone.tuning.sparse else 1.0)()

        alone.end_step(reading, steps=step)
        if counts:
            counted.append(step)
        if len(read) > known:
            assert read[known:] == counted[known:]
            assert read[-1] == step
    assert read == counted == [*range(3, 8), *range(12, 17)]


def test_a_device_is_planned_for_as_it_works(monkeypatch):
    class Device(OnCpu):
        select_on = "engine"
        adds_up_nodes = False

    seen = []

    def make_plan(profile, rules):
        seen.append(rules)
        return DENSE

    monkeypatch.setattr(tuning, "make_plan", make_plan)
    for place in (None, Device()):
        ranks = tuners(1, places=[place])
        run(ranks, 20, lambda sparse: 1.0)
        assert ranks[0].tuning.select_on == ("caller" if place is None else "engine")
    on_cpu, on_device = seen
    assert on_cpu.select_on == "caller"
    assert on_device.select_on == "engine"
    assert (on_cpu.nodes_first, on_device.nodes_first) == ((False, True), (False,))


@pytest.mark.parametrize(("fast", "expected"), [(0.9, 1000), (0.125, 6300)])
def test_comparing_costs_a_hundredth_of_the_time(planned, fast, expected):
    planned(SPARSE)
    ranks = tuners()
    run(ranks, 30, lambda sparse: fast if sparse else 1.0)
    assert ranks[0].tuning.settled_steps == expected


def test_the_slowest_rank_counts(planned):
    planned(SPARSE)
    ranks = tuners()
    for step in range(1, 31):
        for rank, one in enumerate(ranks):
            slow = 1.2 if rank == 1 and one.tuning.sparse else 1.0
            one.end_step(times(slow), steps=step)
    assert not ranks[0].tuning.sparse
    assert ranks[0].tuning.sparse_seconds == 1.2


def test_ranks_that_saw_nothing_go_dense_together(planned):
    planned(SPARSE)
    ranks = tuners()
    for step in range(1, 31):
        for one in ranks:
            one.end_step(None, steps=step)
    assert {one.tuning.stage for one in ranks} == {Stage.SETTLED}
    assert not any(one.tuning.sparse for one in ranks)


def test_a_restart_in_every_stage_keeps_the_ranks_together(planned):
    planned(SPARSE)
    ranks = tuners()
    for stop in range(1, 25):
        run(ranks, stop, lambda sparse: 0.5 if sparse else 1.0)
        for one in ranks:
            one.restart(one.tuning.network)
        assert {one.tuning.stage for one in ranks} == {Stage.DENSE}
    run(ranks, 40, lambda sparse: 0.5 if sparse else 1.0)
    assert all(one.tuning.sparse for one in ranks)


def test_a_profile_has_rank_0s_order_and_the_last_rank_s_times():
    nan = math.nan
    rows = [
        [1.0, 0.25, 0.0, 0.5, 0.125],
        [1.0, 0.5, 0.0, 0.25, 0.375],
        [1.0, nan, nan, nan, nan],
    ]
    profile = profile_of(rows, LAYERS, network=tuners()[0].tuning.network, machine=MACHINE)
    assert [layer.name for layer in profile.layers] == ["head", "stem", "body"]
    assert [layer.backward for layer in profile.layers] == [0.0, 0.375, 0.125]
    assert profile.backward == 0.5  # of the slowest rank; not more, although others had late layers
    assert profile.forward == 0.5


def test_what_was_settled_goes_on_after_a_restart(planned):
    planned(SPARSE)
    first, second = tuners(), tuners()
    assert first[0].state() is None
    run(first, 40, lambda sparse: 0.5 if sparse else 1.0)
    states = {one.state() for one in first}
    assert len(states) == 1
    for one in second:
        found = one.load(*states, steps=40)
        assert found == first[0].tuning
        assert found.stage is Stage.SETTLED
    both = [run(ranks, 3000, lambda sparse: 0.5 if sparse else 1.0) for ranks in (first, second)]
    assert both[0] == both[1]
    assert both[0]


def test_what_was_settled_elsewhere_is_refused(planned):
    planned(SPARSE)
    ranks = tuners()
    run(ranks, 40, lambda sparse: 0.5 if sparse else 1.0)
    with pytest.raises(InvalidArgumentError, match="made for 3 ranks, and there are 4"):
        tuners(4)[0].load(ranks[0].state(), steps=40)
    other = tuners()[0]
    other._layers = (*LAYERS[:2], Layer("stem", 99))
    with pytest.raises(InvalidArgumentError, match=r"'stem' \(99\) is not in both"):
        other.load(ranks[0].state(), steps=40)


def test_a_profile_may_keep_the_layers_order():
    rows = [[1.0, 0.25, 0.0, 0.5, 0.125], [1.0, 0.5, 0.0, 0.25, 0.75]]
    profile = profile_of(
        rows, LAYERS, network=tuners()[0].tuning.network, machine=MACHINE, keeps_order=True
    )
    assert [layer.name for layer in profile.layers] == [layer.name for layer in LAYERS]
    assert [layer.backward for layer in profile.layers] == [0.0, 0.5, 0.25]


def test_layers_without_gradients_come_last():
    nan = math.nan
    rows = [[1.0, 0.25, nan, 0.0, 0.5]]
    profile = profile_of(rows, LAYERS, network=tuners()[0].tuning.network, machine=MACHINE)
    assert [layer.name for layer in profile.layers] == ["body", "stem", "head"]
    assert [layer.backward for layer in profile.layers] == [0.0, 0.5, 0.0]


@pytest.mark.parametrize("plan", [SPARSE, DENSE, None])
@pytest.mark.parametrize("seconds", [1 / 3, None])
def test_a_verdict_is_one_line_that_reads_back_bit_for_bit(plan, seconds):
    verdict = Verdict(sparse_seconds=seconds, second_plan=plan)
    text = verdict.to_json()
    assert "\n" not in text
    assert Verdict.from_json(text) == verdict
