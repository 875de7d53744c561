"""Trains under torch.distributed; each rank writes its results to a file. Run by test_ddp.py.

  ddp_ranks.py FOLDER NAME STEPS [--die RANK] [--in CALL]

It saves a checkpoint every STRIDE steps, goes on from it, and ends after STEPS steps. RANK kills
itself amid a step, or where the others make another CALL, in the first life of the job.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.compression import Layers
from hvd_sparse.ddp import LAGS, attach, sparse_allreduce

STRIDE, DEATH = 4, 10  # steps


class Killed(torch.autograd.Function):
    """The identity; in backward its process kills itself."""

    @staticmethod
    def forward(ctx, rows):
        return rows.clone()

    @staticmethod
    def backward(ctx, gradient):
        os.kill(os.getpid(), signal.SIGKILL)


def connect() -> int:
    """Initialises torch.distributed; returns this process's rank.

    torchrun of torch 2.13 keeps its store when it restarts a job, which must not read the addresses
    of the life before.
    """
    variables = os.environ
    rank, size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
    store = dist.TCPStore(
        variables["MASTER_ADDR"],
        int(variables["MASTER_PORT"]),
        is_master=rank == 0 and "TORCHELASTIC_RUN_ID" not in variables,
    )
    life = variables.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"life {life}", store), rank=rank, world_size=size
    )
    return rank


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("steps", type=int)
    parser.add_argument("--die", type=int, default=-1)
    parser.add_argument("--in", dest="call", choices=("save", "allreduce"))
    args = parser.parse_args()
    rank = connect()
    torch.manual_seed(rank)
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 60), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(60, 20)
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    attach(
        model,
        optimizer,
        LAGS(density=0.05, layers=Layers(min_numel=64), adaptive=False, warmup=None),
    )
    saved = optimizer.exchange.load_checkpoint(args.folder / args.name, model)
    first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    began = time.monotonic()
    try:
        for step in range(0 if saved is None else saved["step"], args.steps):
            began = time.monotonic()
            generator = torch.Generator().manual_seed(100 * step + rank)
            rows = torch.randn(16, 20, generator=generator)
            hidden = model(rows)
            dies = step == DEATH and rank == args.die and first_life
            if dies and args.call is None:
                hidden = Killed.apply(hidden)
            optimizer.zero_grad()
            (hidden - rows).square().mean().backward()
            optimizer.step()
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == DEATH and args.call == "allreduce":
                sparse_allreduce(torch.ones(8), torch.zeros(8))
            if step == DEATH and args.call == "save":
                optimizer.exchange.save_checkpoint(args.folder / args.name, model)
            if (step + 1) % STRIDE == 0:
                optimizer.exchange.save_checkpoint(args.folder / args.name, model, step=step + 1)
    except Exception as error:
        seconds = time.monotonic() - began
        print(f"rank {rank} after {seconds:.1f} s: {type(error).__name__}: {error}", flush=True)
        raise
    state = optimizer.state_dict()
    arrays = {name: part.numpy() for name, part in net.state_dict().items()}
    for kind in ("residuals", "velocities"):
        parts = state["hvd_sparse"][kind].items()
        arrays |= {f"{kind} {name}": part.numpy() for name, part in parts}
    np.savez(args.folder / f"{args.name}-{rank}.npz", **arrays)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
