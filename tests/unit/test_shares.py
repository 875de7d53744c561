"""A part of the tests has all values of their parameters, and all parts have all tests."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from tests.shares import dealt, some_of, values_of

AXES = {"size": [2, 3, 4], "kind": ["a", "b", "c", "d"], "sign": [1, -1]}


class Case(SimpleNamespace):
    """A test's case with some parameters."""

    __hash__ = object.__hash__

    @property
    def callspec(self):
        return SimpleNamespace(params=vars(self))


def cases(**axes):
    """Returns the cases of a test with all combinations of values."""
    return [Case(**dict(zip(axes, one, strict=True))) for one in itertools.product(*axes.values())]


@pytest.mark.parametrize("shares", [1, 2, 3, 7])
def test_each_test_is_of_one_share_and_shares_are_of_a_size(shares):
    tests = list(range(100))
    parts = [dealt(tests, number, shares) for number in range(1, shares + 1)]
    assert sorted(itertools.chain(*parts)) == tests
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("shares", [2, 3, 4])
def test_a_share_of_all_combinations_has_all_values(shares):
    for number in range(1, shares + 1):
        mine = dealt(cases(**AXES), number, shares)
        found = set().union(*map(values_of, mine))
        assert found == set().union(*map(values_of, cases(**AXES)))


@pytest.mark.parametrize("every", [1, 2, 4, 100])
def test_some_cases_have_all_values_and_few_are_more_than_were_asked_for(every):
    tests = cases(**AXES)
    some = some_of(tests, every)
    assert set().union(*map(values_of, some)) == set().union(*map(values_of, tests))
    assert len(some) <= len(tests) // every + sum(map(len, AXES.values()))


def test_a_case_with_a_value_of_its_own_always_runs():
    tests = cases(name=["a", "b", "c", "d", "e"])
    assert set(some_of(tests, 4)) == set(tests)
    assert some_of([SimpleNamespace()], 4) == [SimpleNamespace()]
