"""Velocities go on where the momentum is that an optimizer has at the first step of an exchange.

It has one from training without the exchange, loaded on all ranks, or loaded on one rank, which is
about to broadcast it or has done so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_sparse.ranks.world import in_elastic_job
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.momentum import own_momenta


def begin_velocities(
    exchange: GradientExchange, optimizer: Any, variables: Sequence[Any], *, averages: bool
) -> None:
    """Makes an optimizer's own momentum that of the ranks' velocities; before the first step.

    Collective, unless the job is elastic, where the ranks' optimizers are equal by then. Where only
    some ranks have a momentum, the average of the ranks' velocities is theirs: Horovod's callback
    broadcasts it after the first step. Velocities that were loaded or taken over stay.

    Args:
        exchange: The exchange.
        optimizer: Its optimizer, whose momentum is moved.
        variables: Its variables.
        averages: True if the exchange averages gradients, false if it adds them up.
    """
    if exchange.velocities_begun or exchange.steps:
        return
    exchange.velocities_begun = True
    momenta = own_momenta(optimizer, variables)
    own = {
        name: momentum
        for name, momentum in zip(exchange.saved_names, momenta, strict=True)
        if momentum is not None and np.any(momentum)
    }
    loaded = any(np.any(velocity) for velocity in exchange.velocities().values())
    reports = [(bool(own), loaded)]
    if not in_elastic_job():
        reports = exchange.world.allgather_object(reports[0], tuple[bool, bool])
    holders = sum(holds for holds, _ in reports)
    if not holders or any(loaded for _, loaded in reports):
        return
    factor = np.float32(len(reports) / holders / (1 if averages else exchange.world.size))
    exchange.begin_velocities({name: factor * momentum for name, momentum in own.items()})
