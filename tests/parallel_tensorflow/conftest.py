"""Tests of the TensorFlow face that run on every rank at once."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.rank_guard import hooks

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)

globals().update(hooks("horovod.tensorflow"))


@pytest.fixture
def an_elastic_job(monkeypatch):
    """What the launcher would say; and no exchange of another test takes part."""
    from hvd_sparse.tensorflow import elastic_residuals, registry

    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    monkeypatch.setattr(registry, "_renewals", {})
    monkeypatch.setattr(registry, "_awaited", [])
    yield
    elastic_residuals("spread")
    for renewal in registry.renewals():
        renewal.close()
