"""The benchmark of learning: what it compares, and what it makes of trainings."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from learning_methods import DDP, Average, Sparse
from learning_rank import method_of
from learning_report import Learned, Raced
from learning_runs import Account, Run, Store, tuned
from learning_tasks import TASKS
from progress import correlations, points, within_families
from time_to_loss import FINALISTS, FOR_ADAM, FOR_SGD, SAME_WITHOUT_A_NETWORK, TODAY

pytestmark = pytest.mark.long  # it looks at benchmarks alone

RUN = Run("transformer", "Dense", 0.1, 100)


def account(run=RUN, losses=(3.0, 2.0, 1.0), facts=(), seconds=1.0):
    """A training of 50 steps, or as many as there are losses, a block each."""
    blocks = [
        {"step": 50 * n, "seconds": n * seconds, "loss": loss, "held_out": loss, "bytes": 1e3 * n}
        for n, loss in enumerate(losses, 1)
    ]
    return Account(run, {"blocks": blocks, "facts": list(facts), "same": True})


# ---- Methods and tasks ---------------------------------------------------------------------------


@pytest.mark.parametrize("table", [TODAY, FOR_ADAM, FOR_SGD, FINALISTS], ids=str)
def test_every_method_of_the_tables_is_one(table):
    for text in table.values():
        kind, options = method_of(text)
        inspect.signature(kind.__init__).bind(None, None, **options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Average(every=4)", (Average, {"every": 4})),
        ('DDP(hook="fp16")', (DDP, {"hook": "fp16"})),
        ("GTopK(density=0.01)", (Sparse, {"mode": "GTopK(density=0.01)"})),
    ],
)
def test_a_method_is_a_call(text, expected):
    assert method_of(text) == expected


@pytest.mark.parametrize(
    "text", ["Nonsense", "Average(4)", "Average(every=size)", "LAGS(density=2)"]
)
def test_what_is_no_method_is_refused(text):
    with pytest.raises(ValueError, match=r"literal options|density must lie in"):
        method_of(text)


def test_methods_that_only_a_network_tells_apart_take_the_rate_of_one_that_is_tuned():
    assert set(SAME_WITHOUT_A_NETWORK) <= set(TODAY)
    assert set(SAME_WITHOUT_A_NETWORK.values()) <= set(TODAY.values())


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_task_draws_the_same_from_the_same_generator_and_shares_out_what_is_held_out(task):
    one, other = (task.data.draw(torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    shares = [torch.cat([x.flatten(1) for x, _ in task.data.held_out(r, 4)]) for r in range(4)]
    assert len({len(share) for share in shares}) == 1
    assert not torch.equal(shares[0], shares[1])
    torch.manual_seed(0)
    loss = task.loss(task.model()(one[0]), one[1]).detach()
    assert float(loss) == pytest.approx(math.log(10 if task.name == "CNN" else 128), rel=0.2)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_schedule_ends_lower_than_it_is_half_way(task):
    assert task.schedule(0.999) < task.schedule(0.49) <= 1


# ---- Accounts ------------------------------------------------------------------------------------


def test_a_loss_is_reached_between_blocks():
    one = account(losses=(3.0, 2.0, 1.0), seconds=4.0)
    assert one.reaches(1.5, "step") == 125
    assert one.reaches(1.5, "seconds") == 10
    assert one.reaches(5.0, "step") == 50  # when it was first looked at
    assert one.reaches(0.5, "step") is None


def test_a_step_costs_what_the_second_half_took():
    one = account(losses=(3.0, 2.0, 1.0, 0.9), seconds=4.0)
    assert one.per_step("seconds") == pytest.approx(4 / 50)
    assert account(losses=(1.0,)).per_step("bytes") == pytest.approx(20)


def test_a_store_gives_back_what_it_keeps(tmp_path):
    store = Store(tmp_path / "accounts")
    assert store.find(RUN) is None
    store.keep(account())
    assert store.find(RUN) == account()
    assert list(store.all()) == [account()]


def test_a_training_that_diverged_is_not_the_best(tmp_path):
    store = Store(tmp_path)
    rates = (0.1, 0.2, 0.4)
    assert tuned(store, RUN, rates).rate == 0.2
    for rate, end in zip(rates, (2.0, 1.0, math.nan), strict=True):
        store.keep(account(Run("transformer", "Dense", rate, 100), (3.0, end)))
    assert tuned(store, RUN, rates).rate == 0.2


# ---- What is made of them ------------------------------------------------------------------------


def learned(tmp_path, ends):
    """A report on dense and on methods that end at these losses and shares."""
    store = Store(tmp_path)
    store.keep(account(losses=(2.0, 1.0)))
    for n, (end, share) in enumerate(ends):
        facts = [{"density": 0.01, "share": share, "behind": 10 / share, "age": 5.0, "step": 1}]
        store.keep(
            account(Run("transformer", f"EF21(density=0.{n + 1})", 0.1, 100), (3.0, end), facts)
        )
    methods = {"dense": "Dense"} | {f"m{n}": f"EF21(density=0.{n + 1})" for n in range(len(ends))}
    return Learned(store, "transformer", 100, methods, (0.1, 0.2, 0.3))


def test_steps_to_the_loss_of_dense_half_way(tmp_path):
    found = learned(tmp_path, [(1.0, 0.5), (2.5, 0.1)])
    assert found.steps_to_dense("dense") == pytest.approx(1)
    assert found.steps_to_dense("m0") == pytest.approx(1.5)
    assert found.steps_to_dense("m1") is None
    assert "| m0 | 1.000 | 1.000 | 1 | - | 1.50 |" in found.table()


def test_a_table_has_the_mean_and_the_deviation_of_seeds(tmp_path):
    store = Store(tmp_path)
    for seed, right in ((0, 0.96), (1, 0.98)):
        one = account(Run("transformer", "Dense", 0.1, 100, seed), losses=(2.0, 1.0 + seed))
        one.blocks[-1]["accuracy"] = right
        store.keep(one)
    table = Learned(store, "transformer", 100, {"dense": "Dense"}, (0.1,)).table()
    assert "| dense | 1.000 | 1.500 ± 0.707 | 2 | 97.0 ± 1.4 | 1.00 |" in table


def test_a_predictor_that_orders_trainings_as_their_losses_has_correlation_1(tmp_path):
    found = points(learned(tmp_path, [(1.0, 0.9), (1.5, 0.5), (2.5, 0.1)]).best)
    ranks = correlations(found)
    assert ranks["share"] == ranks["1 / (1 + behind)"] == pytest.approx(1)
    assert math.isnan(ranks["1 / age"])  # the same for all


def test_within_families_a_predictor_may_hold_where_it_fails_among_all(tmp_path):
    store = Store(tmp_path)
    store.keep(account(losses=(2.0, 1.0)))
    methods = {"dense": "Dense"}
    for kind, worse in (("EF21", 0.0), ("DeMo", 10.0)):
        for n in range(1, 5):
            share = 0.1 * n + (0.05 if worse else 0.0)
            facts = [{"density": 0.01, "share": share, "behind": 1.0, "age": 5.0, "step": 1}]
            text = f"{kind}(density=0.{n})"
            one = account(Run("transformer", text, 0.1, 100), (9.0, 9.0 + worse - share), facts)
            for block in one.blocks:
                block["descent"] = share / 2
            store.keep(one)
            methods[text] = text
    found = points(Learned(store, "transformer", 100, methods, (0.1,)).best)
    assert correlations(found)["share"] < 0.6
    within = within_families(found)
    assert within["share"] == within["descent"] == pytest.approx(1)
    assert math.isnan(within["1 / age"])


def test_a_race_is_for_the_loss_of_dense(tmp_path):
    store = Store(tmp_path)

    def run(method, **options):
        return Run("transformer", method, 0.1, 200, bits=1e8, **options)

    runs = {
        "alone": run("Average(every=9)"),
        "dense, MPI": run("Dense"),
        "dense, Gloo": run("Dense", gloo=True),
        "fast": run("Average(every=4)"),
        "late": run("LAGS"),
    }
    store.keep(account(runs["alone"], (3.0, 2.5), seconds=1.0))
    store.keep(account(runs["dense, MPI"], (3.0, 2.0), seconds=6.0))
    store.keep(account(runs["dense, Gloo"], (3.0, 2.0), seconds=4.0))
    store.keep(account(runs["fast"], (3.0, 2.5, 2.0), seconds=2.0))
    store.keep(account(runs["late"], (3.0, 2.9, 2.8), seconds=1.0))
    raced = Raced("transformer", [runs], store, goal=100)
    assert raced.slowdown(1e8) == pytest.approx(4)
    table = raced.table()
    assert "| dense, Gloo | 8.0 | 1.00 | 4.00 | 80.0 | 0 | 2.000 | 100 |" in table
    assert "| fast | 6.0 | 0.75 | 3.00 |" in table
    assert "| late | - | - | - |" in table


def test_dense_reaches_the_goal_on_one_network_and_is_timed_on_the_others(tmp_path):
    store = Store(tmp_path)

    def runs(bits):
        def run(method, **options):
            return Run("transformer", method, 0.1, 200, bits=bits, **options)

        return {"alone": run("Alone"), "dense, Gloo": run("Dense", gloo=True), "LAGS": run("LAGS")}

    fast, slow = runs(1e8), runs(1e7)
    for one in (fast, slow):
        store.keep(account(one["alone"], (3.0, 2.5), seconds=1.0))
        store.keep(account(one["LAGS"], (3.0, 2.0), seconds=3.0))
    store.keep(account(fast["dense, Gloo"], (3.0, 2.0), seconds=4.0))
    store.keep(account(slow["dense, Gloo"], (3.0,), seconds=40.0))
    raced = Raced("transformer", [slow, fast], store, goal=100)
    assert raced.goal == 2.0
    assert raced.dense == {1e7: 80.0, 1e8: 8.0}
    assert "| dense, Gloo | 80.0 | 1.00 | 40.00 | 800.0 |" in raced.table()
