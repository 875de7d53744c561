"""Common parts of the examples: arguments, the choice of compression, and the record of a run.

A run is recorded per step (loss, bytes sent, density, seconds) and per epoch (the example's
metric): a progress bar on the terminal or a line per epoch, one line at the end, and everything as
JSON if --json FILE asks for it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hvd_sparse.compression import Feedback, Warmup
from hvd_sparse.torch import LAGS, GaussianK, GTopK, TopK

DENSE = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}
SPARSE = {"topk": TopK, "gtopk": GTopK, "gaussiank": GaussianK, "lags": LAGS}


def add_arguments(
    parser: argparse.ArgumentParser, *, epochs: int, warmup_epochs: float, lr: float
) -> None:
    """Adds the arguments that all examples share, with this example's defaults."""
    parser.add_argument("--compression", choices=(*DENSE, *SPARSE), default="lags",
                        help="how gradients are exchanged")  # fmt: skip
    parser.add_argument("--density", type=float, default=0.01,
                        help="fraction of a gradient that sparse compressions send")  # fmt: skip
    parser.add_argument("--collective",
                        help="instead of the compression's own, such as gtopk")  # fmt: skip
    parser.add_argument("--adaptive", action="store_true",
                        help="let LAGS measure, plan, go dense where faster")  # fmt: skip
    parser.add_argument("--warmup-epochs", type=float, default=warmup_epochs,
                        help="so long sparse compressions send more: first 25 %%")  # fmt: skip
    parser.add_argument("--epochs", type=int, default=epochs, help="passes over the training data")
    parser.add_argument("--lr", type=float, default=lr, help="learning rate, per rank")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of SGD")
    parser.add_argument("--momentum-correction", action="store_true",
                        help="sparse: ranks apply momentum to their own gradients")  # fmt: skip
    parser.add_argument("--weight-decay", type=float, default=0.0,
                        help="times the weights; sparse: added before error feedback")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of weights, and order of the data")
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER",
                        help="save to FOLDER after every epoch; go on from there")  # fmt: skip
    parser.add_argument("--stop-after", type=int, metavar="EPOCHS",
                        help="end after so many epochs of this run")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the account to FILE")


def compression(args: argparse.Namespace, *, steps_per_epoch: int) -> Any:
    """Returns the compression that the arguments ask for, for hvd.DistributedOptimizer."""
    if args.compression in DENSE:
        return DENSE[args.compression]
    densities = [density for density in (0.25, 0.0625, 0.015625) if density > args.density]
    steps = math.ceil(args.warmup_epochs * steps_per_epoch / max(1, len(densities)))
    warmup = Warmup(steps=steps, densities=densities) if steps and densities else None
    collective = {} if args.collective is None else {"collective": args.collective}
    return SPARSE[args.compression](
        density=args.density,
        **collective,
        warmup=warmup,
        adaptive=args.adaptive and args.compression == "lags",
        feedback=Feedback(
            momentum=args.momentum if args.momentum_correction else "keep",
            weight_decay=args.weight_decay,
        ),
    )


def sgd(args: argparse.Namespace, model: torch.nn.Module) -> torch.optim.SGD:
    """Returns SGD without the momentum and weight decay that the compression applies itself."""
    dense = args.compression in DENSE
    return torch.optim.SGD(
        model.parameters(),
        lr=args.lr * hvd.size(),
        momentum=args.momentum if dense or not args.momentum_correction else 0.0,
        weight_decay=args.weight_decay if dense else 0.0,
    )


