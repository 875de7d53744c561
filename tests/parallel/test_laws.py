"""The laws, on ranks that are processes; run under mpirun with 1 to 4 ranks."""

from __future__ import annotations

import horovod.torch as hvd
import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.errors import ExchangeFailedError, InvalidArgumentError, NonFiniteGradientError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks.world import World
from tests import laws
from tests.cases import in_turn


@pytest.fixture(scope="module")
def world():
    return World.from_horovod(hvd, hvd.global_process_set)


@pytest.fixture
def new_exchange(world):
    built = []

    def build(**options):
        built.append(Exchange.between_ranks(world, name="a test's exchange", **options))
        return built[-1]

    yield build
    for exchange in built:
        exchange.close()


@pytest.mark.parametrize(
    ("sparsifier", "collective", "density", "select_on"),
    in_turn(_core.sparsifiers(), _core.collectives(), [0.001, 0.05, 1.0], ["caller", "engine"]),
)
def test_laws_hold_over_several_steps(
    world, new_exchange, sparsifier, collective, density, select_on, device
):
    exchange = new_exchange(select_on=select_on)
    segments = [3000, 0, 517]
    me = laws.Rank(exchange, world.rank, segments, density, sparsifier, collective, device=device)
    laws.check_laws(world.allgather_object(me.run(6), list[laws.Step]))


@pytest.mark.parametrize(
    ("packed", "values"),
    [(True, "float32"), (True, "bfloat16"), (False, "float16"), (True, "int4")],
)
@pytest.mark.parametrize("collective", _core.collectives())
def test_laws_hold_in_every_wire_format(world, new_exchange, collective, packed, values, device):
    me = laws.Rank(
        new_exchange(),
        world.rank,
        [3000, 0, 517],
        0.05,
        "top_k",
        collective,
        packed,
        values,
        device=device,
    )
    steps = [
        me.step(301 * laws.integer_gradient(me.numel, rank=me.rank, step=step)) for step in range(5)
    ]
    laws.check_laws(world.allgather_object(steps, list[laws.Step]))


@pytest.mark.usefixtures("several_ranks")
def test_ranks_that_send_different_wire_formats_are_told(world, new_exchange):
    packed = world.rank == 0
    me = laws.Rank(new_exchange(), world.rank, [1000], 0.1, "top_k", "gtopk", packed)
    about = r"(plain|packed) indices, float32 values"
    with pytest.raises(ExchangeFailedError, match=rf"{about}; rank \d step 0, .* {about}"):
        me.run(1)


