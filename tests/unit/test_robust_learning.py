"""Training with bad ranks: rules learn as without them, the mean does not; ranks are threads."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests import laws, robust_oracle

STEPS, RATE, BATCH = 120, 0.5, 32
RANKS = {"bulyan": 7}  # others: 5
RULES = list(robust_oracle.LEAST)


@cache
def digits():
    """Returns images and labels, to train on and to judge by."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = np.hstack([images / 16, np.ones((len(images), 1))]).astype(np.float32)
    return (images[:1400], labels[:1400]), (images[1400:], labels[1400:])


def gradient_at(weights, rng):
    """Returns the gradient of softmax regression on a batch."""
    images, labels = digits()[0]
    chosen = rng.integers(len(labels), size=BATCH)
    scores = images[chosen] @ weights
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    odds[np.arange(BATCH), labels[chosen]] -= 1
    return images[chosen].T @ odds / BATCH


def attacked(attack, gradient, rng, former):
    """Returns what a bad rank sends."""
    if attack == "reversed":
        return -10 * gradient
    if attack == "noise":
        return 3 * rng.standard_normal(gradient.shape)
    former.append(gradient)
    return former[max(0, len(former) - 21)]


def train(collective, attack, *, values="float32"):
    """Trains with one bad rank; returns the accuracy, equal on all ranks."""
    size = RANKS.get(collective, 5)

    def program(me):
        rng, former = np.random.default_rng(me.rank), []
        weights = np.zeros((65, 10), np.float32)
        for _ in range(STEPS):
            gradient = gradient_at(weights, rng)
            if attack is not None and me.rank == size - 1:
                gradient = attacked(attack, gradient, rng, former)
            step = me.step(gradient.ravel().astype(np.float32), output_scale=1 / size)
            weights -= RATE * (step.total / size).reshape(weights.shape).astype(np.float32)
        images, labels = digits()[1]
        return weights.tobytes(), float(((images @ weights).argmax(axis=1) == labels).mean())

    told = laws.on_threads(
        size,
        program,
        segments=[650],
        density=1.0,
        sparsifier="top_k",
        collective=collective,
        values=values,
    )
    assert all(one == told[0] for one in told)
    return told[0][1]


@pytest.fixture(scope="module")
def honest():
    """The accuracy of the mean between ranks that are all good."""
    return train("shard_sum", None)


@pytest.mark.parametrize("attack", ["reversed", "noise", "stale"])
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_learns_as_if_no_rank_were_bad(rule, attack, honest):
    assert train(rule, attack) > honest - 0.04


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_learns_from_values_of_8_bits(rule, honest):
    assert train(rule, "reversed", values="int8") > honest - 0.04


@pytest.mark.parametrize("attack", ["reversed", "noise"])
def test_the_mean_does_not(attack, honest):
    assert honest > 0.85
    assert train("shard_sum", attack) < honest - 0.1
