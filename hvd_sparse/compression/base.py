"""What presets have in common: their options, and what the other layers ask of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

from hvd_sparse.compression.checks import (
    checked_choice,
    checked_density,
    checked_kind,
)
from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.compression.local_steps import LocalSteps
from hvd_sparse.compression.parts import (
    KEEP,
    MOVE,
    Adaptive,
    Collective,
    Feedback,
    Layers,
    Part,
    Warmup,
    Wire,
    completed,
)
from hvd_sparse.compression.sparsifiers import Sparsifier, as_sparsifier
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError

_TOP_K = as_sparsifier("top_k")

LAYERS = Layers(min_numel=1024, layer_wise=True, bucket_numel=4 << 20)
FEEDBACK = Feedback(momentum=MOVE)
_WIRE = Wire()
_ALLGATHER = Collective(name="allgather")


@dataclass(frozen=True, kw_only=True, repr=False)
class Compression(Part):
    """How gradients are exchanged, and in which form; the base of all presets.

    LAGS, GTopK, GaussianK, TopK and SBC send few entries; Dense and ThreeLC send all of them. The
    properties are those of a dense sum of float32, where a preset has no others.

    Args:
        layers: Which tensors take part, and how they are put together.
        feedback: What a rank does with its gradient before the exchange, and with the residual.
        local_steps: Steps that each rank takes with its own gradients before the ranks meet: a
            LocalSteps, or its `every` alone (a number, "auto", an AdaComm). 1 or None: the ranks
            exchange the gradients of every step.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
    """

    layers: Layers = LAYERS
    feedback: Feedback = FEEDBACK
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
    def collective(self) -> Collective | str:
        """Method that exchanges the entries."""
        return SHARD_SUM

    @property
    def adaptive(self) -> Adaptive | bool:
        """Rule by which measured times determine what is sent; False if there is none."""
        return False

    @property
    def values(self) -> str:
        """Type of values in messages."""
        return "float32"

    @property
    def indices(self) -> str:
        """Encoding of positions in messages."""
        return "plain"

    @property
    def collective_name(self) -> str:
        """Name of the collective, or "auto"."""
        return self.collective if isinstance(self.collective, str) else self.collective.name

    @property
    def collective_options(self) -> dict[str, float]:
        """Options of collectives, by name, as the core and the cost models take them."""
        return {} if isinstance(self.collective, str) else {"slack": self.collective.slack}

    @property
    def nodes_first(self) -> bool | str:
        """True if selection and exchange follow a sum of each node's ranks, or "auto"."""
        return False if isinstance(self.collective, str) else self.collective.nodes_first

    @property
    def is_local(self) -> bool:
        """True if ranks take local steps."""
        return self.local_steps is not None

    @property
    def fragments(self) -> int:
        """Number of fragments that are exchanged at steps of their own."""
        return self.local_steps.fragments if self.is_local else 1

    def __post_init__(self) -> None:
        own = type(self)
        if own is Compression:
            raise InvalidArgumentError(
                "Compression is the base of the presets: take LAGS, TopK, Dense or another"
            )
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
        steps = math.ceil(self.warmup.steps * self.fragments / self.local_steps.first)
        warmup = replace(self.warmup, steps=steps)
        return replace(self, feedback=feedback, warmup=warmup)  # type: ignore[call-arg]

    def settled(self) -> Compression:
        """Returns the compression without its warm-up."""
        return self if self.warmup is None else replace(self, warmup=None)  # type: ignore[call-arg]

    def takes(self, shape: Sequence[int]) -> bool:
        """Returns true if tensors of a shape may take part; others are always sent dense."""
        least = self.layers.min_numel
        return least == 0 or (len(shape) >= 2 and math.prod(shape) >= least)

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
        collective: Method that exchanges them: a Collective, or its name alone ("gtopk").
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
    collective: Collective | str = _ALLGATHER
    adaptive: Adaptive | bool = False
    wire: Wire | str = _WIRE

    always_shown: ClassVar[tuple[str, ...]] = ("density",)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.collective
        collective = Collective(name=given) if isinstance(given, str) else given
        if self.warmup is not None:
            checked_kind("warmup", self.warmup, Warmup)
        wire = Wire(values=self.wire) if isinstance(self.wire, str) else self.wire
        self._keep(
            density=checked_density("density", self.density),
            sparsifier=as_sparsifier(self.sparsifier),
            collective=checked_kind("collective", collective, Collective),
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
        if self.adaptive and self.fragments > 1:
            raise InvalidArgumentError(
                "adaptive must be False where local steps meet in fragments, which a plan would "
                f"merge, got {self.fragments} fragments"
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


def _local_steps_of(given: Any) -> LocalSteps | None:
    """Returns the local steps that an option denotes; None if the ranks meet at every step."""
    if given is None or isinstance(given, LocalSteps):
        return given
    if given == 1 and not isinstance(given, bool):
        return None
    return LocalSteps(every=given)