def resume(
    args: argparse.Namespace,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> int:
    """Loads the checkpoint that --checkpoint names; returns the epoch to begin with."""
    extra = None
    if args.checkpoint is not None:
        extra = optimizer.exchange.load_checkpoint(args.checkpoint, model)
    if extra is None:
        return 0
    schedule.load_state_dict(extra["schedule"])
    return extra["epoch"]


def epochs(args: argparse.Namespace, first_epoch: int) -> range:
    """Returns the epochs of this run."""
    most = args.epochs if args.stop_after is None else first_epoch + args.stop_after
    return range(first_epoch, min(args.epochs, most))


def save(
    args: argparse.Namespace,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    epoch: int,
) -> None:
    """Saves everything that the next epoch needs, if --checkpoint says so."""
    if args.checkpoint is not None:
        optimizer.exchange.save_checkpoint(
            args.checkpoint, model, epoch=epoch + 1, schedule=schedule.state_dict()
        )


class TrainingLog:
    """The record of a run: kept by all ranks, shown and written by rank 0.

    Args:
        args: The example's arguments.
        model: The model whose gradients are exchanged.
        optimizer: Result of hvd.DistributedOptimizer.
        steps_per_epoch: Number of steps per epoch, the same on all ranks.
        metric: The example's metric after each epoch, with its unit.
        first_epoch: Number of epochs of earlier runs.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        steps_per_epoch: int,
        metric: str,
        first_epoch: int = 0,
    ) -> None:
        self._first_epoch = first_epoch
        self._args = args
        self._optimizer = optimizer
        self._parameters = sum(p.numel() for p in model.parameters())
        self._metric = metric
        self._metrics: list[float] = []
        self._seconds: list[float] = []
        self._epoch: list[tuple[torch.Tensor, float, float]] = []  # loss, bytes, density by step
        self._averages: list[torch.Tensor] = []  # averages of these over the ranks, by epoch
        steps = (args.epochs - first_epoch) * steps_per_epoch
        self._bar = progress_bar(steps) if hvd.rank() == 0 else None

    @contextmanager
    def step(self) -> Iterator[list[torch.Tensor]]:
        """Times one training step, whose loss the caller appends to the list."""
        loss: list[torch.Tensor] = []
        start = time.perf_counter()
        yield loss
        self._seconds.append(time.perf_counter() - start)
        self._epoch.append((*loss, *self._sent()))
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])

    def _sent(self) -> tuple[float, float]:
        """Returns the bytes that this rank sent in the last step, and the sparse density reached.

        The bytes of Horovod's allreduce are computed, as for a ring: 2 (P - 1) / P times the
        gradient.
        """
        ring = 2 * (hvd.size() - 1) / hvd.size()
        if self._args.compression in DENSE:
            width = 2 if self._args.compression == "fp16" else 4
            return ring * width * self._parameters, 1.0
        last = self._optimizer.exchange.stats.last
        if last is None:  # a single rank exchanges nothing
            return 0.0, 1.0
        density = last.density_reached if last.buckets else 1.0
        return last.bytes_sent + ring * last.dense_bytes, density

    def end_epoch(self, metric: float) -> None:
        """Averages the epoch's steps over the ranks, and shows the progress of the training."""
        steps = torch.tensor([[float(value) for value in step] for step in self._epoch])
        self._epoch.clear()
        self._averages.append(hvd.allreduce(steps.double(), name="steps"))
        self._metrics.append(metric)
        if hvd.rank() != 0:
            return
        text = (
            f"epoch {self._first_epoch + len(self._metrics)}/{self._args.epochs}: "
            f"loss {float(self._averages[-1][:, 0].mean()):.4f}, {self._metric} {metric:.2f}"
        )
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.update(self._bar.task_ids[0], description=text)

    def finish(self) -> None:
        """Prints the final line, and writes the record if one is asked for."""
        if hvd.rank() != 0:
            return
        if self._bar is not None:
            self._bar.stop()
        if not self._metrics:
            print(f"nothing to do: {self._args.epochs} epochs are over", flush=True)
            return
        loss, sent, density = torch.cat(self._averages).T
        account = {
            "compression": self._args.compression,
            "ranks": hvd.size(),
            "parameters": self._parameters,
            "metric": self._metric,
            "value": self._metrics[-1],
            "bytes_sent_per_rank_and_step": float(sent.mean()),
            "density_reached": float(density.mean()),
            "seconds_per_step": statistics.median(self._seconds),
            "epochs": self._metrics,
            "steps": {
                "loss": loss.tolist(),
                "bytes_sent": sent.tolist(),
                "seconds": self._seconds,
            },
            "arguments": {name: str(value) for name, value in vars(self._args).items()},
        }
        print(
            f"{self._args.compression}: {self._metric} {account['value']:.2f}; "
            f"{account['bytes_sent_per_rank_and_step'] / 1e3:.1f} kB sent per rank and step; "
            f"density reached {account['density_reached']:.4f}; "
            f"{1e3 * account['seconds_per_step']:.1f} ms per step",
            flush=True,
        )
        if self._args.json is not None:
            self._args.json.write_text(json.dumps(account) + "\n")


def progress_bar(steps: int) -> Progress | None:
    """Shows a progress bar on the terminal that started the job; returns None if there is none.

    The launchers put pipes between a rank and the terminal, so the bar writes to the terminal
    itself.
    """
    try:  # the file lives as long as the bar
        terminal = open("/dev/tty", "w")  # noqa: SIM115
    except OSError:
        return None
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(file=terminal),
        refresh_per_second=4,
        transient=True,
    )
    bar.add_task("epoch 0", total=steps)
    bar.start()
    return bar
