"""Checks of a compression's options: their limits, and which of them go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvd_sparse.collectives import SHARD_SUM, find_collective
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.local_steps import (
    AVERAGED,
    AVERAGES,
    KEEP_TO_SHARE,
    LOCAL,
    MOST_LOCAL_STEPS,
    AdaComm,
    Outer,
)
from hvd_sparse.schedules import Warmup, checked_count, checked_density, checked_number
from hvd_sparse.sparsifiers import Sparsifier, as_sparsifier

if TYPE_CHECKING:
    from hvd_sparse.compression import Compression

AUTO = "auto"

MAX_BUCKET_NUMEL = 2**31 - 1

CHOICES = {
    "indices": (AUTO, "plain", "packed"),
    "values": (AUTO, "float32", "bfloat16", "float16", "int8", "int4", "ternary", "binary"),
    "plan": ("simulated", "paper"),
    "moments": (LOCAL, AVERAGED),
}

# Lower limit of replan_every; measuring, planning and comparing take fewer steps.
_MIN_REPLAN = 100

# Types of values that the dense sum alone can send.
_VALUES_OF_DENSE_SUMS = ("ternary",)

# The parts that binary values take: one number is sent for all entries, which are of one layer and
# of one sign, and no sum is sent.
_PARTS_OF_BINARY = (("sparsifier", "one_sign"), ("collective", "allgather"), ("adaptive", False))


# A value of `overlap`: what is exchanged is waited for in the next forward pass.
FORWARD = "forward"


def checked_options(compression: Compression) -> dict[str, Any]:
    """Returns the options of a compression that are kept in another form, by name.

    Raises:
        InvalidArgumentError: An option lies outside its limits.
    """
    given = compression
    checked: dict[str, Any] = {
        "density": checked_density("density", given.density),
        "sparsifier": as_sparsifier(given.sparsifier),
    }
    if given.collective != AUTO:
        find_collective(given.collective)
    checked["slack"] = _checked_slack(given.slack)
    checked["sparsity"] = checked_number("sparsity", given.sparsity, low=1, below=2)
    for name, choices in CHOICES.items():
        _check_choice(name, getattr(given, name), choices)
    checked["min_numel"] = checked_count("min_numel", given.min_numel, low=0, high=2**62)
    checked["bucket_numel"] = checked_count(
        "bucket_numel", given.bucket_numel, low=1, high=MAX_BUCKET_NUMEL
    )
    for name in ("layer_wise", "adaptive"):
        if not isinstance(getattr(given, name), bool):
            raise InvalidArgumentError(
                f"{name} must be True or False, got {getattr(given, name)!r}"
            )
    if given.adaptive and not given.layer_wise:
        raise InvalidArgumentError(
            "adaptive must be False where layer_wise is: one unit has nothing to hide behind"
        )
    every = given.replan_every
    if every is not None:
        checked["replan_every"] = checked_count("replan_every", every, low=_MIN_REPLAN, high=2**62)
    if given.momentum_correction != AUTO:
        checked["momentum_correction"] = checked_number(
            "momentum_correction", given.momentum_correction, below=1
        )
    checked["weight_decay"] = checked_number("weight_decay", given.weight_decay)
    if given.clip_norm is not None:
        checked["clip_norm"] = checked_number("clip_norm", given.clip_norm, above=True)
    every = given.quality_every
    if every is not None:
        checked["quality_every"] = checked_count("quality_every", every, low=1, high=2**62)
    if not (given.rescale_residual is None or isinstance(given.rescale_residual, bool)):
        raise InvalidArgumentError(
            f"rescale_residual must be True, False or None, got {given.rescale_residual!r}"
        )
    if given.loss_scale is not None and not callable(getattr(given.loss_scale, "get_scale", None)):
        raise InvalidArgumentError(
            f"loss_scale must have get_scale(), as a GradScaler has, got {given.loss_scale!r}"
        )
    if given.warmup is not None and not isinstance(given.warmup, Warmup):
        raise InvalidArgumentError(f"warmup must be a Warmup or None, got {given.warmup!r}")
    decay = checked_number("residual_decay", given.residual_decay, above=True)
    if decay > 1:
        raise InvalidArgumentError(f"residual_decay must lie in (0, 1], got {decay}")
    checked["residual_decay"] = decay
    return checked


def check_parts(compression: Compression) -> None:
    """Raises InvalidArgumentError unless the options of a compression go together."""
    if compression.collective == SHARD_SUM:
        _check_dense_sum(compression)
    elif type(compression).collective == SHARD_SUM:
        raise InvalidArgumentError(
            f"collective of {type(compression).__name__} must be {SHARD_SUM!r}, "
            f"got {compression.collective!r}"
        )
    elif compression.values in _VALUES_OF_DENSE_SUMS:
        raise InvalidArgumentError(
            f"values may be {compression.values!r} with collective {SHARD_SUM!r} alone, "
            f"got collective {compression.collective!r}"
        )
    if compression.values == "binary":
        _check_binary(compression)
    _check_overlap(compression)
    _check_local_steps(compression)


def _check_dense_sum(compression: Compression) -> None:
    for name, wanted in (("density", 1), ("warmup", None), ("adaptive", False)):
        value = getattr(compression, name)
        if value != wanted:
            raise InvalidArgumentError(
                f"{name} must be {wanted} with collective {SHARD_SUM!r}, which sends every entry, "
                f"got {value!r}"
            )


def _check_binary(compression: Compression) -> None:
    parts = (*_PARTS_OF_BINARY, *([("bucket_numel", 1)] if compression.layer_wise else []))
    for name, wanted in parts:
        value = getattr(compression, name)
        found = value.name if isinstance(value, Sparsifier) else value
        if found != wanted:
            raise InvalidArgumentError(
                f"{name} must be {wanted!r} with values 'binary', which are one number for entries "
                f"of one layer and one sign, got {found!r}"
            )


def _check_local_steps(compression: Compression) -> None:
    """Raises InvalidArgumentError for options that do not go with a compression's local steps."""
    steps = compression.local_steps
    if not isinstance(steps, AdaComm) and steps != KEEP_TO_SHARE:
        steps = checked_count("local_steps", steps, low=1, high=MOST_LOCAL_STEPS)
        object.__setattr__(compression, "local_steps", steps)
    if not isinstance(compression.outer, Outer):
        raise InvalidArgumentError(f"outer must be an Outer, got {compression.outer!r}")
    if not compression.is_local:
        for name, usual in (
            ("outer", (AVERAGES,)),
            ("overlap", (False, FORWARD)),
            ("moments", (LOCAL,)),
        ):
            value = getattr(compression, name)
            if value not in usual:
                raise InvalidArgumentError(
                    f"{name} needs local_steps above 1, got local_steps 1 and {value!r}"
                )
        return
    if compression.overlap and compression.moments != LOCAL:
        raise InvalidArgumentError(
            f"moments must be {LOCAL!r} with overlap, under which no step waits for a meeting, got "
            f"{compression.moments!r}"
        )
    for name, acts in (
        ("momentum_correction", bool(compression.own_momentum)),
        ("clip_norm", compression.clip_norm is not None),
        ("weight_decay", bool(compression.weight_decay)),
        ("rescale_residual", compression.rescale_residual is True),
    ):
        if acts:
            raise InvalidArgumentError(
                f"{name} acts on gradients, and with local_steps {compression.local_steps!r} "
                "differences of weights are exchanged: leave it to the optimizer, got "
                f"{getattr(compression, name)!r}"
            )


