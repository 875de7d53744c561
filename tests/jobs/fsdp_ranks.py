"""Trains a sharded model on 2 x 2 ranks, one of which dies or errs. Run by test_fsdp.py.

  fsdp_ranks.py PHASE

The last rank kills itself in a PHASE of its fourth step: "forward", "backward", "commit" (after its
shard's exchange, before the other shard has heard of it), "between" (steps), "meeting" (of local
steps); or raises an error there: "error".
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hvd_sparse.compression import Layers
from hvd_sparse.fsdp import LAGS, attach
from hvd_sparse.pytorch.replica import Replica

STEP = 3


class Dying(torch.nn.Module):
    """The identity; kills its process in forward or in backward."""

    phase = ""

    def forward(self, rows):
        if self.phase == "forward":
            die()
        if self.phase in ("backward", "error") and rows.requires_grad:
            rows.register_hook(die if self.phase == "backward" else err)
        return rows


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def err(*_):
    raise RuntimeError("a fault of the program")


def main() -> None:
    phase = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    dying = Dying()
    first, last = torch.nn.Linear(20, 60), torch.nn.Linear(60, 20)
    model = torch.nn.Sequential(first, dying, last)
    for layer in (first, last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    local = {"local_steps": 4} if phase == "meeting" else {}
    attach(
        model,
        optimizer,
        LAGS(density=0.1, layers=Layers(min_numel=64), adaptive=False, warmup=None, **local),
    )
    began = time.monotonic()
    try:
        for step in range(8):
            began = time.monotonic()
            if step == STEP and rank == 3:
                dying.phase = phase
                if phase == "between":
                    die()
                if phase in ("commit", "meeting"):
                    Replica.agreed = die
            model(torch.randn(16, 20)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    except Exception as error:
        seconds = time.monotonic() - began
        print(f"rank {rank} after {seconds:.1f} s: {type(error).__name__}: {error}", flush=True)
        raise


if __name__ == "__main__":
    main()
