"""Local steps: how often ranks meet, and what they do then."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.compression.checks import (
    checked_choice,
    checked_count,
    checked_kind,
    checked_number,
)
from hvd_sparse.compression.parts import AUTO, Part
from hvd_sparse.errors import InvalidArgumentError

MOST_LOCAL_STEPS = 1 << 20

# What a meeting does with the moments of the ranks' optimizers.
LOCAL, AVERAGED = "local", "averaged"

# With lr_scale="auto": what multiplies the root of the number of ranks, and the most of it.
LR_SCALE, MOST_LR_SCALE = 1.5, 3.0

# With every="auto": local steps before the first meeting.
_AUTO_FIRST = 4


@dataclass(frozen=True, kw_only=True, repr=False)
class AdaComm(Part):
    """Meets rarely at first, when the loss falls fast, and more often later.

    Every `seconds`, at a meeting, the number of local steps becomes

        ceil(first * sqrt(loss / first loss * first learning rate / learning rate))

    with the mean loss that all ranks have reported since the last change. If that is not less than
    the present number, the present number is multiplied by `shrink` instead. Losses that are not
    finite are left out. Until the mean is above 0, the number stays, and no loss is the first one.

    Args:
        first: Local steps at first, at least 1.
        seconds: Seconds, on rank 0's clock, from one change to the next.
        shrink: Factor in (0, 1) of the number of steps where the loss does not ask for fewer.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.

    Reference:
        Wang and Joshi, Adaptive Communication Strategies to Achieve the Best Error-Runtime
        Trade-off in Local-Update SGD, MLSys 2019, https://arxiv.org/abs/1810.08313, section 4.
    """

    first: int
    seconds: float = 60.0
    shrink: float = 0.5

    def __post_init__(self) -> None:
        self._keep(
            first=checked_count("AdaComm first", self.first, low=1, high=MOST_LOCAL_STEPS),
            seconds=checked_number("AdaComm seconds", self.seconds, above=True),
            shrink=checked_number("AdaComm shrink", self.shrink, below=1, above=True),
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Outer(Part):
    """The optimizer of the common weights, which takes a step at each meeting.

    The average difference is its gradient. By default the common weights move by just that, which
    averages the ranks' weights. DiLoCo takes `Outer(lr=0.7, momentum=0.9, nesterov=True)`.

    Args:
        lr: Learning rate, above 0.
        momentum: Momentum in [0, 1), as of torch.optim.SGD.
        nesterov: True for Nesterov's momentum.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.

    Reference:
        Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
        https://arxiv.org/abs/2311.08105.
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        self._keep(
            lr=checked_number("Outer lr", self.lr, above=True),
            momentum=checked_number("Outer momentum", self.momentum, below=1),
        )
        checked_choice("Outer nesterov", self.nesterov, (True, False))
        if self.nesterov and not self.momentum:
            raise InvalidArgumentError("Outer nesterov needs a momentum above 0, got momentum 0")


AVERAGES = Outer()


@dataclass(frozen=True, kw_only=True, repr=False)
class LocalSteps(Part):
    """Each rank takes steps with its own gradients; then the ranks meet.

    At a meeting, the difference between each rank's weights and the last common ones takes the
    place of the gradient: it joins the residual, and what is exchanged moves the common weights,
    with which all ranks continue. Statistics of batch normalisation stay each rank's own.

    In a streaming meeting, fragments of the model meet in turn, at steps that are spread over the
    interval, and each rank goes on stepping while a fragment is in flight: it keeps what it has
    done since its difference was taken.

    Args:
        every: Steps from one meeting to the next, at least 2; an AdaComm, which changes their
            number as the loss falls; or "auto". With an adaptive compression in PyTorch, that
            plans fragments, delay and what is sent, too, such that a loss is predicted to be
            reached first (docs/learning.md); else it is as few, up to 32, as make meetings take
            a tenth of the time.
        outer: The optimizer of the common weights.
        lr_scale: Factor of the optimizer's learning rates in local steps, above 0. "auto": 1.5
            times the square root of the number of ranks, but at most 3, for optimizers that divide
            gradients by their size (Adam, AdamW, NAdam, RAdam, Adamax); 1 for others, and in
            TensorFlow. One rank's gradient is noisier than that of all, so that such optimizers
            take smaller steps along what the ranks have in common.
        moments: "local": the moments of the ranks' optimizers stay their own; "averaged": each
            meeting averages them, as a dense sum of the host's.
        fragments: Parts of the model, of about the same size, each of which meets every `every`
            steps, at a step of its own; in [1, every]. PyTorch only.
        delay: Steps that a rank takes while a fragment's differences are in flight; then their
            average moves the common weights. At most every / fragments: one fragment is in flight
            at a time. 0: the step waits. PyTorch only.

    Raises:
        InvalidArgumentError: An argument lies outside its limits, or `fragments` or `delay` are
            given with averaged moments, or with a rule for the number of steps.

    Reference:
        Douillard et al., Streaming DiLoCo with overlapping communication: Towards a Distributed
        Free Lunch, https://arxiv.org/abs/2501.18512.
    """

    every: int | str | AdaComm
    outer: Outer = AVERAGES
    lr_scale: float | str = AUTO
    moments: str = LOCAL
    fragments: int = 1
    delay: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.every, AdaComm) and self.every != AUTO:
            every = checked_count("LocalSteps every", self.every, low=2, high=MOST_LOCAL_STEPS)
            self._keep(every=every)
        checked_kind("LocalSteps outer", self.outer, Outer)
        checked_choice("LocalSteps moments", self.moments, (LOCAL, AVERAGED))
        if self.lr_scale != AUTO:
            scale = checked_number("LocalSteps lr_scale", self.lr_scale, above=True)
            self._keep(lr_scale=scale)
        longest = self.every if isinstance(self.every, int) else MOST_LOCAL_STEPS
        fragments = checked_count("LocalSteps fragments", self.fragments, low=1, high=longest)
        most = longest // fragments
        self._keep(
            fragments=fragments,
            delay=checked_count("LocalSteps delay", self.delay, low=0, high=most),
        )
        if self.streams:
            self._check_streaming()

    def _check_streaming(self) -> None:
        streams = f"{self.fragments} fragments and a delay of {self.delay}"
        if not isinstance(self.every, int):
            raise InvalidArgumentError(
                f"LocalSteps every must be a number with fragments or a delay, got {self.every!r} "
                f"with {streams}"
            )
        if self.moments != LOCAL:
            raise InvalidArgumentError(
                f"LocalSteps moments must be {LOCAL!r} with fragments or a delay, since they are "
                f"averaged in one sum that steps wait for, got {self.moments!r} with {streams}"
            )

    @property
    def streams(self) -> bool:
        """True if meetings stream: in fragments, or while the ranks take their next steps."""
        return self.fragments > 1 or self.delay > 0

    @property
    def first(self) -> int:
        """The number of local steps before the first meeting."""
        if isinstance(self.every, AdaComm):
            return self.every.first
        return _AUTO_FIRST if isinstance(self.every, str) else self.every