@pytest.mark.parametrize(
    ("sparsifier", "collective", "values"),
    in_turn(_core.sparsifiers(), _core.collectives(), ["float32", "bfloat16"]),
)
def test_laws_hold_between_two_nodes_of_two_ranks(
    world, new_exchange, sparsifier, collective, values
):
    if world.size % 2 != 0:
        pytest.skip("nodes of two ranks need an even number of them")
    exchange = new_exchange(local_size=2)
    assert exchange.local_size == 2
    me = laws.Rank(
        exchange,
        world.rank,
        [3000, 0, 517],
        0.05,
        sparsifier,
        collective,
        True,
        values,
        nodes_first=True,
    )
    steps = me.run(6)
    laws.check_laws(world.allgather_object(steps, list[laws.Step]))
    begin, end = (3517 * shard // 2 for shard in (world.rank % 2, world.rank % 2 + 1))
    assert not steps[-1].residual_after[:begin].any()
    assert not steps[-1].residual_after[end:].any()


def test_ranks_of_one_machine_are_a_node(world, new_exchange):
    assert new_exchange().local_size == world.size


def test_nodes_that_are_unequal_are_refused_by_all_ranks(world, new_exchange):
    if world.size < 3:
        pytest.skip("takes a full node and another one")
    exchange = new_exchange(local_size=world.size - 1)
    assert exchange.local_size is None
    with pytest.raises(InvalidArgumentError, match="as many ranks on every node"):
        laws.Rank(exchange, world.rank, [100], 0.1, "top_k", "gtopk", nodes_first=True)
    laws.check_laws(
        world.allgather_object(
            laws.Rank(exchange, world.rank, [100], 0.1, "top_k", "gtopk").run(2), list[laws.Step]
        )
    )


@pytest.mark.parametrize("local_size", [0, -2])
def test_nodes_without_ranks_are_refused(new_exchange, local_size):
    with pytest.raises(InvalidArgumentError, match=f"local_size must be .*, got {local_size}"):
        new_exchange(local_size=local_size)


@pytest.mark.parametrize(
    ("sparsifier", "collective", "piece"),
    in_turn(_core.sparsifiers(), _core.collectives(), [1, 40, 97]),
)
def test_laws_hold_when_messages_travel_in_pieces(
    world, new_exchange, sparsifier, collective, piece
):
    exchange = new_exchange(max_message_bytes=piece)
    me = laws.Rank(exchange, world.rank, [40], 0.2, sparsifier, collective)
    laws.check_laws(world.allgather_object(me.run(3), list[laws.Step]))


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("piece", [0, -1, 1 << 31])
def test_pieces_that_mpi_cannot_count_are_refused(world, new_exchange, piece):
    with pytest.raises(InvalidArgumentError, match=r"max_message_bytes must lie in \[1, 2\^31\)"):
        new_exchange(max_message_bytes=piece)


def test_exchanges_of_one_process_do_not_wait_for_each_other(world, new_exchange):
    first, second = new_exchange(), new_exchange()
    ranks = [
        laws.Rank(exchange, world.rank, [100], 0.1, "top_k", "gtopk")
        for exchange in (first, second)
    ]
    in_some_order = ranks if world.rank % 2 else ranks[::-1]
    for rank in in_some_order:
        rank.start(laws.integer_gradient(100, rank=world.rank, step=0))
    steps = [rank.finish() for rank in ranks]
    for step in steps:
        laws.check_laws([[r] for r in world.allgather_object(step, laws.Step)])


@pytest.mark.parametrize(
    ("sparsifier", "collective", "bad"),
    in_turn(_core.sparsifiers(), _core.collectives(), [np.nan, np.inf]),
)
def test_a_step_with_a_bad_gradient_on_one_rank_is_undone_on_all(
    world, new_exchange, sparsifier, collective, bad, device
):
    me = laws.Rank(new_exchange(), world.rank, [400], 0.1, sparsifier, collective, device=device)
    me.run(2)
    before = me.residual.copy()
    gradient = laws.integer_gradient(400, rank=world.rank, step=7)
    sent = gradient.copy()
    if world.rank == world.size - 1:
        sent[123] = bad
        gradient[123] = 0  # non-finite values do not enter the residual
    with pytest.raises(NonFiniteGradientError, match=f"gradient of rank {world.size - 1} in"):
        me.step(sent)
    assert me.residual.tobytes() == (before + gradient).tobytes()
    laws.check_laws(world.allgather_object(me.run(2), list[laws.Step]))


def test_what_one_rank_ends_raises_its_reason_on_all(world, new_exchange):
    exchange = new_exchange()
    me = laws.Rank(exchange, world.rank, [400], 0.1, "top_k", "gtopk")
    me.run(1)
    world.allgather_object("all have ended that step")
    if world.rank == world.size - 1:
        exchange.fail("a test says so")
    with pytest.raises(ExchangeFailedError, match=rf"rank {world.size - 1}.*a test says so"):
        me.run(1)
    with pytest.raises(ExchangeFailedError, match="a test says so"):
        exchange.check()


@pytest.mark.usefixtures("several_ranks")
def test_ranks_that_exchange_different_buckets_are_told(world, new_exchange):
    exchange = new_exchange()
    first = laws.Rank(exchange, world.rank, [100], 0.1, "top_k", "gtopk")
    second = laws.Rank(exchange, world.rank, [100], 0.1, "top_k", "gtopk")
    with pytest.raises(ExchangeFailedError, match="the ranks disagree"):
        (first if world.rank == 0 else second).run(1)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("collective", _core.collectives())
def test_ranks_that_are_asked_for_different_densities_are_told(world, new_exchange, collective):
    me = laws.Rank(new_exchange(), world.rank, [100], 0.2, "top_k", collective)
    me.run(1)
    world.allgather_object("all have ended that step")
    me.ks = [10 if world.rank == 0 else 20]
    with pytest.raises(ExchangeFailedError, match=r"asked for [12]0 entries, rank . for [12]0"):
        me.run(1)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("collective", _core.collectives())
def test_ranks_that_never_had_the_same_density_are_told(world, new_exchange, collective):
    me = laws.Rank(new_exchange(), world.rank, [100], 0.2, "top_k", collective)
    me.ks = [10 if world.rank == 0 else 20]
    with pytest.raises(ExchangeFailedError, match=r", k [12]0, .*; rank . .*, k [12]0, "):
        me.run(1)
