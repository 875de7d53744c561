"""How a driver and its ops come apart: whatever the core may write to is freed last."""

from __future__ import annotations

from types import SimpleNamespace

from hvd_sparse.tensorflow import ops


def test_memory_of_a_step_is_freed_when_its_driver_has_ended(monkeypatch):
    calls = []

    def noting(call):
        return lambda *_: calls.append(call)

    symbols = SimpleNamespace(
        hvd_sparse_add_driver=noting("add"),
        hvd_sparse_close_driver=noting("hide from ops"),
        hvd_sparse_remove_driver=noting("free memory"),
    )
    monkeypatch.setattr(ops, "_symbols", lambda: symbols)
    core = SimpleNamespace(
        table=0, steps=3, on_its_thread=False, cancel=noting("cancel"), close=noting("end")
    )
    exchange = SimpleNamespace(drive=lambda *_: core, close=noting("close"))
    driver = ops.Driver(exchange, [], [])
    driver.close()
    driver.close()
    assert calls == ["add", "hide from ops", "cancel", "end", "free memory", "close", "close"]
    assert driver.steps == 3
