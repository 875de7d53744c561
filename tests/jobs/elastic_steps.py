"""The steps of an elastic job, for any framework, and the events in them.

Programs are called with SIZE ... [--policy POLICY] [--compression NAME] [--dies RANK] [--fails].
They succeed once there have been SIZE ranks for some steps, for each SIZE given, in that order.
test_elastic.py adds and kills ranks meanwhile. With --dies, a RANK of three kills itself in its
fifth step, while the others wait for its gradients; with --fails, an operation fails on all ranks
in that step.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from hvd_sparse.compression import Layers, LocalSteps, Outer
from tests.jobs.elastic_witness import Witness

STEPS_EACH = 8
MOST_STEPS = 2000
PAUSE = 0.05  # seconds between two steps

parser = argparse.ArgumentParser()
parser.add_argument("sizes", type=int, nargs="+")
parser.add_argument("--policy", default="spread")
parser.add_argument(
    "--compression", choices=("lags", "gtopk", "ternary", "adaptive", "local"), default="lags"
)
parser.add_argument("--dies", type=int)
parser.add_argument("--fails", action="store_true")


TOLERANCE = {"local": 1e-12}  # of sums of residuals: differences of weights are no integers


def presets(module: Any) -> dict[str, Any]:
    """Returns compressions by the argument's names, from a framework's module of the package."""
    return {
        "lags": module.LAGS(density=0.05, adaptive=False, layers=Layers(min_numel=1)),
        "gtopk": module.GTopK(density=0.05, layers=Layers(min_numel=1)),
        "ternary": module.ThreeLC(layers=Layers(min_numel=1)),
        "adaptive": module.LAGS(density=0.05, layers=Layers(min_numel=1)),
        "local": module.TopK(
            density=0.25,
            layers=Layers(min_numel=1),
            local_steps=LocalSteps(every=3, outer=Outer(lr=0.7, momentum=0.5)),
        ),
    }


def train(
    hvd: Any,
    state: Any,
    args: argparse.Namespace,
    witness: Witness,
    *,
    step: Callable[..., float],
    check_replicas: Callable[[], None],
) -> None:
    """Trains until all sizes were reached.

    Args:
        hvd: Horovod's module.
        state: Elastic state with step, reached and first_loss.
        args: Arguments from `parser`.
        witness: Witness that checks residuals after each change of the ranks.
        step: Takes the step of a number, during which a rank `dies`; returns the loss of all ranks.
        check_replicas: Raises if replicas differ.
    """
    place = f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}"
    restore = state.restore

    def restore_after_failure() -> None:
        witness.why = "failure"
        print(f"{place} met {type(sys.exc_info()[1]).__name__}", flush=True)
        restore()

    def steps(state: Any) -> None:
        print(f"pid {os.getpid()} at {place} is rank {hvd.rank()} of {hvd.size()}", flush=True)
        witness.check(args.policy)
        check_replicas()
        first = state.step
        while state.step < MOST_STEPS:
            reached = ""
            fifth = hvd.size() == 3 and state.step == first + 4
            loss = step(state.step, dies=fifth and hvd.rank() == args.dies)
            if args.fails and state.step == 4 and witness.why == "new":
                raise HorovodInternalError("an operation failed on all ranks")
            state.step += 1
            if state.step == 1:
                state.first_loss = loss
            if state.step == first + 3:
                witness.tell(f"three steps as {hvd.size()}")
            if hvd.size() == args.sizes[state.reached] and state.step >= first + STEPS_EACH:
                state.reached += 1
                reached = f"reached {hvd.size()}"
            if state.reached == len(args.sizes):
                check_replicas()
                assert loss < 0.5 * state.first_loss, (state.first_loss, loss)
                witness.tell(
                    f"done after {state.step} steps, loss {state.first_loss:.3f} to {loss:.3f}"
                )
                return
            try:
                state.save()  # ranks that take local steps meet
                witness.before_commit(state.step)
                state.check_host_updates()
            except HostsUpdatedInterrupt:
                witness.why = "update"
                raise
            if reached:
                witness.tell(reached)
            time.sleep(PAUSE)

    state.restore = restore_after_failure
    hvd.elastic.run(steps)(state)


def die() -> None:
    """Kills this process, as a failing machine would."""
    os.kill(os.getpid(), signal.SIGKILL)
