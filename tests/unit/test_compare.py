"""The comparison of two commits finds slowdowns, takes noise for none, and refuses bad input."""

from __future__ import annotations

import base_tree
import compare
import numpy as np
import pytest
from compare import Pairs, interval_of_median
from typer.testing import CliRunner

pytestmark = pytest.mark.long  # it looks at benchmarks alone

SELECTION, EXCHANGE = "selection: top_k, 100,000 at 0.01", "exchange: gtopk, float32"
NOISE = 0.07  # standard deviation of a turn of two ranks on a busy machine, as a fraction
DRAWS = 300


def pairs_of(slowdown, number, seed, *, outliers=0.1):
    """Returns pairs of turns of a second, some of which take three times as long."""
    generator = np.random.default_rng(seed)
    turns = np.exp(NOISE * generator.standard_normal((2, number)))
    turns *= np.where(generator.random((2, number)) < outliers, 3, 1)
    return Pairs(list(turns[0]), list(slowdown * turns[1]))


def share_of(verdict, slowdown, number):
    """Returns the fraction of draws with a verdict."""
    found = [pairs_of(slowdown, number, seed).verdict(0.05) for seed in range(DRAWS)]
    return found.count(verdict) / DRAWS


@pytest.mark.parametrize(
    ("number", "left_out"),
    [(1, 0), (2, 0), (8, 0), (12, 1), (32, 8), (96, 34)],  # of a table of the sign test, 1 %
)
def test_an_interval_leaves_out_as_many_values_as_the_sign_test(number, left_out):
    values = list(range(number))
    assert interval_of_median(values[::-1]) == (left_out, number - 1 - left_out)


def test_an_interval_holds_the_median_as_often_as_it_says():
    held = 0
    for seed in range(DRAWS):
        low, high = interval_of_median(np.random.default_rng(seed).standard_cauchy(32))
        held += low <= 0 <= high
    assert held >= 0.97 * DRAWS


def test_noise_is_no_slowdown_and_15_percent_are_one():
    assert share_of(compare.SLOWER, 1.0, 96) == 0
    assert share_of(compare.SLOWER, 1.03, 96) < 0.01
    assert share_of(compare.SLOWER, 1.15, 96) > 0.9
    assert share_of(compare.FASTER, 1 / 1.15, 96) > 0.9


def test_few_noisy_pairs_have_no_clear_verdict():
    assert share_of(compare.UNCLEAR, 1.0, 8) > 0.8


def test_a_turn_is_its_undisturbed_calls():
    assert compare.first_decile([1.0] * 5 + [9.0] * 5) == 1.0


class Trees:
    """Sides whose turns take given seconds: of BASE 1, of the working tree `slowdown`.

    Attributes:
        turns: The side of each turn of SELECTION, in order.
        starts: Number of starts of both sides.
    """

    def __init__(self, slowdown, failing):
        self.turns, self.starts = [], 0
        trees = self

        class Side:
            def __init__(self, tree):
                self._tree = tree

            def start(self):
                trees.starts += 1

            def close(self):
                pass

            def turn(self, name):
                if name == failing.get(self._tree):
                    raise compare.FailedError("ImportError: no such name")
                if name == SELECTION:
                    trees.turns.append(self._tree)
                seconds = 1.0 if self._tree == "base" else slowdown(trees.starts)
                return {"clock": seconds}

        self.side = Side


@pytest.fixture
def run(monkeypatch):
    """Returns a function that runs the command with given times; it returns its result and them."""

    def run(slowdown, *options, failing=None):
        trees = Trees(slowdown, failing or {})
        monkeypatch.setattr(compare, "Side", trees.side)
        monkeypatch.setattr(compare, "ROOT", "new")
        monkeypatch.setattr(compare, "checked_out", lambda commit: "base")
        result = CliRunner().invoke(
            compare.app, ["HEAD", "--starts", "1", "--pairs", "8", *options]
        )
        return result, trees

    return run


def test_the_sides_take_turns_and_neither_is_always_first(run):
    result, trees = run(lambda starts: 1.0)
    assert result.exit_code == 0, result.output
    assert trees.turns[:4] == ["base", "new", "new", "base"]
    assert trees.turns.count("base") == trees.turns.count("new") == 9


def test_what_is_slower_is_measured_again_and_fails_by_name(run):
    result, trees = run(lambda starts: 1.15, "--only", SELECTION)
    assert result.exit_code == 1
    assert f"measuring again: {SELECTION}" in result.output
    assert f"slower than HEAD by more than 5%: {SELECTION}" in result.output
    assert trees.starts == 2 + 6
    result, _ = run(lambda starts: 1.15, "--only", SELECTION, "--threshold", "0.2")
    assert result.exit_code == 0


def test_what_is_not_slower_when_it_is_measured_again_passes(run):
    result, _ = run(lambda starts: 1.15 if starts <= 2 else 1.0)
    assert "measuring again" in result.output
    assert result.exit_code == 0


def test_a_case_that_base_lacks_is_reported_and_passes(run):
    result, _ = run(lambda starts: 1.0, failing={"base": SELECTION})
    assert result.exit_code == 0
    assert "not in BASE: ImportError: no such name" in result.output
    result, _ = run(lambda starts: 1.0, "--only", SELECTION, failing={"base": SELECTION})
    assert result.exit_code == 1
    assert "no case could be compared" in result.output


def test_a_case_that_fails_on_the_working_tree_fails(run):
    result, _ = run(lambda starts: 1.0, failing={"new": EXCHANGE})
    assert result.exit_code == 1
    assert f"fails: {EXCHANGE}: ImportError" in result.output


@pytest.mark.parametrize("base", ["", "no_such_branch", "--all", "HEAD:README.md"])
def test_a_base_that_is_no_commit_is_refused(base):
    with pytest.raises(base_tree.BaseError, match=f"BASE must name a commit .*, got '{base}'"):
        base_tree.commit_of(base)
    result = CliRunner().invoke(compare.app, ["--", base])
    assert result.exit_code == 2
    assert "BASE must name a commit" in result.output


def test_a_part_of_no_name_is_refused():
    result = CliRunner().invoke(compare.app, ["HEAD", "--only", "nothing"])
    assert result.exit_code == 2
    assert "part of a case's name" in " ".join(result.output.replace("│", " ").split())


def test_a_working_tree_that_is_not_built_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(base_tree, "ROOT", tmp_path)
    monkeypatch.setattr(base_tree, "FOLDER", tmp_path / "build")
    with pytest.raises(base_tree.BaseError, match="run `make build` there"):
        base_tree.checked_out("0" * 40)
    assert not (tmp_path / "build").exists()


def test_a_build_that_fails_says_why(tmp_path):
    (tmp_path / "setup.py").write_text("raise SystemExit('no compiler')\n")
    with pytest.raises(base_tree.BaseError, match="no compiler"):
        base_tree.build(tmp_path)


def test_the_times_of_two_ranks_make_those_of_a_call():
    assert compare.MEASURES["clock"]([1.0, 2.0]) == 2.0  # until the slower one has ended
    assert compare.MEASURES["processor"]([1.0, 2.0]) == 3.0
