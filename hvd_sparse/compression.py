"""Compressions: what a user passes as `compression=`, named after the papers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NoReturn

from hvd_sparse.collectives import SHARD_SUM
from hvd_sparse.compression_checks import AUTO, check_parts, checked_options
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError
from hvd_sparse.local_steps import AVERAGES, LOCAL, AdaComm, Outer, first_of
from hvd_sparse.schedules import Warmup
from hvd_sparse.sparsifiers import Sparsifier, as_sparsifier

_TOP_K = as_sparsifier("top_k")
_GAUSSIAN = as_sparsifier("gaussian")
_ONE_SIGN = as_sparsifier("one_sign")
_WARMUP = Warmup(steps=50, densities=(0.25, 0.0625, 0.015625))


@dataclass(frozen=True, kw_only=True, repr=False)
class Compression:
    """How gradients are exchanged, and in which form.

    LAGS, GTopK, GaussianK, TopK and SBC are presets that send few entries; Dense and ThreeLC are
    presets that send all of them.

    Args:
        density: Fraction of each gradient's entries that a rank sends, in (0, 1]; if adaptive, the
            least of any layer.
        sparsifier: Method that selects the entries: a name ("top_k", "gaussian", "sampled",
            "sidco", "random_k", "one_sign"), or one of hvd_sparse.sparsifiers with its options,
            such as HardThreshold(threshold=...).
        collective: Method that exchanges them: "allgather", "gtopk", "recursive_doubling",
            "split_allgather", "hierarchical", or "auto": the faster one, by the plan, of allgather
            and recursive_doubling, which apply all that the ranks select; "allgather" if not
            adaptive. The others apply k entries in all: for them the ranks' entries wait longer.
            "shard_sum" selects nothing and sums all entries: density is 1, there is no warm-up, and
            the compression is not adaptive; gradients are on the CPU.
        slack: Factor, at least 1: "gtopk" keeps slack * k entries in its middle rounds. The result
            is nearer to the exact top-k of the sum, and those rounds send as many times the bytes.
        sparsity: Factor in [1, 2) of the scale of "ternary" values: a larger one sends more zeros,
            in fewer bytes.
        indices: Encoding of positions: "plain" (4 bytes each), "packed" (about 2 + log2(1/density)
            bits each), or "auto": the one that the plan predicts to be faster, or "plain" without a
            plan.
        values: Type of values in messages: "float32", "bfloat16" or "float16"; "int8" or "int4", of
            which 64 share a scale; with "shard_sum" also "ternary", which is -1, 0 or 1 times the
            largest magnitude; with what SBC is made of also "binary", one number for all entries
            of a layer. The rounding errors of a narrow type stay in the residual.
            "auto": the one that the plan predicts to be fastest, of float32 and bfloat16 and, in
            dense sums, int8; or "float32" without a plan.
        layer_wise: True if entries are selected per layer, in buckets that are exchanged during the
            backward pass. Otherwise they are selected once, over the whole model, after it.
        min_numel: Tensors with fewer elements, and all with less than two dimensions, are exchanged
            dense by the host. 0 with "shard_sum": no tensor is, whatever its dimensions.
        bucket_numel: If not adaptive, layers are merged into buckets of at most that many elements;
            a larger layer is a bucket of its own. PyTorch takes it in slices of that many, 50,000
            at least, with "shard_sum".
        warmup: Larger densities for the first steps; meanwhile no layer has a smaller one.
        adaptive: True if measured times determine buckets, densities and collectives, and gradients
            are exchanged dense where that is faster. Otherwise `density` holds for all layers.
        plan: Rule for a layer's density, if adaptive: "simulated" (the largest with which the step
            takes no longer, by a simulation of the step) or "paper" (the largest whose exchange
            hides behind the next layer's backward pass).
        replan_every: Number of steps, at least 100, after which layers and steps are timed and
            planned again, if adaptive. None: as many as keep the cost below a hundredth of the
            time.
        rescale_residual: True if the residual follows a change of the learning rate, as in LAGS's
            paper. None: true if the compression is LAGS and the optimizer is SGD without momentum
            and clipping. With momentum, a rate that jumps up again makes training diverge.
        loss_scale: The torch.amp.GradScaler that scales the loss, or any object with its
            get_scale(). Residuals then hold unscaled gradients, and in a step in which a gradient
            is not finite on one rank, all gradients are infinite on all ranks, so that all of them
            skip the step and lower the scale.
        momentum_correction: Momentum that each rank applies to its own gradient before adding it to
            the residual, in place of the optimizer's. Delivered entries are also removed from the
            velocity (momentum factor masking). "auto": the beta1 of Adam, AdamW, NAdam, RAdam and
            Adamax (Keras: Adam, AdamW, Nadam and Adamax), which is 0 while the optimizer steps, or
            the momentum of SGD, whose velocity keeps what was delivered; other optimizers keep
            their momentum. A number in [0, 1): that momentum, and the optimizer must have none; 0:
            none, and the optimizer keeps its own.
        clip_norm: Limit for the norm of each tensor's result; each rank first clips its own
            gradient to clip_norm / sqrt(ranks). None: none.
        weight_decay: Factor of the weights that are added to each gradient (after clipping, before
            momentum), in place of the optimizer's weight decay.
        quality_every: Number of steps between two measurements of how much selection leaves behind,
            see hvd_sparse.stats.quality; each costs a dense allreduce. None: never.
        local_steps: Steps that each rank takes with its own gradients before the ranks meet; an
            AdaComm, which changes their number as the loss falls; or "auto": as few, up to 32, as
            make meetings take a tenth of the time. At a meeting, the difference between each rank's
            weights and the last common ones takes the place of the gradient: it joins the residual,
            and what is exchanged moves the common weights, with which all ranks continue.
            Statistics of batch normalisation stay each rank's own.
        outer: The optimizer of the common weights, with local steps.
        moments: With local steps, "local": the moments of the ranks' optimizers stay their own;
            "averaged": each meeting averages them, as a dense sum of the host's. PyTorch only.
        overlap: "forward": step() does not wait, and the next forward pass waits for each parameter
            before it uses it; under Horovod in PyTorch. With local steps, True: differences are
            exchanged while the ranks take the next ones, and move the common weights one meeting
            later; PyTorch only.
        residual_decay: Factor in (0, 1] of the residual before each step's gradient is added. Below
            1, what is not sent in time is partly forgotten: the conservation law does not hold.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.

    Reference:
        Momentum, masking and clipping: Lin et al., Deep Gradient Compression, ICLR 2018,
        https://arxiv.org/abs/1712.01887, section 3.
    """

    density: float = 0.001
    sparsifier: Sparsifier | str = _TOP_K
    collective: str = "allgather"
    slack: float = 1.0
    sparsity: float = 1.0
    indices: str = "plain"
    values: str = "float32"
    layer_wise: bool = True
    min_numel: int = 1024
    bucket_numel: int = 4 << 20
    warmup: Warmup | None = None
    adaptive: bool = False
    plan: str = "simulated"
    replan_every: int | None = None
    rescale_residual: bool | None = None
    loss_scale: Any = field(default=None, compare=False)
    momentum_correction: float | str = AUTO
    clip_norm: float | None = None
    weight_decay: float = 0.0
    quality_every: int | None = None
    local_steps: int | str | AdaComm = 1
    outer: Outer = AVERAGES
    moments: str = LOCAL
    overlap: bool | str = False
    residual_decay: float = 1.0

    rescales_by_default: ClassVar[bool] = False

    @property
    def collective_options(self) -> dict[str, float]:
        """Options of collectives, by name, as the core and the cost models take them."""
        return {"slack": self.slack, "sparsity": self.sparsity}

    def __post_init__(self) -> None:
        for name, value in checked_options(self).items():
            object.__setattr__(self, name, value)
        check_parts(self)

    def __repr__(self) -> str:
        always = "values" if self.collective == SHARD_SUM else "density"
        shown = [
            f"{one.name}={getattr(self, one.name)!r}"
            for one in fields(self)
            if one.compare and (one.name == always or getattr(self, one.name) != one.default)
        ]
        if self.loss_scale is not None:  # a different object on every rank
            shown.append(f"loss_scale={type(self.loss_scale).__name__}")
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def own_momentum(self) -> float:
        """The momentum that was given as a number; 0 if it is the optimizer's."""
        return 0.0 if isinstance(self.momentum_correction, str) else self.momentum_correction

    @property
    def acts_on_gradients(self) -> bool:
        """True if gradients are changed even on a single rank, which sends nothing."""
        return bool(self.own_momentum or self.weight_decay or self.clip_norm)

    @property
    def is_local(self) -> bool:
        """True if ranks take local steps."""
        return self.local_steps != 1

    def of_differences(self) -> Compression:
        """Returns the compression by which ranks that take local steps exchange differences.

        Differences of weights have the optimizer's momentum, its learning rate and no loss scale.
        A warm-up counts local steps.
        """
        warmup = self.warmup
        if warmup is not None:
            warmup = replace(warmup, steps=math.ceil(warmup.steps / first_of(self.local_steps)))
        return replace(
            self, momentum_correction=0.0, rescale_residual=False, loss_scale=None, warmup=warmup
        )

    def takes(self, shape: Sequence[int]) -> bool:
        """Returns true if tensors of a shape may take part; others are always sent dense."""
        takes_all = self.collective == SHARD_SUM and self.min_numel == 0
        return takes_all or (len(shape) >= 2 and math.prod(shape) >= self.min_numel)

    @classmethod
    def compress(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises; called only if stock Horovod was given one of this package's compressions."""
        raise HvdSparseError(
            f"{cls.__name__} was given to stock Horovod: import hvd_sparse.torch (or "
            "hvd_sparse.tensorflow) before you take DistributedOptimizer from Horovod"
        )

    decompress = compress


@dataclass(frozen=True, kw_only=True, repr=False)
class LAGS(Compression):
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
    sparsifier: Sparsifier | str = _GAUSSIAN
    collective: str = AUTO
    indices: str = AUTO
    values: str = AUTO
    warmup: Warmup | None = _WARMUP
    adaptive: bool = True

    rescales_by_default: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True, repr=False)
class GTopK(Compression):
    """Global top-k: the whole model at once, reduced to k entries in log2 P rounds.

    Reference:
        Shi et al., A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low
        Bandwidth Networks, ICDCS 2019, https://arxiv.org/abs/1901.04359.
    """

    collective: str = "gtopk"
    layer_wise: bool = False


@dataclass(frozen=True, kw_only=True, repr=False)
class GaussianK(Compression):
    """Entries above a threshold estimated from the gradient's mean and deviation, allgathered.

    Reference:
        Shi et al., Understanding Top-k Sparsification in Distributed Deep Learning,
        https://arxiv.org/abs/1911.08772.
    """

    sparsifier: Sparsifier | str = _GAUSSIAN


@dataclass(frozen=True, kw_only=True, repr=False)
class TopK(Compression):
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

    Reference:
        Sattler, Wiedemann, Mueller, Samek, Sparse Binary Compression: Towards Distributed Deep
        Learning with Minimal Communication, IJCNN 2019, https://arxiv.org/abs/1805.08768.
    """

    density: float = 0.01
    sparsifier: Sparsifier | str = _ONE_SIGN
    indices: str = "packed"
    values: str = "binary"
    bucket_numel: int = 1


@dataclass(frozen=True, kw_only=True, repr=False)
class Dense(Compression):
    """The dense sum of all gradients by this package's own collective.

    Every entry of every gradient is sent: in 4 bytes as "float32", in 2 as "bfloat16" or "float16",
    in about 1 as "int8" and about half of one as "int4". As in any dense allreduce, each entry is
    sent about twice: to the rank that adds it up, and from there as a sum. What a narrow type of
    `values` rounds away stays in the residual and joins the next gradient (error feedback), so
    nothing is lost. Tensors of any size and any number of dimensions are exchanged in this way, and
    the optimizer keeps its own momentum.
    """

    density: float = 1.0
    collective: str = SHARD_SUM
    min_numel: int = 0
    momentum_correction: float | str = 0.0


@dataclass(frozen=True, kw_only=True, repr=False)
class ThreeLC(Compression):
    """3LC: each entry as -1, 0 or 1 times a scale that many entries share, and zeros as runs.

    The scale is the largest magnitude times `sparsity`. An entry takes 1.6 bits at most, and fewer
    where many in a row round to zero. Like those of `Dense`, it is sent about twice, and what is
    rounded away stays in the residual and joins the next gradient (error feedback).

    Reference:
        Lim, Andersen, Kaminsky, 3LC: Lightweight and Effective Traffic Compression for Distributed
        Machine Learning, MLSys 2019, https://arxiv.org/abs/1802.07389.
    """

    density: float = 1.0
    collective: str = SHARD_SUM
    values: str = "ternary"


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
