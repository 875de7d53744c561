"""The order in which buckets become ready, learned from the arrivals of their ops."""

from __future__ import annotations

from hvd_sparse.exchange.ready_order import ReadyOrder
from tests.broadcast import Broadcast


def test_a_bucket_is_ready_when_its_last_piece_is_there():
    broadcast = Broadcast()
    order = ReadyOrder([2, 1, 1], broadcast)
    assert order.end_step([0.0, 3.0, 2.0, 1.0]) is None
    assert broadcast.sent == [[2, 1, 0]]


def test_another_order_is_told_once():
    order = ReadyOrder([1, 1], Broadcast())
    steps = [order.end_step([1.0, 0.0]) for _ in range(6)]
    assert steps == [None, [1, 0], None, None, None, None]


def test_the_places_of_all_steps_count():
    broadcast = Broadcast()
    order = ReadyOrder([1, 1, 1], broadcast)
    for arrived in ([2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 2.0]):
        order.end_step(arrived)  # an order is sent after the first and the fourth
    assert broadcast.sent == [[2, 1, 0], [2, 1, 0]]


def test_an_order_on_its_way_is_waited_for_at_the_end():
    sent = []
    order = ReadyOrder([1, 1], lambda numbers: lambda: sent.append(numbers) or numbers)
    order.end_step([1.0, 0.0])
    assert sent == []
    order.close()
    assert sent == [[1, 0]]
