"""Messages between the ranks through Horovod, and the limits of waiting for them."""

from __future__ import annotations

import horovod.tensorflow as hvd
import pytest

from hvd_sparse.errors import ExchangeTimeoutError
from hvd_sparse.exchange.messages import Messages
from hvd_sparse.tensorflow.host import HorovodHost
from tests.parallel_tensorflow.ranks import a_name


class Exchange:
    """An exchange that never ends."""

    def check(self):
        pass


@pytest.mark.skipif(hvd.size() == 1, reason="a single rank waits for nobody")
def test_a_message_that_a_rank_does_not_send_is_given_up_by_name(monkeypatch):
    prefix = a_name()
    host = HorovodHost(hvd.global_process_set, device="CPU:0")
    messages = Messages(prefix, host=host, exchange=Exchange())
    numbers = [float(hvd.rank())]
    if hvd.rank() > 0:
        sent = messages.gather(numbers)
        monkeypatch.setenv("HVD_SPARSE_TIMEOUT_SECONDS", "0.1")
        match = f"gave up waiting for Horovod's operation '{prefix}.measured' after 0.1 s"
        with pytest.raises(ExchangeTimeoutError, match=match):
            sent()
        monkeypatch.undo()
    hvd.allgather_object("all others have given up", name=a_name())
    if hvd.rank() == 0:
        sent = messages.gather(numbers)
    assert sent() == [[float(rank)] for rank in range(hvd.size())]
