"""A job that PyTorch alone runs: it trains, saves and resumes.

    torchrun --standalone --nproc-per-node 2 tools/torch_alone_job.py FOLDER
    torchrun --standalone --nproc-per-node 2 tools/torch_alone_job.py FOLDER --resume

The first launch saves a checkpoint in the middle of each training, and goes on to its end. The
second one resumes from there, and must end with the same bits. tools/try_torch_alone.py launches
both.
"""

from __future__ import annotations

import argparse
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hvd_sparse
from hvd_sparse.ddp import LAGS, TopK, attach, sparse_allreduce

STEPS = 6  # in a training; the checkpoint is written after half of them
DENSITY = 0.02
COMPRESSIONS = {"LAGS": LAGS(adaptive=False, density=DENSITY), "TopK": TopK(density=DENSITY)}
SECONDS = 100  # limit of a launch; a rank that hangs is ended


class Training:
    """A small network that is trained with a compression."""

    def __init__(self, compression: Any) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        self.ddp = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.05, momentum=0.9)
        self.exchange = attach(self.ddp, self.optimizer, compression)

    def run(self, steps: range) -> None:
        """Trains on data that depends on the step and the rank."""
        for step in steps:
            random = torch.Generator().manual_seed(1000 * step + dist.get_rank())
            inputs, targets = (torch.randn(16, n, generator=random) for n in (64, 32))
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.ddp(inputs), targets).backward()
            self.optimizer.step()

    def state(self) -> dict[str, torch.Tensor]:
        """Returns copies of this rank's weights, momenta and residuals, by name."""
        tensors = dict(tensors_of(self.optimizer.state_dict()))
        assert any("residual" in name and tensor.any() for name, tensor in tensors.items()), tensors
        return {name: tensor.clone() for name, tensor in tensors.items()} | {
            name: tensor.clone() for name, tensor in self.model.state_dict().items()
        }


def tensors_of(value: Any, name: str = "optimizer") -> list[tuple[str, torch.Tensor]]:
    """Returns the tensors in a state_dict(), with their names."""
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    inner = value.items() if isinstance(value, dict) else ()
    return [pair for key, part in inner for pair in tensors_of(part, f"{name}.{key}")]


def train(folder: Path) -> None:
    """Trains, and writes a checkpoint in the middle and the state at the end."""
    for name, compression in COMPRESSIONS.items():
        training = Training(compression)
        training.run(range(STEPS // 2))
        training.exchange.save_checkpoint(folder / name, training.ddp, step=STEPS // 2)
        training.run(range(STEPS // 2, STEPS))
        torch.save(training.state(), folder / f"{name}-{dist.get_rank()}.pt")


def resume(folder: Path) -> None:
    """Resumes, and compares the states at the end."""
    for name, compression in COMPRESSIONS.items():
        training = Training(compression)
        extra = training.exchange.load_checkpoint(folder / name, training.ddp)
        assert extra == {"step": STEPS // 2}, extra
        training.run(range(STEPS // 2, STEPS))
        expected = torch.load(folder / f"{name}-{dist.get_rank()}.pt")
        found = training.state()
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        wrong = [key for key in found if not torch.equal(found[key], expected[key])]
        assert wrong == [], wrong
        if dist.get_rank() == 0:
            kept = sum(key.count("residual") for key in found)
            print(f"{name}: resumed bit for bit, {len(found)} tensors, {kept} of residuals")


def check_conservation() -> None:
    """Checks that whatever was not applied is in the residuals, exactly."""
    tensor = (1 + dist.get_rank()) * torch.arange(1.0, 1001.0)
    residual = torch.zeros(1000)
    result = sparse_allreduce(tensor, residual, op=dist.ReduceOp.SUM)
    assert result.count_nonzero() == 10, result.count_nonzero()
    kept = residual.clone()
    for addend in (tensor, kept):
        dist.all_reduce(addend)
    assert torch.equal(result + kept, tensor)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: 10 of 1000 entries applied, the others kept")


def main() -> None:
    """Runs one launch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    signal.alarm(SECONDS)
    assert hvd_sparse.__file__.startswith(sys.prefix), hvd_sparse.__file__
    assert find_spec("horovod") is None
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    check_conservation()
    (resume if args.resume else train)(args.folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
