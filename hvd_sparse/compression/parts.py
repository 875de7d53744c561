"""The parts that compressions are made of: what belongs together, in one object that checks itself.

The options of `Layers`, and Feedback's `momentum`, are the preset's own where they are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from hvd_sparse.compression.checks import (
    checked_choice,
    checked_count,
    checked_density,
    checked_number,
)
from hvd_sparse.compression.collectives import COLLECTIVES, RULES
from hvd_sparse.errors import InvalidArgumentError

# The value of an option that is chosen for the user.
AUTO = "auto"

# The value of an option that the user leaves to the preset.
_OWN: Any = None

MAX_BUCKET_NUMEL = 2**31 - 1

INDICES = ("plain", "packed")
# Types of values that sparse messages and dense sums both can have.
VALUES = ("float32", "bfloat16", "float16", "int8", "int4")

# What becomes of the optimizer's momentum: each rank applies it before the exchange, or the
# optimizer does, after it.
MOVE, KEEP = "move", "keep"

# Lower limit of Adaptive's `every`; measuring, planning and comparing take fewer steps.
_LEAST_EVERY = 100


class Part:
    """Base of the parts, and of the compressions themselves: frozen dataclasses.

    Attributes:
        always_shown: Options that the representation shows first, even if they are the default.
    """

    always_shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        others = [
            one.name
            for one in fields(self)  # type: ignore[arg-type]
            if one.name not in self.always_shown and getattr(self, one.name) != one.default
        ]
        shown = [f"{name}={getattr(self, name)!r}" for name in (*self.always_shown, *others)]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _keep(self, **checked: Any) -> None:
        for name, value in checked.items():
            object.__setattr__(self, name, value)


_P = TypeVar("_P", bound=Part)


def completed(part: _P, own: _P) -> _P:
    """Returns a part whose options that are None have the values of the preset's own part."""
    names = [one.name for one in fields(own)]  # type: ignore[arg-type]
    missing = {name: getattr(own, name) for name in names if getattr(part, name) is None}
    return replace(part, **missing)  # type: ignore[type-var]


@dataclass(frozen=True, kw_only=True, repr=False)
class Warmup(Part):
    """Larger densities for the first steps, when gradients change fastest.

    Args:
        steps: Number of steps for which each density holds; an epoch, in the paper.
        densities: The densities in their order, each in (0, 1]; the compression's own density is
            their lower limit.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.

    Reference:
        Lin et al., Deep Gradient Compression, https://arxiv.org/abs/1712.01887, section 3.3.
    """

    steps: int
    densities: Sequence[float] = (0.25, 0.0625, 0.015625, 0.004)

    def __post_init__(self) -> None:
        if isinstance(self.densities, str) or not isinstance(self.densities, Sequence):
            raise InvalidArgumentError(
                f"Warmup densities must be a sequence of numbers, got {self.densities!r}"
            )
        self._keep(
            steps=checked_count("Warmup steps", self.steps, low=1, high=2**62),
            densities=tuple(checked_density("a Warmup density", one) for one in self.densities),
        )

    def density_at(self, step: int, final: float) -> float:
        """Returns the density of a step, counted from 0; `final` once the warm-up is over."""
        stage = step // self.steps
        return max(self.densities[stage], final) if stage < len(self.densities) else final

    def largest(self, final: float) -> float:
        """Returns the largest density of any step."""
        return max((*self.densities, final))


