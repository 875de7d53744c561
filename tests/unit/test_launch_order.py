"""The launch order: rank 0's, the same on all ranks, adopted without waiting."""

from __future__ import annotations

from hvd_sparse.exchange.launch_order import LaunchOrder, plan_is_due, urgent_first
from tests.broadcast import Broadcast


def test_the_order_of_a_step_is_adopted_after_the_next():
    broadcast = Broadcast()
    order = LaunchOrder([1, 1, 1], broadcast)
    assert order.end_step([1.0, 2.0, 0.0]) is None
    assert broadcast.sent == [[2, 0, 1]]
    assert order.end_step([0.0, 1.0, 2.0]) == [2, 0, 1]
    assert order.end_step([0.0, 1.0, 2.0]) is None


def test_a_bucket_is_ready_when_its_last_op_is_there():
    broadcast = Broadcast()
    order = LaunchOrder([2, 1, 1], broadcast)
    assert order.end_step([0.0, 3.0, 2.0, 1.0]) is None
    assert broadcast.sent == [[2, 1, 0]]


def test_a_new_order_is_returned_once():
    order = LaunchOrder([1, 1], Broadcast())
    steps = [order.end_step([1.0, 0.0]) for _ in range(6)]
    assert steps == [None, [1, 0], None, None, None, None]


def test_the_positions_of_all_steps_count():
    broadcast = Broadcast()
    order = LaunchOrder([1, 1, 1], broadcast)
    for came in ([2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 2.0]):
        order.end_step(came)  # an order is sent after the first and the fourth
    assert broadcast.sent == [[2, 1, 0], [2, 1, 0]]


def test_closing_waits_for_an_order_that_is_in_flight():
    sent = []
    order = LaunchOrder([1, 1], lambda numbers: lambda: sent.append(numbers) or numbers)
    order.end_step([1.0, 0.0])
    assert sent == []
    order.close()
    assert sent == [[1, 0]]


def test_plans_are_frequent_at_first_and_rare_later():
    due = [steps for steps in range(3000) if plan_is_due(steps)]
    assert due == [1, 4, 16, 64, 256, 1024, 2048]


def test_a_single_bucket_needs_no_plan():
    broadcast = Broadcast()
    order = LaunchOrder([3], broadcast)
    for _ in range(5):
        assert order.end_step([0.0, 1.0, 2.0]) is None
    assert broadcast.sent == []


def test_what_is_used_first_overtakes_what_waits():
    # Bucket 0 is on its way when 1 and 2 arrive, and 3 arrives while 2 is.
    assert urgent_first([0.0, 1.0, 2.0, 6.0], [4.0] * 4, [3, 2, 1, 0]) == [0, 2, 3, 1]


def test_a_wire_that_is_free_takes_what_comes():
    assert urgent_first([0.0, 1.0, 2.0], [0.5] * 3, [2, 1, 0]) == [0, 1, 2]


def test_what_is_not_used_goes_last_of_those_that_wait():
    assert urgent_first([0.0, 0.0, 0.0], [1.0] * 3, [2, 0]) == [2, 0, 1]


def test_the_order_of_use_is_planned_with_mean_arrivals_and_the_shortest_exchanges():
    broadcast = Broadcast()
    order = LaunchOrder([1, 1, 1], broadcast)
    uses, slow = [2, 1, 0], [9.0, 9.0, 9.0]
    order.end_step([0.0, 1.0, 2.0], uses=uses, seconds=slow)
    assert broadcast.sent == [[0, 2, 1]]
    for came in ([0.0, 2.0, 4.0], [0.0, 1.0, 2.0], [0.0, 2.0, 4.0]):
        order.end_step(came, uses=uses, seconds=[0.5, 0.5, 0.5])
    assert broadcast.sent == [[0, 2, 1], [0, 1, 2]]
