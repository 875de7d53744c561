"""Sparsifiers: how a rank chooses the entries that it sends. docs/selection.md compares them.

Each class stands for the file of its name in csrc/sparsifiers, which describes the method. A
compression takes a sparsifier by name, or as an instance with options:

    LAGS(sparsifier="sampled")
    LAGS(density=0.05, sparsifier=HardThreshold(threshold=1e-3))
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from numbers import Real
from typing import ClassVar

from hvd_sparse.compression.checks import checked_count
from hvd_sparse.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class Sparsifier:
    """Base of all sparsifiers.

    Attributes:
        name: Name in a compression, and in the core.
        bounds: The least and the most entries that it selects, as multiples of the k that it is
            asked for. If a layer has fewer non-zeros than the least, all of those are selected.
        reference: The publication.
    """

    name: ClassVar[str]
    bounds: ClassVar[tuple[float, float]]
    reference: ClassVar[str]

    @property
    def options(self) -> dict[str, float]:
        """The options in the form that the core takes."""
        return {name: float(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class TopK(Sparsifier):
    """The k largest magnitudes, exactly; ties go to the lower index."""

    name: ClassVar[str] = "top_k"
    bounds: ClassVar[tuple[float, float]] = (1, 1)
    reference: ClassVar[str] = (
        "Aji and Heafield, Sparse Communication for Distributed Gradient Descent, "
        "https://arxiv.org/abs/1704.05021"
    )


@dataclass(frozen=True, kw_only=True)
class Gaussian(Sparsifier):
    """Entries above a threshold that is estimated once and then corrected by the resulting counts.

    Args:
        refresh: Number of steps between exact refreshes of the threshold, at least 1.
    """

    refresh: int = 32

    name: ClassVar[str] = "gaussian"
    bounds: ClassVar[tuple[float, float]] = (2 / 3, 4 / 3)
    reference: ClassVar[str] = (
        "Shi et al., Understanding Top-k Sparsification in Distributed Deep Learning, "
        "https://arxiv.org/abs/1911.08772"
    )

    def __post_init__(self) -> None:
        """Checks the option."""
        object.__setattr__(
            self, "refresh", checked_count("refresh", self.refresh, low=1, high=2**20)
        )


@dataclass(frozen=True, kw_only=True)
class Sampled(Sparsifier):
    """Entries above a quantile of a sample that is drawn in every step.

    Args:
        fraction: Fraction of the entries that is sampled, in (0, 1]; more are drawn if that is too
            few.
    """

    fraction: float = 0.01

    name: ClassVar[str] = "sampled"
    bounds: ClassVar[tuple[float, float]] = (2 / 3, 4 / 3)
    reference: ClassVar[str] = (
        "Lin et al., Deep Gradient Compression, https://arxiv.org/abs/1712.01887"
    )

    def __post_init__(self) -> None:
        """Checks the option."""
        fraction = _checked_number("fraction", self.fraction)
        if not 0 < fraction <= 1:
            raise InvalidArgumentError(f"fraction must lie in (0, 1], got {fraction}")
        object.__setattr__(self, "fraction", fraction)


@dataclass(frozen=True, kw_only=True)
class Sidco(Sparsifier):
    """Entries above a threshold from a distribution that is fitted to the tail, in stages."""

    name: ClassVar[str] = "sidco"
    bounds: ClassVar[tuple[float, float]] = (2 / 3, 4 / 3)
    reference: ClassVar[str] = (
        "Abdelmoniem et al., An Efficient Statistical-based Gradient Compression Technique for "
        "Distributed Training Systems, https://arxiv.org/abs/2101.10761"
    )


@dataclass(frozen=True, kw_only=True)
class HardThreshold(Sparsifier):
    """Every entry beyond a constant, but at most the k largest: the density is an upper bound.

    Args:
        threshold: The threshold, in units of the gradient; positive and finite in float32.
    """

    threshold: float

    name: ClassVar[str] = "hard_threshold"
    bounds: ClassVar[tuple[float, float]] = (0, 1)
    reference: ClassVar[str] = (
        "Sahu et al., Rethinking gradient sparsification as total error minimization, "
        "https://arxiv.org/abs/2108.00951"
    )

    def __post_init__(self) -> None:
        """Checks the option."""
        threshold = _checked_number("threshold", self.threshold)
        if not 1e-45 < threshold < 3.4028235e38:
            raise InvalidArgumentError(
                f"threshold must be > 0 and finite in float32, got {threshold}"
            )
        object.__setattr__(self, "threshold", threshold)


@dataclass(frozen=True, kw_only=True)
class RandomK(Sparsifier):
    """Exactly k random entries, the same ones on every rank.

    Args:
        seed: Seed of the draws, an integer of at most 53 bits; the same on every rank.
    """

    seed: int = 0

    name: ClassVar[str] = "random_k"
    bounds: ClassVar[tuple[float, float]] = (1, 1)
    reference: ClassVar[str] = (
        "Stich, Cordonnier and Jaggi, Sparsified SGD with Memory, https://arxiv.org/abs/1809.07599"
    )

    def __post_init__(self) -> None:
        """Checks the option."""
        seed = checked_count("seed", self.seed, low=-(2**53), high=2**53)
        object.__setattr__(self, "seed", seed)


@dataclass(frozen=True, kw_only=True)
class OneSign(Sparsifier):
    """The largest entries of one sign, at most k: of the sign whose k largest have a larger mean.

    Entries that are smaller than half of their mean stay. This is the choice of binary values.
    """

    name: ClassVar[str] = "one_sign"
    bounds: ClassVar[tuple[float, float]] = (0, 1)
    reference: ClassVar[str] = (
        "Sattler et al., Sparse binary compression, https://arxiv.org/abs/1805.08768"
    )


SPARSIFIERS: dict[str, type[Sparsifier]] = {
    sparsifier.name: sparsifier
    for sparsifier in (TopK, Gaussian, Sampled, Sidco, HardThreshold, RandomK, OneSign)
}


def as_sparsifier(value: object) -> Sparsifier:
    """Returns the sparsifier that `value` denotes: an instance, or a name (with defaults).

    Raises:
        InvalidArgumentError: No sparsifier has that name, or it has an option without a default.
    """
    if isinstance(value, Sparsifier):
        return value
    if not isinstance(value, str) or value not in SPARSIFIERS:
        raise InvalidArgumentError(
            f"sparsifier must be one of {sorted(SPARSIFIERS)}, got {value!r}"
        )
    if value == HardThreshold.name:
        raise InvalidArgumentError(
            "sparsifier 'hard_threshold' needs a threshold: pass "
            "hvd_sparse.compression.sparsifiers.HardThreshold(threshold=...)"
        )
    return SPARSIFIERS[value]()


def _checked_number(name: str, number: object) -> float:
    if isinstance(number, bool) or not isinstance(number, Real):
        raise InvalidArgumentError(
            f"{name} must be a number, got {number!r} ({type(number).__name__})"
        )
    if math.isnan(float(number)):
        raise InvalidArgumentError(f"{name} must be a number, got {number}")
    return float(number)