@dataclass(frozen=True, kw_only=True, repr=False)
class Collective(Part):
    """The method that exchanges entries between the ranks.

    Args:
        name: "allgather", "recursive_doubling", "shard_topk" or "gtopk". "auto": the fastest one,
            by the plan, of all but gtopk, which applies k entries in all, so that the ranks'
            entries wait longer; "allgather" without a plan.
        nodes_first: True if the ranks of a node add up their residuals first; k entries of the
            node's sum are then selected, and exchanged between nodes. Takes gradients on the CPU,
            and as many ranks on each node. "auto": where that is faster, by the plan; False without
            a plan.
        slack: Factor, at least 1: the middle rounds of gtopk keep slack * k entries. The result is
            nearer to the exact top-k of the sum, and those rounds send as many times the bytes.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
    """

    name: str = AUTO
    nodes_first: bool | str = AUTO
    slack: float = 1.0

    always_shown: ClassVar[tuple[str, ...]] = ("name",)

    def __post_init__(self) -> None:
        checked_choice("collective", self.name, (AUTO, *COLLECTIVES))
        checked_choice("Collective nodes_first", self.nodes_first, (True, False, AUTO))
        self._keep(slack=checked_number("Collective slack", self.slack, low=1))
        if self.slack != 1 and self.name != "gtopk":
            raise InvalidArgumentError(
                f"Collective slack is an option of 'gtopk', got {self.slack} for {self.name!r}"
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class Wire(Part):
    """The form of entries in messages.

    Args:
        values: Type of values: "float32", "bfloat16" or "float16"; "int8" or "int4", of which 64
            share a scale. The rounding errors of a narrow type stay in the residual. "auto": the
            fastest one, by the plan, of float32 and int4, or of float32, bfloat16 and int8 where
            the plan sums dense; "float32" without a plan.
        indices: Encoding of positions: "plain" (4 bytes each) or "packed" (about
            2 + log2(1 / density) bits each). "auto": the faster one, by the plan; "plain" without
            a plan.

    Raises:
        InvalidArgumentError: An argument is none of these.
    """

    values: str = AUTO
    indices: str = AUTO

    def __post_init__(self) -> None:
        checked_choice("Wire values", self.values, (AUTO, *VALUES))
        checked_choice("Wire indices", self.indices, (AUTO, *INDICES))


@dataclass(frozen=True, kw_only=True, repr=False)
class RobustAverage(Part):
    """An average that ranks with finite but wrong gradients cannot steer, in place of the mean.

    Args:
        rule: With n ranks and f of them bad: "median": of the n values of each entry, for
            n >= 2 f + 1. "trimmed_mean": without the f least and the f largest of these, for
            n >= 2 f + 1. "krum": the gradient of the rank that is nearest to its n - f - 2 nearest
            others; "multi_krum": the mean of the n - f - 2 best such ranks; both for n >= 2 f + 3.
            "bulyan": the mean of the n - 4 f values of each entry that are nearest to their median,
            among n - 2 f ranks that krum chooses, for n >= 4 f + 3. Distances are those of a
            bucket's gradients.
        bad_ranks: f, the number of bad ranks that the average bears, at least 1.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.

    References:
        Yin et al., ICML 2018, https://arxiv.org/abs/1803.01498 (median, trimmed mean). Blanchard et
        al., NeurIPS 2017, https://arxiv.org/abs/1703.02757 (Krum). El Mhamdi et al., ICML 2018,
        https://arxiv.org/abs/1802.07927 (Bulyan). Damaskinos et al., AggregaThor, MLSys 2019.
    """

    rule: str
    bad_ranks: int = 1

    always_shown: ClassVar[tuple[str, ...]] = ("rule",)

    def __post_init__(self) -> None:
        checked_choice("RobustAverage rule", self.rule, RULES)
        count = checked_count("RobustAverage bad_ranks", self.bad_ranks, low=1, high=1 << 16)
        self._keep(bad_ranks=count)


@dataclass(frozen=True, kw_only=True, repr=False)
class Adaptive(Part):
    """Densities, buckets and collectives are chosen from measured times.

    Args:
        rule: The density of a layer: "simulated" (the largest with which the step takes no longer,
            by a simulation of the step) or "paper" (the largest whose exchange hides behind the
            next layer's backward pass).
        every: Number of steps, at least 100, after which layers and steps are timed and planned
            again. "auto": as many as keep the cost below a hundredth of the time.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
    """

    rule: str = "simulated"
    every: int | str = AUTO

    RULES: ClassVar[tuple[str, ...]] = ("simulated", "paper")

    def __post_init__(self) -> None:
        checked_choice("Adaptive rule", self.rule, self.RULES)
        if self.every != AUTO:
            every = checked_count("Adaptive every", self.every, low=_LEAST_EVERY, high=2**62)
            self._keep(every=every)


@dataclass(frozen=True, kw_only=True, repr=False)
class Layers(Part):
    """Which tensors take part, and how they are put together.

    Args:
        min_numel: Tensors with fewer elements, and all with less than two dimensions, are exchanged
            dense by the host. 0: none is, whatever its dimensions.
        layer_wise: True if entries are selected per layer, in buckets that are exchanged during the
            backward pass. Otherwise they are selected once, over the whole model, after it.
        bucket_numel: Layers are merged into buckets of at most that many elements, unless a plan
            says otherwise; a larger layer is a bucket of its own. PyTorch takes it in slices of
            that many, 50,000 at least, for a dense sum.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
    """

    min_numel: int = _OWN
    layer_wise: bool = _OWN
    bucket_numel: int = _OWN

    def __post_init__(self) -> None:
        limits = (("min_numel", 0, 2**62), ("bucket_numel", 1, MAX_BUCKET_NUMEL))
        for name, low, high in limits:
            if (value := getattr(self, name)) is not None:
                self._keep(**{name: checked_count(f"Layers {name}", value, low=low, high=high)})
        checked_choice("Layers layer_wise", self.layer_wise, (None, True, False))


@dataclass(frozen=True, kw_only=True, repr=False)
class Feedback(Part):
    """What each rank does with its gradient before the exchange, and with what it does not send.

    Args:
        momentum: "move": each rank applies the optimizer's momentum to its own gradient before that
            joins the residual, in place of the optimizer: the beta1 of Adam, AdamW, NAdam, RAdam
            and Adamax (Keras: Adam, AdamW, Nadam and Adamax), which is 0 while the optimizer steps,
            or the momentum of SGD, whose velocity keeps what was delivered; other optimizers keep
            theirs. "keep": the optimizer keeps its momentum. A number in [0, 1): the momentum of
            Deep Gradient Compression, whose velocity loses what was delivered (momentum factor
            masking), and the optimizer must have none; 0 is "keep".
        clip_norm: Limit for the norm of each tensor's result; each rank first clips its own
            gradient to clip_norm / sqrt(ranks). None: no limit.
        weight_decay: Factor of the weights that are added to each gradient (after clipping, before
            momentum), in place of the optimizer's weight decay.
        decay: Factor in (0, 1] of the residual before each step's gradient is added. Below 1, what
            is not sent in time is partly forgotten: the conservation law does not hold.
        rescale: True if the residual follows a change of the learning rate, as in LAGS's paper.
            "auto": with LAGS, if the optimizer is SGD without momentum and clipping. With momentum,
            a rate that jumps up again makes training diverge.
        quality_every: Number of steps between two measurements of how much selection leaves behind,
            see hvd_sparse.stats.quality; each costs a dense allreduce. None: never.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.

    Reference:
        Momentum, masking and clipping: Lin et al., Deep Gradient Compression, ICLR 2018,
        https://arxiv.org/abs/1712.01887, section 3.
    """

    momentum: float | str = _OWN
    clip_norm: float | None = None
    weight_decay: float = 0.0
    decay: float = 1.0
    rescale: bool | str = AUTO
    quality_every: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.momentum, str):
            checked_choice("Feedback momentum", self.momentum, (MOVE, KEEP))
        elif self.momentum is not None:
            self._keep(momentum=checked_number("Feedback momentum", self.momentum, below=1))
        if self.clip_norm is not None:
            self._keep(clip_norm=checked_number("Feedback clip_norm", self.clip_norm, above=True))
        if self.quality_every is not None:
            every = checked_count("Feedback quality_every", self.quality_every, low=1, high=2**62)
            self._keep(quality_every=every)
        decay = checked_number("Feedback decay", self.decay, above=True)
        if decay > 1:
            raise InvalidArgumentError(f"Feedback decay must lie in (0, 1], got {decay}")
        weight_decay = checked_number("Feedback weight_decay", self.weight_decay)
        self._keep(decay=decay, weight_decay=weight_decay)
        checked_choice("Feedback rescale", self.rescale, (True, False, AUTO))

    @property
    def changes_gradients(self) -> bool:
        """True if a rank changes its gradients before it exchanges them, even if it is alone."""
        return bool(self.own_momentum or self.weight_decay or self.clip_norm)

    @property
    def own_momentum(self) -> float:
        """The momentum that was given as a number; 0 if it is the optimizer's."""
        return self.momentum if isinstance(self.momentum, float) else 0.0
