"""Compressions: what a user passes as `compression=`, named after the papers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

from hvd_sparse.compression.checks import (
    checked_choice,
    checked_density,
    checked_kind,
    checked_number,
)
from hvd_sparse.compression.collectives import COLLECTIVES, SHARD_SUM
from hvd_sparse.compression.parts import (
    AUTO,
    KEEP,
    MOVE,
    VALUES,
    Adaptive,
    Feedback,
    GTopKMerge,
    Layers,
    LocalSteps,
    Part,
    Warmup,
    Wire,
    completed,
)
from hvd_sparse.compression.sparsifiers import Sparsifier, as_sparsifier
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError

_TOP_K = as_sparsifier("top_k")
_GAUSSIAN = as_sparsifier("gaussian")
_ONE_SIGN = as_sparsifier("one_sign")
_GTOPK = "gtopk"

_LAYERS = Layers(min_numel=1024, layer_wise=True, bucket_numel=4 << 20)
_WHOLE_MODEL = replace(_LAYERS, layer_wise=False)
_BUCKET_PER_LAYER = replace(_LAYERS, bucket_numel=1)
_ALL_TENSORS = replace(_LAYERS, min_numel=0)
_FEEDBACK = Feedback(momentum=MOVE)
_KEEPS_MOMENTUM = replace(_FEEDBACK, momentum=KEEP)
_WARMUP = Warmup(steps=50, densities=(0.25, 0.0625, 0.015625))
_WIRE = Wire()
_ADAPTIVE = Adaptive()


@dataclass(frozen=True, kw_only=True, repr=False)
class Compression(Part):
    """How gradients are exchanged, and in which form; the base of all presets.

    LAGS, GTopK, GaussianK, TopK and SBC send few entries; Dense and ThreeLC send all of them.

    Args:
        layers: Which tensors take part, and how they are put together.
        feedback: What a rank does with its gradient before the exchange, and with the residual.
        local_steps: Steps that each rank takes with its own gradients before the ranks meet: a
            LocalSteps, or its `every` alone (a number, "auto", an AdaComm). 1 or None: the ranks
            exchange the gradients of every step.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
    """

    layers: Layers = _LAYERS
    feedback: Feedback = _FEEDBACK
    local_steps: LocalSteps | Any = None

    rescales_by_default: ClassVar[bool] = False

    @property
    def density(self) -> float:
        """Fraction of a gradient's entries that a rank sends; if adaptive, the least."""
        return 1.0

    @property
    def warmup(self) -> Warmup | None:
        """Larger densities for the first steps."""
        return None

    @property
    def sparsifier(self) -> Sparsifier | str:
        """Method that selects the entries."""
        return _TOP_K

    @property
    def collective(self) -> str | GTopKMerge:
        """Method that exchanges the entries."""
        return SHARD_SUM

    @property
    def adaptive(self) -> Adaptive | bool:
        """Rule by which measured times determine what is sent; False if there is none."""
        return False

    @property
    def values(self) -> str:
        """Type of values in messages."""
        raise NotImplementedError

    @property
    def indices(self) -> str:
        """Encoding of positions in messages."""
        return "plain"

    @property
    def collective_name(self) -> str:
        """Name of the collective, or "auto"."""
        return _GTOPK if isinstance(self.collective, GTopKMerge) else self.collective

    @property
    def collective_options(self) -> dict[str, float]:
        """Options of collectives, by name, as the core and the cost models take them."""
        slack = self.collective.slack if isinstance(self.collective, GTopKMerge) else 1.0
        return {"slack": slack, "scale": 1.0}

    @property
    def is_local(self) -> bool:
        """True if ranks take local steps."""
        return self.local_steps is not None

    def __post_init__(self) -> None:
        own = type(self)
        self._keep(
            layers=completed(checked_kind("layers", self.layers, Layers), own.layers),
            feedback=completed(checked_kind("feedback", self.feedback, Feedback), own.feedback),
            local_steps=_local_steps_of(self.local_steps),
        )
        if self.is_local:
            self._check_differences()

    def _check_differences(self) -> None:
        """Raises InvalidArgumentError for what acts on gradients, where differences are sent."""
        given = self.feedback
        for name, acts in (
            ("momentum", bool(given.own_momentum)),
            ("clip_norm", given.clip_norm is not None),
            ("weight_decay", bool(given.weight_decay)),
            ("rescale", given.rescale is True),
        ):
            if acts:
                raise InvalidArgumentError(
                    f"Feedback {name} acts on gradients, and with local_steps differences of "
                    f"weights are exchanged: leave it to the optimizer, got {getattr(given, name)}"
                )

    def of_differences(self) -> Compression:
        """Returns the compression by which ranks that take local steps exchange differences.

        Differences of weights have the optimizer's momentum and its learning rate. A warm-up counts
        local steps.
        """
        feedback = replace(self.feedback, momentum=KEEP, rescale=False)
        if self.warmup is None:
            return replace(self, feedback=feedback)
        steps = math.ceil(self.warmup.steps / self.local_steps.first)
        warmup = replace(self.warmup, steps=steps)
        return replace(self, feedback=feedback, warmup=warmup)  # type: ignore[call-arg]

    def settled(self) -> Compression:
        """Returns the compression without its warm-up."""
        return self if self.warmup is None else replace(self, warmup=None)  # type: ignore[call-arg]

    def takes(self, shape: Sequence[int]) -> bool:
        """Returns true if tensors of a shape may take part; others are always sent dense."""
        least = self.layers.min_numel
        takes_all = self.collective == SHARD_SUM and least == 0
        return takes_all or (len(shape) >= 2 and math.prod(shape) >= least)

    @classmethod
    def compress(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises; called only if stock Horovod was given one of this package's compressions."""
        raise HvdSparseError(
            f"{cls.__name__} was given to stock Horovod: import hvd_sparse.torch (or "
            "hvd_sparse.tensorflow) before you take DistributedOptimizer from Horovod"
        )

    decompress = compress


@dataclass(frozen=True, kw_only=True, repr=False)
class SparseCompression(Compression):
    """Each rank sends the entries of its gradients that count most; the rest waits in the residual.

    Args:
        density: Fraction of each gradient's entries that a rank sends, in (0, 1]; if adaptive, the
            least of any layer.
        warmup: Larger densities for the first steps; meanwhile no layer has a smaller one.
        sparsifier: Method that selects the entries: a name ("top_k", "gaussian", "sampled",
            "sidco", "random_k"), or one of hvd_sparse.compression.sparsifiers with its options,
            such as HardThreshold(threshold=...).
        collective: Method that exchanges them: "allgather", "gtopk" (or GTopKMerge, with its
            option), "recursive_doubling", "split_allgather", "hierarchical", or "auto": the faster
            one, by the plan, of allgather and recursive_doubling, which apply all that the ranks
            select; "allgather" without a plan. The others apply k entries in all: for them the
            ranks' entries wait longer.
        adaptive: An Adaptive, or True for its defaults: measured times determine buckets, densities
            and collectives, and gradients are exchanged dense where that is faster. False:
            `density` holds for all layers.
        wire: Form of the entries in messages: a Wire, or its type of values alone ("int4").

    Also layers, feedback and local_steps, see Compression.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
    """

    density: float = 0.001
    warmup: Warmup | None = None
    sparsifier: Sparsifier | str = _TOP_K
    collective: str | GTopKMerge = "allgather"
    adaptive: Adaptive | bool = False
    wire: Wire | str = _WIRE

    always_shown: ClassVar[tuple[str, ...]] = ("density",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.collective, GTopKMerge):
            checked_choice("collective", self.collective, (AUTO, *COLLECTIVES))
        if self.warmup is not None:
            checked_kind("warmup", self.warmup, Warmup)
        wire = Wire(values=self.wire) if isinstance(self.wire, str) else self.wire
        self._keep(
            density=checked_density("density", self.density),
            sparsifier=as_sparsifier(self.sparsifier),
            wire=checked_kind("wire", wire, Wire),
        )
        if not isinstance(self.adaptive, Adaptive):
            wanted = checked_choice("adaptive", self.adaptive, (True, False))
            self._keep(adaptive=Adaptive() if wanted else False)
        if self.adaptive and not self.layers.layer_wise:
            raise InvalidArgumentError(
                "adaptive must be False where layers are not layer_wise: one unit has nothing to "
                "hide behind"
            )

    @property
    def values(self) -> str:
        """Type of values in messages, or "auto"."""
        assert isinstance(self.wire, Wire)
        return self.wire.values

    @property
    def indices(self) -> str:
        """Encoding of positions in messages, or "auto"."""
        assert isinstance(self.wire, Wire)
        return self.wire.indices


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
    collective: str | GTopKMerge = AUTO
    adaptive: Adaptive | bool = _ADAPTIVE

    rescales_by_default: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True, repr=False)
