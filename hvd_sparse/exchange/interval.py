"""The interval of local steps from one meeting to the next, and the rules for its length."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hvd_sparse.compression.local_steps import AdaComm, LocalSteps
from hvd_sparse.compression.parts import AUTO
from hvd_sparse.errors import InvalidArgumentError, RanksDisagreeError, UnsupportedError
from hvd_sparse.log import logger

# Small models learned clearly less where a meeting sent a hundredth of a difference.
_LEAST_DENSITY = 0.05

# every="auto": the most local steps, and the share of the time that meetings take.
_AUTO_MOST = 32
_AUTO_SHARE = 0.1


def check_averages(averages: bool) -> None:
    """Raises UnsupportedError if results are not averages over the ranks, but sums."""
    if not averages:
        raise UnsupportedError(
            "local_steps needs averages: the sum of all ranks' differences would move the weights "
            "by as many times their steps"
        )


def check_rate(local_steps: LocalSteps, group: Mapping[str, Any], optimizer: str) -> None:
    """Raises UnsupportedError if a rule divides by a learning rate, and there is none.

    Args:
        local_steps: The local steps, with their number or the rule for it.
        group: The optimizer's first group of parameters, with its options.
        optimizer: The optimizer's name.
    """
    if isinstance(local_steps.every, AdaComm) and "lr" not in group:
        raise UnsupportedError(
            f"AdaComm follows the learning rate, and {optimizer} has no 'lr': give a number of "
            "local_steps, or 'auto'"
        )


def checked_loss(loss: Any) -> Any:
    """Returns a loss that is reported; raises InvalidArgumentError if it is not a number."""
    try:
        if isinstance(loss, str | bytes):
            raise TypeError
        float(loss)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(f"loss must be a number, got {loss!r}") from None
    return loss


def warn_of_density(density: float) -> None:
    """Logs a warning if a meeting sends little of what several steps have done."""
    if density < _LEAST_DENSITY:
        logger.warning(
            "a meeting sends %g %% of what several local steps have done, of which small models "
            "learned clearly less than of a tenth: density=0.1 with 8 local steps sends about as "
            "much as density=0.0125 in every step (docs/learning.md)",
            100 * density,
        )


class Report(NamedTuple):
    """A rank's numbers, which all ranks get at a meeting.

    Attributes:
        taken: Local steps since the last meeting.
        weights: Checksum of the common weights if they are not those of the last meeting, else 0.
        seconds: Seconds since the number of local steps was last chosen.
        losses: Number of finite losses reported since then.
        loss: Their sum.
        rate: The learning rate.
        step: Seconds of a local step, on average since the last meeting, without waiting.
        waited: Seconds that a local step waited, on average since the last meeting.
        meeting: Seconds of the last meeting, or of the last fragment's exchange; 0 if there was
            none.
        left_out: Number of losses reported since then that are not finite.
        moved: Norm of the differences taken since the last report, if they are noted.
        grows: 1 if the residual grows without bound, else 0.
    """

    taken: float
    weights: float
    seconds: float
    losses: float
    loss: float
    rate: float
    step: float
    waited: float
    meeting: float
    left_out: float
    moved: float
    grows: float


class Interval:
    """The local steps from one meeting to the next; after each meeting the same on all ranks.

    Args:
        local_steps: Their number, or the rule for it.
        fragments: Number of fragments, which meet in turn within the interval.
        clock: Returns seconds.
        warns: True to log a warning, once, of losses that the rule cannot follow.

    Attributes:
        length: Local steps from one meeting to the next.
        taken: Local steps of this rank since the last meeting.
        is_watched: True if reports tell how the training goes, though no rule changes the length.
    """

    def __init__(
        self,
        local_steps: LocalSteps,
        *,
        fragments: int = 1,
        clock: Callable[[], float] = time.monotonic,
        warns: bool = True,
    ) -> None:
        every = local_steps.every
        self._rule = None if isinstance(every, int) else every
        self.length = local_steps.first
        self.taken = 0
        self.is_watched = False
        self._fragments = fragments
        self._clock = clock
        self._chosen_at = self._began = self._met = clock()
        self._meeting = 0.0  # seconds of the last one
        self._waited = 0.0  # seconds, in this interval
        self._untimed = 0  # its first steps, which are not timed
        self._losses: list[Any] = []
        self._moved: list[Any] = []  # norms of differences
        self._first: tuple[float, float] | None = None  # loss and learning rate
        self._may_warn = warns

    def follow(self, local_steps: LocalSteps, fragments: int) -> None:
        """Takes another, fixed number of steps and fragments, between two intervals."""
        self.length, self._fragments = local_steps.first, fragments

    def begin_timing(self) -> None:
        """Leaves the steps of this interval so far out of the time of a step."""
        self._began, self._untimed = self._clock(), self.taken

    def note_wait(self, seconds: float, *, exchange: float) -> None:
        """Notes that a step has waited, for an exchange that took so many seconds in all."""
        self._waited += seconds
        self._meeting = exchange

    @property
    def changes(self) -> bool:
        """True if a rule changes the length."""
        return self._rule is not None

    @property
    def follows_loss(self) -> bool:
        """True if the rule needs the loss of local steps."""
        return isinstance(self._rule, AdaComm)

    def step(self) -> int | None:
        """Counts a local step; returns the number of the fragment that meets after it, if any."""
        self.taken += 1
        if self.taken >= self.length:
            return self._fragments - 1
        number, rest = divmod(self.taken * self._fragments, self.length)
        return number - 1 if rest < self._fragments else None

    def note_loss(self, loss: Any) -> None:
        """Notes the loss of a local step: a number, or a tensor with one element."""
        if self.follows_loss or self.is_watched:
            self._losses.append(loss)

    def note_differences(self, norm: Any) -> None:
        """Notes the norm of differences that are exchanged: a number, or a tensor."""
        self._moved.append(norm)

    def report(self, *, rate: float, weights: int, grows: bool = False) -> Sequence[float]:
        """Returns this rank's numbers; those of all ranks are passed to `check` and `meet`.

        Args:
            rate: The optimizer's learning rate.
            weights: Checksum of the common weights, 32 bits; 0 if they are those of the last
                meeting.
            grows: True if this rank's residual grows without bound.
        """
        told = [float(loss) for loss in self._losses]
        losses = [loss for loss in told if math.isfinite(loss)]
        moved = math.hypot(*map(float, self._moved))
        self._moved.clear()
        if self.is_watched:
            self._losses.clear()
        self._met = self._clock()
        steps = max(self.taken - self._untimed, 1)
        return Report(
            taken=self.taken,
            weights=weights,
            seconds=self._met - self._chosen_at,
            losses=len(losses),
            loss=sum(losses),
            rate=rate,
            step=(self._met - self._began - self._waited) / steps,
            waited=self._waited / steps,
            meeting=self._meeting,
            left_out=len(told) - len(losses),
            moved=moved,
            grows=float(grows),
        )

    def check(self, reports: Sequence[Sequence[float]]) -> None:
        """Raises RanksDisagreeError unless all ranks have taken as many steps from equal weights.

        Args:
            reports: The reports of all ranks, in rank order.
        """
        first, *others = (Report(*row) for row in reports)
        for rank, other in enumerate(others, 1):
            if other.taken != first.taken:
                raise RanksDisagreeError(
                    f"rank 0 has taken {first.taken:.0f} local steps since the last meeting, rank "
                    f"{rank} {other.taken:.0f}: all ranks must take the same steps, and call "
                    "meet() together"
                )
            if other.weights != first.weights:
                raise RanksDisagreeError(
                    f"rank 0 and rank {rank} have taken local steps from different weights: "
                    "broadcast them before the first step, and load checkpoints on all ranks"
                )

    def meet(self, reports: Sequence[Sequence[float]]) -> None:
        """Ends the interval, and begins one whose length may be another.

        Raises:
            InvalidArgumentError: The rule needs a loss, and no rank has reported one.
        """
        self.taken = 0
        self._waited, self._untimed = 0.0, 0
        self._began = self._clock()
        rows = [Report(*row) for row in reports]
        if self._rule == AUTO:
            self._meeting = self._began - self._met
            self._keep_to_share(rows)
        elif isinstance(self._rule, AdaComm):
            self._follow_loss(self._rule, rows)

    def _keep_to_share(self, rows: Sequence[Report]) -> None:
        """Chooses the fewest steps with which meetings take at most their share of the time.

        A meeting is as long as it is for the rank that comes last; the others wait for that one.
        """
        meeting = min(row.meeting for row in rows)
        if meeting == 0:
            return
        step = max(row.step for row in rows)
        wanted = math.ceil(meeting * (1 / _AUTO_SHARE - 1) / max(step, 1e-9))
        least, most = math.ceil(self.length / 2), 2 * self.length  # one meeting may be an outlier
        self.length = min(max(wanted, least), most, _AUTO_MOST)

    def _follow_loss(self, rule: AdaComm, rows: Sequence[Report]) -> None:
        count, left_out = sum(row.losses for row in rows), sum(row.left_out for row in rows)
        # A rank that has run out of data reports no losses, and its learning rate stays.
        rate = next((row.rate for row in rows if row.losses), rows[0].rate)
        loss = sum(row.loss for row in rows) / count if count else math.nan
        if left_out:
            self._warn(f"{left_out:.0f} losses are not finite, and are left out")
        if self._first is None and _can_be_first(loss):
            self._first = loss, rate
        if rows[0].seconds < rule.seconds:
            return
        if not count + left_out:
            raise InvalidArgumentError(
                "AdaComm needs the loss of local steps: call exchange.report_loss(loss) in each"
            )
        self._choose(rule, loss, rate)
        self._losses.clear()
        self._chosen_at = self._clock()

    def _choose(self, rule: AdaComm, loss: float, rate: float) -> None:
        first_loss, first_rate = self._first or (math.nan, 0.0)
        ratio = loss / first_loss
        if rate > 0 and first_rate > 0:
            ratio *= first_rate / rate
        if not 0 <= ratio < math.inf:
            self._warn(f"a mean loss of {loss:g}, after {first_loss:g} at first, is no measure")
            return
        wanted = math.ceil(rule.first * math.sqrt(ratio))
        if wanted >= self.length:
            wanted = math.ceil(self.length * rule.shrink)
        self.length = max(1, wanted)

    def state(self) -> dict[str, Any]:
        """Returns this rank's state, as plain values."""
        losses = [float(loss) for loss in self._losses]
        return {
            "taken": self.taken,
            "length": self.length,
            "seconds": self._clock() - self._chosen_at,
            "losses": losses,
            "first": self._first,
            "meeting": self._meeting,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned; a fixed number of steps stays as it is."""
        self.taken = state["taken"]
        if self._rule is not None:
            self.length = state["length"]
            self._chosen_at = self._clock() - state["seconds"]
            self._losses = list(state["losses"])
            self._meeting = state["meeting"]
            first = state["first"]
            self._first = tuple(first) if first is not None and _can_be_first(first[0]) else None

    def _warn(self, found: str) -> None:
        if self._may_warn:
            self._may_warn = False
            logger.warning("AdaComm: %s; the number of local steps is %d", found, self.length)


def _can_be_first(loss: float) -> bool:
    """Returns true if AdaComm can compare later losses with this one."""
    return 0 < loss < math.inf
