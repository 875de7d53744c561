"""Compares the speed of the working tree with that of a commit, and fails where it is slower.

    make bench-compare BASE=main
    python benchmarks/compare.py main --only coding --threshold .1

The commit, BASE, is checked out into build/compare/ and built there; if its C++ sources are those
of the working tree, the module of the working tree is copied instead. Both sides run the cases of
compare_cases.py, which verify what they time, as the working tree has them. A case for which BASE
lacks something is reported, and does not count.

The sides take turns, A B B A, in short turns: a turn's time is the first decile of its calls, since
whatever disturbs a call makes it longer. Two turns that follow each other make a pair. Its ratio,
new / base, hardly depends on what else the machine does meanwhile. The processes are started
several times, since where their memory lies changes times. Of two ranks, both the time by the clock
and processor time are compared: the latter counts no waiting, and is steadier on a busy machine.

A ratio's interval is that of the median over all pairs, by order statistics: 99 % sure, however the
ratios are distributed. A case is suspected if its median exceeds 1 + threshold. Suspected cases are
measured again, with more pairs, in new processes. A case is slower if the interval of that
measurement lies above 1 + threshold: then the exit status is 1.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import typer
from base_tree import ROOT, BaseError, checked_out, commit_of
from compare_cases import CASES, RANKS, WrongResultError
from reporting import Row, report

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

CONFIDENCE = 0.99  # of an interval
SAME, SLOWER, FASTER, UNCLEAR = "same", "SLOWER", "faster", "unclear: noise"


# ---- Statistics ----------------------------------------------------------------------------------


def interval_of_median(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Returns a confidence interval of the median of independent values, by order statistics.

    The number of values below the median has a binomial distribution, whatever that of the values
    is. Of few values, the interval is all of their range, which is less sure than asked for.
    """
    ordered, n = sorted(values), len(values)
    # Of 2^n cases, as likely each, those in which at most i values lie below the median.
    cases = accumulate(math.comb(n, i) for i in range(n // 2))
    left_out = max(0, sum(one <= (1 - confidence) / 2 * 2**n for one in cases) - 1)
    return ordered[left_out], ordered[n - 1 - left_out]


def first_decile(seconds: Sequence[float]) -> float:
    """Returns the time below which a tenth of the calls lie."""
    return statistics.quantiles(seconds, n=10, method="inclusive")[0]


@dataclass(frozen=True)
class Pairs:
    """Turns of a case on both sides, one after the other.

    Attributes:
        base: Seconds of a call, on BASE.
        new: The same for the working tree, of the same length.
    """

    base: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """new / base of each pair."""
        return [new / base for new, base in zip(self.new, self.base, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    def verdict(self, threshold: float) -> str:
        """Returns whether the working tree is slower or faster by more than `threshold`."""
        low, high = interval_of_median(self.ratios)
        if low > 1 + threshold:
            return SLOWER
        if high < 1 / (1 + threshold):
            return FASTER
        return SAME if high < 1 + 2 * threshold else UNCLEAR

    def row(self, name: str, threshold: float) -> Row:
        """Returns the case's line of the table."""
        low, high = interval_of_median(self.ratios)
        facts: dict[str, float | int | str] = {
            "base ms": 1e3 * statistics.median(self.base),
            "new ms": 1e3 * statistics.median(self.new),
            "ratio": f"{self.ratio:.3f}",
            "interval": f"{low:.3f}-{high:.3f}",
            "pairs": len(self.base),
            "verdict": self.verdict(threshold),
        }
        return Row(name, None, facts)


# ---- Measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effort:
    """Amount of measuring.

    Attributes:
        starts: Number of times that the processes are started.
        pairs: Number of pairs of each case after each start.
    """

    starts: int
    pairs: int


FIRST, AGAIN = Effort(starts=2, pairs=16), 3  # suspected cases: so many times the starts
# What calls are measured by, and how the times of ranks make that of a call.
MEASURES: dict[str, Callable[[Iterable[float]], float]] = {"clock": max, "processor": sum}


class FailedError(Exception):
    """A case could not be timed on one side."""


class Side:
    """The ranks of one side: processes that import hvd_sparse from its tree.

    Args:
        tree: Folder of the tree.
    """

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._ranks: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        """Starts the processes, in place of those that there were.

        Raises:
            BaseError: They do not start, or import another hvd_sparse.
        """
        self.close()
        path = os.pathsep.join(filter(None, [str(self._tree), os.environ.get("PYTHONPATH")]))
        script = Path(__file__).with_name("compare_cases.py")
        self._folder = tempfile.TemporaryDirectory()
        self._ranks = [
            subprocess.Popen(
                [sys.executable, script, str(rank), Path(self._folder.name, "meeting")],
                env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        for rank in self._ranks:
            try:
                package = self._answer(rank)["package"]
            except FailedError as error:
                raise BaseError(f"a process of {self._tree} does not start: {error}") from None
            if package != str(self._tree / "hvd_sparse" / "__init__.py"):
                raise BaseError(f"processes of {self._tree} import {package}")

    def turn(self, name: str) -> dict[str, float]:
        """Takes a turn; returns the seconds of a call, by what they measure: the first decile.

        Raises:
            FailedError: The case cannot be made on this side, or its result was wrong.
        """
        ranks = self._ranks[: CASES[name].ranks]
        for rank in ranks:
            assert rank.stdin is not None
            print(name, file=rank.stdin, flush=True)
        answers = [self._answer(rank) for rank in ranks]
        for one in answers:
            if "failed" in one:
                raise FailedError(one["failed"])
        measures = zip(*(zip(*one["calls"], strict=True) for one in answers), strict=True)
        return {
            title: first_decile([of_ranks(times) for times in zip(*ranks_, strict=True)])
            for (title, of_ranks), ranks_ in zip(MEASURES.items(), measures, strict=False)
        }

    def close(self) -> None:
        """Ends the processes."""
        for rank in self._ranks:
            rank.kill()
            rank.communicate()
        if self._ranks:
            self._folder.cleanup()
        self._ranks = []

    def _answer(self, rank: subprocess.Popen[str]) -> dict[str, Any]:
        assert rank.stdout is not None
        line = rank.stdout.readline()
        if not line:
            raise FailedError(f"its process ended with status {rank.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


Found = dict[str, dict[str, Pairs]]  # by case and measure


class Comparison:
    """The working tree and BASE, side by side.

    Args:
        base: Folder of BASE's tree.
        new: Folder of the working tree.

    Attributes:
        lacking: Cases that BASE cannot run, with the reason.
        failed: Cases that the working tree cannot run, with the reason.
    """

    def __init__(self, base: Path, new: Path) -> None:
        self._base, self._new = Side(base), Side(new)
        self.lacking: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def close(self) -> None:
        """Ends all processes."""
        self._base.close()
        self._new.close()

    def measure(self, names: Iterable[str], effort: Effort) -> Found:
        """Returns the pairs of each case that both sides can run, by what is measured.

        The cases take turns, so that a while in which the machine is busy meets few pairs of each.
        """
        found: Found = {name: {} for name in names}
        for _ in range(effort.starts):
            self._base.start()
            self._new.start()
            for number in range(1 + effort.pairs):  # the first is not timed
                for name in list(found):
                    if not self._take_pair(name, found[name], number):
                        del found[name]
        return found

    def _take_pair(self, name: str, into: dict[str, Pairs], number: int) -> bool:
        """Takes a turn on each side, BASE first if the number is even; false if one cannot."""
        sides = [(self._base, self.lacking), (self._new, self.failed)]
        taken: dict[Side, dict[str, float]] = {}
        for side, failures in reversed(sides) if number % 2 else sides:
            try:
                taken[side] = side.turn(name)
            except FailedError as error:
                failures[name] = str(error)
                side.start()  # one rank may still wait for the other
                return False
        if number > 0:
            for measure, seconds in taken[self._base].items():
                pairs = into.setdefault(measure, Pairs())
                pairs.base.append(seconds)
                pairs.new.append(taken[self._new][measure])
        return True


def compare(
    comparison: Comparison, names: Sequence[str], threshold: float, first: Effort, again: Effort
) -> list[Row]:
    """Measures the cases, suspected ones again; returns a row for each, with its verdict."""
    found = comparison.measure(names, first)
    suspected = [
        name
        for name, measures in found.items()
        if any(pairs.ratio > 1 + threshold for pairs in measures.values())
    ]
    if suspected:
        print(f"measuring again: {'; '.join(suspected)}", flush=True)
        found |= comparison.measure(suspected, again)
    rows = []
    for name in names:
        if name in comparison.failed:
            rows.append(Row(name, None, {"verdict": f"FAILED: {comparison.failed[name]}"}))
        elif name in comparison.lacking:
            why = comparison.lacking[name]
            what = "wrong on" if WrongResultError.__name__ in why else "not in"
            rows.append(Row(name, None, {"verdict": f"{what} BASE: {why}"}))
        else:
            for measure, pairs in found[name].items():
                title = f"{name}, {measure}" if len(found[name]) > 1 else name
                rows.append(pairs.row(title, threshold))
    return rows


@app.command()
def main(
    base: Annotated[str, typer.Argument(help="the commit to compare with")],
    threshold: Annotated[
        float, typer.Option(min=0.01, max=1, help="a case may be slower by this fraction")
    ] = 0.05,
    only: Annotated[str, typer.Option(help="cases whose names contain this")] = "",
    starts: Annotated[int, typer.Option(min=1, help="of the processes")] = FIRST.starts,
    pairs: Annotated[int, typer.Option(min=2, help="of each case, after each start")] = FIRST.pairs,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Times the cases on the working tree and on BASE; the exit status is 1 if one got slower."""
    names = [name for name in CASES if only in name]
    if not names:
        raise typer.BadParameter(f"--only must be part of a case's name, got {only!r}")
    first, again = Effort(starts, pairs), Effort(AGAIN * starts, pairs)
    try:
        commit = commit_of(base)
        with closing(Comparison(checked_out(commit), ROOT)) as comparison:
            rows = compare(comparison, names, threshold, first, again)
    except BaseError as error:
        raise typer.BadParameter(str(error)) from None
    settings = {"base": commit, "threshold": threshold, "starts": starts, "pairs": pairs}
    title = f"the working tree against {base} ({commit[:10]})"
    verified = not comparison.failed
    report(title, rows, settings=settings, verified=verified, file=json)
    slower = [row.name for row in rows if row.facts["verdict"] == SLOWER]
    problems = [f"slower than {base} by more than {threshold:.0%}: {name}" for name in slower]
    problems += [f"fails: {name}: {why}" for name, why in comparison.failed.items()]
    if comparison.lacking.keys() >= set(names):
        problems.append("no case could be compared")
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