def _check_overlap(compression: Compression) -> None:
    """Raises InvalidArgumentError for an overlap that is none, or that others do not go with."""
    overlap = compression.overlap
    if not isinstance(overlap, bool) and overlap != FORWARD:
        raise InvalidArgumentError(f"overlap must be True, False or {FORWARD!r}, got {overlap!r}")
    if overlap != FORWARD:
        return
    if compression.is_local:
        raise InvalidArgumentError(
            f"overlap must be True or False with local_steps {compression.local_steps!r}: "
            f"meetings overlap the next interval, and not forward passes, got {overlap!r}"
        )
    for name, why in (
        ("loss_scale", "a gradient scaler has to see all averages before the step"),
        ("quality_every", "what is measured has been applied already"),
    ):
        value = getattr(compression, name)
        if value is not None:
            raise InvalidArgumentError(
                f"{name} must be None with overlap {overlap!r}: {why}, got {value!r}"
            )


def _checked_slack(slack: object) -> float:
    """`slack` if it is a finite number of at least 1; raises InvalidArgumentError otherwise."""
    if isinstance(slack, int | float) and not isinstance(slack, bool) and 1 <= slack < float("inf"):
        return float(slack)
    raise InvalidArgumentError(f"slack must be a finite number >= 1, got {slack!r}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises InvalidArgumentError unless `value` is one of the choices."""
    if value not in choices:
        raise InvalidArgumentError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
