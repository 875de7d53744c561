"""The rules by which a row of the papers' tables counts or is void."""

from __future__ import annotations

import pytest
from table_checks import (
    Message,
    cpu_problems,
    latency,
    message_problems,
    repetition_problems,
)

pytestmark = pytest.mark.long  # it looks at benchmarks alone

RATE = 100e6
SIZES = (8_000, 128_000, 2_000_000)


def messages(*, alpha, stretch=(1.0, 1.0, 1.0)):
    return [
        Message(size, alpha + more * 8 * size / RATE)
        for size, more in zip(SIZES, stretch, strict=True)
    ]


@pytest.mark.parametrize("alpha", [0.0, 50e-6, 2e-3])
def test_the_latency_of_an_ideal_network_is_found(alpha):
    assert latency(messages(alpha=alpha), RATE) == pytest.approx(alpha, abs=1e-12)


@pytest.mark.parametrize("frame", [0, 3_000])
def test_a_latency_is_less_than_zero_by_one_frame_at_most(frame):
    assert latency(messages(alpha=0, stretch=(0.5, 0.5, 0.5)), RATE, frame) == -8 * frame / RATE


def test_a_frame_that_passes_at_once_is_no_problem():
    assert message_problems(messages(alpha=-8 * 2_800 / RATE), RATE, 3_000) == []


@pytest.mark.parametrize("alpha", [0.0, 2e-3])
def test_a_network_within_15_percent_has_no_problems(alpha):
    assert message_problems(messages(alpha=alpha, stretch=(1.05, 1.1, 1.14)), RATE) == []


def test_a_message_that_passes_unshaped_is_named():
    problems = message_problems(messages(alpha=0, stretch=(0.1, 1, 1)), RATE, 3_000)
    assert problems == ["8000 bytes take -52% of bytes / rate"]


def test_a_slow_large_message_is_named():
    problems = message_problems(messages(alpha=1e-4, stretch=(1, 1, 1.3)), RATE)
    assert problems == ["2000000 bytes take +30% of bytes / rate"]


def test_a_message_that_never_came_is_a_problem():
    assert message_problems([Message(8_000, float("nan"))], RATE)


@pytest.mark.parametrize(
    ("other", "problems"),
    [
        (1.049, []),
        (0.951, []),
        (1.06, ["LAGS takes +6% at the other dilation"]),
        (0.94, ["LAGS takes -6% at the other dilation"]),
    ],
)
def test_a_row_must_repeat_within_5_percent(other, problems):
    assert (
        repetition_problems({"dense": 2.0, "LAGS": 1.0}, {"dense": 2.0, "LAGS": other}) == problems
    )


def test_rows_of_other_methods_are_no_repetition():
    with pytest.raises(ValueError, match="methods differ"):
        repetition_problems({"dense": 1.0}, {"LAGS": 1.0})


@pytest.mark.parametrize(("share", "counts"), [(0.69, True), (0.7, False), (float("nan"), False)])
def test_a_busy_machine_voids_the_row(share, counts):
    assert (cpu_problems({"compute only": 0.2, "LAGS": share}) == []) == counts
