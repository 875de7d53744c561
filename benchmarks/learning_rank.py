"""One rank of a training whose loss is followed; time_to_loss.py starts it under mpirun.

The clock runs while blocks of steps are taken, from the batch to the moved weights, and stands
still while losses are averaged and the held-out loss is computed. Ranks leave such a pause together
and are not held up within a block; what a block took is what its slowest rank took.
"""

from __future__ import annotations

import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from ddp_methods import join_ddp
from gloo_world import prepare
from learning_attacks import Attacked
from learning_kin import EF21, DeMo, MicroAdam, SparseAverage
from learning_methods import DDP, Alone, Average, Dense, Hooked, Learner, OverGloo, Setup, Sparse
from learning_prototypes import ErrorFeedback
from learning_rivals import Accumulated, PostLocal, TorchFT
from learning_sharded import Sharded, ShardedExchange
from learning_tasks import TASKS, Batch
from machine import bytes_sent_by
from modes import call_of, compression_of
from reporting import write

METHODS: dict[str, type[Learner]] = {
    "Dense": Dense,
    "WarmedUp": Sparse,
    "Alone": Alone,
    "Average": Average,
    "DDP": DDP,
    "Hooked": Hooked,
    "Attacked": Attacked,
    "Accumulated": Accumulated,
    "PostLocal": PostLocal,
    "TorchFT": TorchFT,
    "Sharded": Sharded,
    "ShardedExchange": ShardedExchange,
    "ErrorFeedback": ErrorFeedback,
    "DeMo": DeMo,
    "EF21": EF21,
    "MicroAdam": MicroAdam,
    "SparseAverage": SparseAverage,
}


def main(
    task: Annotated[str, typer.Option(help="one of learning_tasks.TASKS")],
    method: Annotated[str, typer.Option(help="as method_of reads it")],
    rate: Annotated[float, typer.Option(help="learning rate")],
    steps: Annotated[int, typer.Option(min=1, help="that the schedule is made for")],
    every: Annotated[int, typer.Option(min=1, help="steps of a block")],
    rendezvous: Annotated[str, typer.Option(help="HOST:PORT on the first host")],
    json: Annotated[Path, typer.Option(help="where rank 0 writes the account")],
    seed: Annotated[int, typer.Option(help="of weights and batches")] = 0,
    seconds: Annotated[float, typer.Option(help="on the clock, after which no block begins")] = 1e9,
    stop: Annotated[int | None, typer.Option(help="after so many steps")] = None,
    until: Annotated[float, typer.Option(help="held-out loss at which it ends")] = -math.inf,
    gloo: Annotated[bool, typer.Option("--gloo", help="Horovod over Gloo")] = False,
    interface: Annotated[str | None, typer.Option(help="of the network")] = None,
) -> None:
    """Trains, and writes what was seen."""
    torch.set_num_threads(1)
    kind, options = method_of(method)
    rank, size = join(kind, rendezvous, interface, gloo)
    chosen = TASKS[task]
    torch.manual_seed(seed)
    learner = kind(Setup(chosen, chosen.model(), rate, steps), **options)
    generator = torch.Generator().manual_seed(1000 * seed + rank + 1)
    held_out = chosen.data.held_out(rank, size)
    blocks: list[dict[str, float]] = []
    facts: list[dict[str, float]] = []
    descent = None if interface is not None else Descent(learner.model)
    clock, sent = 0.0, 0.0
    last = steps if stop is None else min(stop, steps)
    while learner.taken < last and clock < seconds:
        learner.mean(torch.zeros(1, dtype=torch.float64))  # all are here
        count, losses = min(every, last - learner.taken), []
        bytes_before = 0 if interface is None else bytes_sent_by(interface)
        begin = time.perf_counter()
        for _ in range(count):
            losses.append(learner.step(chosen.data.draw(generator)))
            if learner.facts:
                facts.append({"step": learner.taken, **learner.facts})
        took = time.perf_counter() - begin
        bytes_sent = 0 if interface is None else bytes_sent_by(interface) - bytes_before
        times = torch.zeros(size, dtype=torch.float64)
        times[rank] = size * took
        clock += float(learner.mean(times).max())
        seen = [
            float(torch.stack(losses).mean()), *evaluate(learner, held_out), bytes_sent,
            0.0 if descent is None else descent.take(),
        ]  # fmt: skip
        loss, held_out_loss, accuracy, bytes_mean, came_down = learner.mean(
            torch.tensor(seen, dtype=torch.float64)
        ).tolist()
        sent += bytes_mean
        blocks.append(
            {"step": learner.taken, "seconds": clock, "loss": loss, "held_out": held_out_loss,
             "accuracy": accuracy, "bytes": sent, "descent": came_down}
        )  # fmt: skip
        if math.isnan(held_out_loss) or held_out_loss <= until:
            break
    same = is_same_everywhere(learner)
    if rank == 0:
        account: dict[str, Any] = {
            "parameters": sum(one.numel() for one in learner.model.parameters()),
            "ranks": size,
            "same": same,
            "blocks": blocks,
            "facts": facts,
            "report": learner.report(),
        }
        write(json, account)
    learner.mean(torch.zeros(1, dtype=torch.float64))
    if issubclass(kind, OverGloo):
        os._exit(0)  # the ends of Gloo's threads may abort the process, or wait for ever


