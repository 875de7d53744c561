"""A small training job in which one rank misbehaves; tests/jobs/test_faults.py starts it."""

from __future__ import annotations

import argparse
import os
import signal
import time

import horovod.torch as hvd
import torch

from hvd_sparse.torch import LAGS


def die_in_backward(_gradient: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=FAULTS)
    fault = parser.parse_args().fault

    hvd.init()
    victim = hvd.rank() == hvd.size() - 1
    torch.manual_seed(0)
    width = 48 if victim and fault == "model" else 64
    model = torch.nn.Sequential(torch.nn.Linear(256, width), torch.nn.Linear(width, 64))
    density = 0.5 if victim and fault == "density" else 0.01
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=LAGS(adaptive=False, density=density, min_numel=1),
    )
    for step in range(4):
        if victim and step == 2:
            FAULTS[fault](model)
        optimizer.zero_grad()
        model(torch.randn(8, 256)).square().mean().backward()
        if victim and step == 2 and fault == "kill in wait":
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        if hvd.rank() == 0:
            print(f"step {step} done", flush=True)


def nothing(model: torch.nn.Module) -> None:
    """The ranks differ from the start, or nothing is wrong."""


def kill(model: torch.nn.Module) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_backward(model: torch.nn.Module) -> None:
    model[0].weight.register_hook(die_in_backward)


def raise_an_error(model: torch.nn.Module) -> None:
    raise RuntimeError("a bug in the user's code")


def be_slow(model: torch.nn.Module) -> None:
    time.sleep(6)


def poison(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model[0].weight[3, 5] = float("nan")


FAULTS = {
    "none": nothing,
    "model": nothing,
    "density": nothing,
    "kill": kill,
    "kill in backward": kill_in_backward,
    "kill in wait": nothing,
    "exception": raise_an_error,
    "slow": be_slow,
    "nan": poison,
}

if __name__ == "__main__":
    main()
