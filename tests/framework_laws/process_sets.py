"""Gradients of overlapping process sets do not mix; ranks outside exchange nothing."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_sparse.compression import LAGS, Dense, Layers, TopK
from tests.frameworks import any_entry

EVERYTHING = [TopK(density=1.0, layers=Layers(min_numel=64)), Dense()]


@pytest.mark.parametrize("compression", EVERYTHING, ids=repr)
def test_ranks_sum_over_their_set_and_exchange_nothing_outside(framework, sets, compression):
    for ranks in sets:
        model = framework.model(compression, ranks=ranks)
        model.prepare()
        gradients = framework.integer_gradients(0)
        results = model.step(gradients)
        if ranks.included():
            exact = framework.totals(gradients, ranks)
            framework.assert_same_on_all_ranks(model.weights(), ranks)
        else:
            exact = {name: one.ravel() for name, one in gradients.items()}
            assert model.stats() is None
            assert model.tuning() is None
            assert model.residuals() == {}
        for name, result in results.items():
            assert np.array_equal(result.ravel(), exact[name])


@pytest.mark.parametrize("compression", EVERYTHING, ids=repr)
def test_an_average_is_over_the_ranks_of_the_set(framework, sets, compression):
    inner = sets[0]
    model = framework.model(compression, ranks=inner, op="Average")
    results = model.step({"first": np.full((40, 30), 1.0 + framework.rank)})
    if inner.included():
        mean = sum(1 + rank for rank in inner.ranks) / len(inner.ranks)
        np.testing.assert_allclose(results["first"], np.full((40, 30), mean), rtol=1e-6)


def test_the_number_of_exchanges_may_differ_between_ranks(framework, sets):
    compression = LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64))
    if sets[0].included():
        extra = framework.model(compression, ranks=sets[0])
        extra.step(framework.integer_gradients(0))
        assert any_entry(extra.residuals())
    model = framework.model(compression)
    model.step(framework.integer_gradients(1))
    framework.assert_same_on_all_ranks(model.weights())
