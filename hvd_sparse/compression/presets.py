"""The presets: what a user passes as `compression=`, named after the papers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_sparse.compression.base import (
    FEEDBACK,
    LAYERS,
    Compression,
    SparseCompression,
)
from hvd_sparse.compression.checks import (
    checked_choice,
    checked_density,
    checked_kind,
    checked_number,
)
from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.compression.local_steps import LOCAL
from hvd_sparse.compression.parts import (
    KEEP,
    VALUES,
    Adaptive,
    Collective,
    Feedback,
    Layers,
    RobustAverage,
    Warmup,
)
from hvd_sparse.compression.sparsifiers import Sparsifier, as_sparsifier
from hvd_sparse.errors import InvalidArgumentError

_GAUSSIAN = as_sparsifier("gaussian")
_ONE_SIGN = as_sparsifier("one_sign")
_WHOLE_MODEL = replace(LAYERS, layer_wise=False)
_BUCKET_PER_LAYER = replace(LAYERS, bucket_numel=1)
_ALL_TENSORS = replace(LAYERS, min_numel=0)
_KEEPS_MOMENTUM = replace(FEEDBACK, momentum=KEEP)
_WARMUP = Warmup(steps=50, densities=(0.25, 0.0625, 0.015625))
_ADAPTIVE = Adaptive()
_ANY_COLLECTIVE = Collective()
_GTOPK = Collective(name="gtopk")


@dataclass(frozen=True, kw_only=True, repr=False)
class LAGS(SparseCompression):
    """Layer-wise adaptive gradient sparsification: each layer is exchanged during backward.

    The first steps are dense, while the layers, the machine and the network are measured. Then
    layers are merged, and each gets the largest density, at least `density`, whose exchange hides
    behind the backward pass. Dense and sparse steps are timed against each other; if sparse ones
    are not shorter by a margin, gradients stay dense, and a warning says so. `adaptive=False`
    disables all of that. Density and warm-up are those with which small models learned as much per
    step as with dense gradients (docs/learning.md).

    Reference:
        Shi et al., Layer-wise Adaptive Gradient Sparsification for Distributed Deep Learning with
        Convergence Guarantees, ECAI 2020, https://arxiv.org/abs/1911.08727.
    """

    density: float = 0.01
    warmup: Warmup | None = _WARMUP
    sparsifier: Sparsifier | str = _GAUSSIAN
    collective: Collective | str = _ANY_COLLECTIVE
    adaptive: Adaptive | bool = _ADAPTIVE

    rescales_by_default: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True, repr=False)
class GTopK(SparseCompression):
    """Global top-k: the whole model at once, reduced to k entries in log2 P rounds.

    Reference:
        Shi et al., A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low
        Bandwidth Networks, ICDCS 2019, https://arxiv.org/abs/1901.04359.
    """

    collective: Collective | str = _GTOPK
    layers: Layers = _WHOLE_MODEL


@dataclass(frozen=True, kw_only=True, repr=False)
class GaussianK(SparseCompression):
    """Entries above a threshold estimated from the gradient's mean and deviation, allgathered.

    Reference:
        Shi et al., Understanding Top-k Sparsification in Distributed Deep Learning,
        https://arxiv.org/abs/1911.08772.
    """

    sparsifier: Sparsifier | str = _GAUSSIAN


@dataclass(frozen=True, kw_only=True, repr=False)
class TopK(SparseCompression):
    """The exact k largest entries of each layer, allgathered.

    Reference:
        Aji and Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017,
        https://arxiv.org/abs/1704.05021.
    """


@dataclass(frozen=True, kw_only=True, repr=False)
class SBC(Compression):
    """Sparse binary compression: the positions of a layer's entries, and one number for all.

    Each rank sends the largest entries of one sign, of whichever sign has the larger mean, as that
    mean. Entries of the other sign wait, and what is rounded away stays in the residual and joins
    the next gradient (error feedback). So an entry takes about 9 bits at density .01, and none of
    them are its value's. A layer is a bucket of its own. The paper's delay, to exchange after
    several steps, is `local_steps`.

    Args:
        density: Fraction of each gradient's entries that a rank sends, in (0, 1].
        warmup: Larger densities for the first steps.

    Also layers, feedback and local_steps, see Compression.

    Raises:
        InvalidArgumentError: An argument lies outside its limits, or `layers` has a bucket_numel:
            one number is sent for all entries of a layer.

    Reference:
        Sattler, Wiedemann, Mueller, Samek, Sparse Binary Compression: Towards Distributed Deep
        Learning with Minimal Communication, IJCNN 2019, https://arxiv.org/abs/1805.08768.
    """

    density: float = 0.01
    warmup: Warmup | None = None
    layers: Layers = _BUCKET_PER_LAYER

    always_shown: ClassVar[tuple[str, ...]] = ("density",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keep(density=checked_density("density", self.density))
        if self.warmup is not None:
            checked_kind("warmup", self.warmup, Warmup)
        if self.layers.layer_wise and self.layers.bucket_numel != 1:
            raise InvalidArgumentError(
                "Layers bucket_numel of SBC must be 1: one number is sent for entries of one "
                f"layer, got {self.layers.bucket_numel}"
            )

    @property
    def sparsifier(self) -> Sparsifier | str:
        """Method that selects the entries: those of one sign."""
        return _ONE_SIGN

    @property
    def collective(self) -> str:
        """Method that exchanges the entries; no sum is sent."""
        return "allgather"

    @property
    def values(self) -> str:
        """Type of values in messages: one number for all."""
        return "binary"

    @property
    def indices(self) -> str:
        """Encoding of positions in messages."""
        return "packed"


@dataclass(frozen=True, kw_only=True, repr=False)
class Dense(Compression):
    """The dense sum of all gradients by this package's own collective.

    Every entry of every gradient is sent: in 4 bytes as "float32", in 2 as "bfloat16" or "float16",
    in about 1 as "int8" and about half of one as "int4". As in any dense allreduce, each entry is
    sent about twice: to the rank that adds it up, and from there as a sum. What a narrow type of
    `values` rounds away stays in the residual and joins the next gradient (error feedback), so
    nothing is lost. Tensors of any size and any number of dimensions are exchanged in this way, and
    the optimizer keeps its own momentum.

    Args:
        values: Type of values in messages: "float32", "bfloat16", "float16", "int8" or "int4"; of
            the last two, 64 share a scale.
        average: A RobustAverage, or its rule alone, such as "multi_krum", which bears one bad rank;
            None: the mean. What a rule leaves out is gone, as is the rounding error of its average:
            the conservation law does not hold (docs/robust.md).

    Also layers, feedback and local_steps, see Compression.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
    """

    values: str = "float32"
    average: RobustAverage | str | None = None
    layers: Layers = _ALL_TENSORS
    feedback: Feedback = _KEEPS_MOMENTUM

    always_shown: ClassVar[tuple[str, ...]] = ("values",)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_choice("values", self.values, VALUES)
        if self.average is not None:
            self._check_robust()

    def _check_robust(self) -> None:
        """Raises InvalidArgumentError for what a rule cannot average, or a sum would, beside it."""
        given = self.average
        rule = RobustAverage(rule=given) if isinstance(given, str) else given
        self._keep(average=checked_kind("average", rule, RobustAverage))
        moments = LOCAL if self.local_steps is None else self.local_steps.moments
        every = self.feedback.quality_every
        for name, fits, needed in (
            ("values", self.values != "int4", f"of 8 bits or more, got {self.values!r}"),
            ("Layers min_numel", not self.layers.min_numel, f"0, got {self.layers.min_numel}"),
            ("LocalSteps moments", moments == LOCAL, f"{LOCAL!r}, got {moments!r}"),
            ("Feedback quality_every", every is None, f"None, got {every}"),
        ):
            if not fits:
                raise InvalidArgumentError(f"{name} with a robust average must be {needed}")

    @property
    def collective(self) -> str:
        """Method that exchanges the entries: the dense sum, or a rule in its place."""
        return self.average.rule if isinstance(self.average, RobustAverage) else SHARD_SUM

    @property
    def collective_options(self) -> dict[str, float]:
        """Options of collectives, by name, as the core and the cost models take them."""
        average = self.average
        return {"bad_ranks": average.bad_ranks} if isinstance(average, RobustAverage) else {}


@dataclass(frozen=True, kw_only=True, repr=False)
class ThreeLC(Compression):
    """3LC: each entry as -1, 0 or 1 times a scale that many entries share, and zeros as runs.

    An entry takes 1.6 bits at most, and fewer where many in a row round to zero. Like those of
    `Dense`, it is sent about twice, and what is rounded away stays in the residual and joins the
    next gradient (error feedback).

    Args:
        scale: Factor in [1, 2): the scale is the largest magnitude times this. A larger one sends
            more zeros, in fewer bytes. The paper calls it the sparsity multiplier.

    Also layers, feedback and local_steps, see Compression.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.

    Reference:
        Lim, Andersen, Kaminsky, 3LC: Lightweight and Effective Traffic Compression for Distributed
        Machine Learning, MLSys 2019, https://arxiv.org/abs/1802.07389.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keep(scale=checked_number("scale", self.scale, low=1, below=2))

    @property
    def values(self) -> str:
        """Type of values in messages: -1, 0 or 1 times a scale."""
        return "ternary"

    @property
    def collective_options(self) -> dict[str, float]:
        """Options of collectives, by name, as the core and the cost models take them."""
        return super().collective_options | {"scale": self.scale}


def is_sparse_compression(value: object) -> bool:
    """Returns true if `value` is one of this package's compressions, as a class or an instance."""
    if isinstance(value, type):
        return issubclass(value, Compression)
    return isinstance(value, Compression)


def as_compression(value: object) -> Compression:
    """Returns the compression that `value` denotes: an instance, or a class with its defaults.

    Raises:
        InvalidArgumentError: It is not one of this package's compressions.
    """
    if isinstance(value, Compression):
        return value
    if isinstance(value, type) and issubclass(value, Compression):
        return value()
    kind = value if isinstance(value, type) else type(value)
    raise InvalidArgumentError(
        "compression must be one of hvd_sparse's (LAGS, GTopK, GaussianK, TopK, SBC, Dense, "
        "ThreeLC; a class or an instance) or one of Horovod's, got "
        f"{kind.__module__}.{kind.__qualname__}"
    )
