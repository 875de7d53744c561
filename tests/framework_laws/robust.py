"""Robust averages take the place of the mean: the rule's average reaches every rank's weights."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hvd_sparse.compression import Dense, RobustAverage
from hvd_sparse.errors import InvalidArgumentError
from tests import robust_oracle


def expected_from(framework, gradients, rule="median"):
    """Returns a rule's average of all ranks' gradients, by name, and how many it left out."""
    flat = {name: np.asarray(one, np.float64).ravel() for name, one in gradients.items()}
    votes = framework.gathered(np.concatenate(list(flat.values())))
    average, _ = robust_oracle.average(rule, votes, 1)
    ends = np.cumsum([one.size for one in flat.values()])
    return dict(zip(flat, np.split(average, ends[:-1]), strict=True))


def poisoned(framework, gradients):
    """Returns the gradients, on the last rank -1000 times as large."""
    factor = -1000 if framework.rank == framework.size - 1 else 1
    return {name: factor * one for name, one in gradients.items()}


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
def test_a_rules_average_is_applied_on_all_ranks(framework, rule):
    if framework.size < 3:
        pytest.skip("a bad rank takes at least three")
    model = framework.model(Dense(average=rule), op="Average")
    for step in range(2):
        gradients = poisoned(framework, framework.integer_gradients(step))
        results = model.step(gradients)
        for name, expected in expected_from(framework, gradients, rule).items():
            np.testing.assert_allclose(results[name].ravel(), expected, rtol=1e-6, err_msg=name)
        framework.assert_same_on_all_ranks(results)
    stats = model.stats()
    assert len(stats.left_out) == framework.size
    assert stats.left_out[-1] > 0.9 * stats.averaged > 0  # zeros stay zeros


def test_a_bad_ranks_local_steps_are_one_vote(framework):
    if framework.size < 3:
        pytest.skip("a bad rank takes at least three")
    model = framework.model(Dense(average="median", local_steps=2), op="Average")
    before = model.weights()
    taken = [poisoned(framework, framework.integer_gradients(step)) for step in range(2)]
    for gradients in taken:
        model.step(gradients)
    difference = {name: taken[0][name] + taken[1][name] for name in taken[0]}
    for name, expected in expected_from(framework, difference).items():
        moved = (before[name] - model.weights()[name]).ravel()
        np.testing.assert_allclose(moved, expected, rtol=1e-6, err_msg=name)
    framework.assert_same_on_all_ranks(model.weights())


def test_too_few_ranks_are_refused_on_all_of_them(framework):
    if framework.size == 1:
        pytest.skip("a single rank exchanges nothing")
    rule = RobustAverage(rule="bulyan", bad_ranks=2)
    says = f"bad_ranks of bulyan must be at most {(framework.size - 3) // 4} between"
    with pytest.raises(InvalidArgumentError, match=re.escape(says)):
        framework.model(Dense(average=rule)).step(framework.integer_gradients(0))