class Descent:
    """How far steps come down along the gradient of the batch that follows: -g (w - w before).

    That gradient is of a batch which the step did not know, so its noise is not the step's. Summed
    over steps, it is the fall of the loss, short of curvature.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._sum = 0.0
        for weight in model.parameters():
            weight.register_hook(partial(self._add, weight, weight.detach().clone()))

    def _add(self, weight: torch.Tensor, before: torch.Tensor, gradient: torch.Tensor) -> None:
        self._sum -= float(torch.sum(gradient * (weight.detach() - before)))
        before.copy_(weight.detach())

    def take(self) -> float:
        """The sum since it was last taken, in nats."""
        taken, self._sum = self._sum, 0.0
        return taken


def method_of(text: str) -> tuple[type[Learner], dict[str, Any]]:
    """The class and the options of a method.

    Args:
        text: A call with literal options: a name of METHODS, or a compression of the package, such
            as "LAGS(density=0.01)".

    Raises:
        ValueError: It names none, or an option of a compression lies outside its limits.
    """
    name, options = call_of(text)
    if name in METHODS:
        return METHODS[name], options
    compression_of(text)
    return Sparse, {"mode": text}


def join(
    kind: type[Learner], rendezvous: str, interface: str | None, gloo: bool
) -> tuple[int, int]:
    """Becomes one of the ranks: its number, and how many there are."""
    if issubclass(kind, OverGloo):
        import torch.distributed as dist

        join_ddp(rendezvous, interface)
        return dist.get_rank(), dist.get_world_size()
    import horovod.torch as hvd

    if gloo:
        prepare(rendezvous, interface or "lo")
    hvd.init()
    return hvd.rank(), hvd.size()


@torch.no_grad()
def evaluate(learner: Learner, held_out: list[Batch]) -> tuple[float, float]:
    """The loss on this rank's share of the held-out data, and the share of right answers there."""
    losses, right = [], []
    with learner.judged() as model:
        model.eval()
        for inputs, targets in held_out:
            output = model(inputs)
            losses.append(float(learner.setup.task.loss(output, targets)) * len(inputs))
            right.append(float((output.argmax(-1) == targets).double().mean()) * len(inputs))
        model.train()
    count = sum(len(inputs) for inputs, _ in held_out)
    return sum(losses) / count, sum(right) / count


def is_same_everywhere(learner: Learner) -> bool:
    """Returns True if all ranks have the same weights, bit for bit."""
    with learner.judged():
        flat = torch.cat([one.flatten() for one in learner.weights()])
    words = flat.view(torch.int32).double()
    return torch.equal(learner.mean(words), words)


if __name__ == "__main__":
    typer.run(main)