class GTopK(SparseCompression):
    """Global top-k: the whole model at once, reduced to k entries in log2 P rounds.

    Reference:
        Shi et al., A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low
        Bandwidth Networks, ICDCS 2019, https://arxiv.org/abs/1901.04359.
    """

    collective: str | GTopKMerge = _GTOPK
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
    def collective(self) -> str | GTopKMerge:
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
    the optimizer keeps its own momentum. Gradients are on the CPU.

    Args:
        values: Type of values in messages: "float32", "bfloat16", "float16", "int8" or "int4"; of
            the last two, 64 share a scale.

    Also layers, feedback and local_steps, see Compression.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
    """

    values: str = "float32"
    layers: Layers = _ALL_TENSORS
    feedback: Feedback = _KEEPS_MOMENTUM

    always_shown: ClassVar[tuple[str, ...]] = ("values",)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_choice("values", self.values, VALUES)


@dataclass(frozen=True, kw_only=True, repr=False)
class ThreeLC(Compression):
    """3LC: each entry as -1, 0 or 1 times a scale that many entries share, and zeros as runs.

    An entry takes 1.6 bits at most, and fewer where many in a row round to zero. Like those of
    `Dense`, it is sent about twice, and what is rounded away stays in the residual and joins the
    next gradient (error feedback). Gradients are on the CPU.

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
        return {"slack": 1.0, "scale": self.scale}


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


def _local_steps_of(given: Any) -> LocalSteps | None:
    """Returns the local steps that an option denotes; None if the ranks meet at every step."""
    if given is None or isinstance(given, LocalSteps):
        return given
    if given == 1 and not isinstance(given, bool):
        return None
    return LocalSteps(every=given)
