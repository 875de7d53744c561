"""A rank's work on its own gradient before the exchange: clipping, then weight decay.

Both come before error feedback, so the residual holds the clipped and decayed gradient, and the
conservation law counts that. Momentum comes next; the core applies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvd_sparse.compression import Compression
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.exchange.reduction import Reduction


@dataclass(frozen=True, kw_only=True)
class LocalShare:
    """A rank's share of the clipping and weight decay that was asked for the result.

    A rank's share of a result is what its gradient adds to it: 1 / P of the gradient where the
    ranks average, all of it where they sum. The norm of each tensor's share is clipped to
    clip_norm / sqrt(P): the norm of the result is then at most clip_norm if the ranks' gradients
    are orthogonal, as noise is nearly. The result gets weight_decay times the weights, of which
    each rank adds its share.

    Attributes:
        limit: Largest norm of each tensor's gradient on this rank; None: no limit.
        decay: Factor of the weights that are added to each gradient of this rank.

    Reference:
        Lin et al., Deep Gradient Compression, https://arxiv.org/abs/1712.01887, section 3.2: "local
        gradient clipping".
    """

    limit: float | None
    decay: float

    @classmethod
    def of(cls, compression: Compression, reduction: Reduction, *, size: int) -> LocalShare:
        """Returns the share of one of `size` ranks."""
        share = math.prod(reduction.scales(size))
        clip_norm = compression.feedback.clip_norm
        return cls(
            limit=None if clip_norm is None else clip_norm / (share * math.sqrt(size)),
            decay=compression.feedback.weight_decay / (share * size),
        )


def check_not_twice(
    optimizer_name: str,
    settings: Mapping[str, Any],
    options: Mapping[str, str],
    compression: Compression,
) -> None:
    """Refuses an optimizer that would repeat what a compression does.

    Args:
        optimizer_name: The optimizer's name for the message: "Adam".
        settings: The optimizer's settings, by its own names; the first of its betas counts, which
            is the momentum.
        options: The option of `Feedback` that does the same, by the name of a setting.
        compression: The compression that the user asked for.

    Raises:
        InvalidArgumentError: A setting and its option are both set.
    """
    for theirs, option in options.items():
        setting, value = settings.get(theirs) or 0, getattr(compression.feedback, option)
        if not value or isinstance(value, str):
            continue
        if setting[0] if isinstance(setting, tuple | list) else setting:
            raise InvalidArgumentError(
                f"{theirs} of {optimizer_name} is {setting} and Feedback {option} is "
                f"{value}, which would act twice: leave out one of them"
            )
