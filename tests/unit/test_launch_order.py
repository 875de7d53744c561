"""The launch order: rank 0's, the same on all ranks, adopted without waiting."""

from __future__ import annotations

from hvd_sparse.exchange.launch_order import LaunchOrder, plan_is_due
from tests.broadcast import Broadcast


def test_buckets_start_in_their_own_order():
    order = LaunchOrder(3, Broadcast())
    assert order.order == [0, 1, 2]
    assert len(order) == 3
    assert order[2] == 2


def test_the_order_of_a_step_is_taken_up_after_the_next():
    broadcast = Broadcast()
    order = LaunchOrder(3, broadcast)
    for bucket in (2, 0, 1):
        order.became_ready(bucket)
    order.end_step()
    assert broadcast.sent == [[2, 0, 1]]
    assert order.order == [0, 1, 2]
    order.end_step()
    assert order.order == [2, 0, 1]


def test_buckets_that_did_not_become_ready_come_last():
    broadcast = Broadcast()
    order = LaunchOrder(4, broadcast)
    order.became_ready(3)
    order.became_ready(1)
    order.end_step()
    assert broadcast.sent == [[3, 1, 0, 2]]


def test_what_became_ready_counts_for_its_own_step_only():
    broadcast = Broadcast()
    order = LaunchOrder(2, broadcast)
    for step in range(4):
        order.became_ready(1 if step == 3 else 0)
        order.end_step()
    assert broadcast.sent == [[0, 1], [1, 0]]


def test_what_became_ready_in_a_step_that_does_not_count_is_forgotten():
    broadcast = Broadcast()
    order = LaunchOrder(3, broadcast)
    for bucket in (1, 2):  # in a step that was refused
        order.became_ready(bucket)
    order.release()
    for bucket in (2, 0, 1):
        order.became_ready(bucket)
    order.end_step()
    assert broadcast.sent == [[2, 0, 1]]


def test_plans_are_frequent_at_first_and_rare_later():
    due = [steps for steps in range(3000) if plan_is_due(steps)]
    assert due == [1, 4, 16, 64, 256, 1024, 2048]


def test_a_single_bucket_needs_no_plan():
    broadcast = Broadcast()
    order = LaunchOrder(1, broadcast)
    for _ in range(5):
        order.end_step()
    assert broadcast.sent == []
