"""A small training job in which one rank misbehaves; tests of jobs start it."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import threading
import time

import horovod.torch as hvd
import torch

from benchmarks.gloo_world import prepare
from hvd_sparse.torch import LAGS

# So many seconds after its backward pass, a rank of this model is amid an exchange.
EXCHANGING_SECONDS = 0.02


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--gloo", metavar="HOST:PORT", help="for Horovod over Gloo")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
    args = parser.parse_args()
    fault = args.fault

    if args.gloo is not None:
        prepare(args.gloo, "lo")
    hvd.init()
    victim = hvd.rank() == hvd.size() - 1
    torch.manual_seed(0)
    width = 48 if victim and fault == "model" else 64
    layers = [torch.nn.Linear(256, width), torch.nn.Linear(width, 64)]
    if fault == "kill in exchange":  # which then takes a while
        layers[1:] = [torch.nn.Linear(64, 65536), torch.nn.Linear(65536, 64)]
    model = torch.nn.Sequential(*layers)
    density = 0.5 if victim and fault == "density" else 0.01
    if fault == "kill in exchange":
        density = 0.2
    if fault in ("model", "density") and victim:
        tell()
    if victim and fault == "kill in construction":
        kill(model)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=LAGS(adaptive=False, density=density, min_numel=1),
    )
    for step in range(args.steps):
        breaks = victim and step == 2
        if breaks:
            FAULTS[fault](model)
        if breaks and fault == "skip":
            continue
        optimizer.zero_grad()
        model(torch.randn(8, 256)).square().mean().backward()
        if breaks and fault == "kill in wait":
            kill(model)
        if breaks and fault == "kill in exchange":
            threading.Timer(EXCHANGING_SECONDS, kill, [model]).start()
        optimizer.step()
        if hvd.rank() == 0:
            print(f"step {step} done", flush=True)
        time.sleep(args.pause)


def tell() -> None:
    """When it happened."""
    print(f"fault at {time.time()}", flush=True)


def nothing(model: torch.nn.Module) -> None:
    """It happens elsewhere, or nothing is wrong."""


def kill(model: torch.nn.Module) -> None:
    tell()
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_backward(model: torch.nn.Module) -> None:
    model[0].weight.register_hook(lambda gradient: kill(model))


def skip(model: torch.nn.Module) -> None:
    tell()


def raise_an_error(model: torch.nn.Module) -> None:
    tell()
    raise RuntimeError("a bug in the user's code")


def be_slow(model: torch.nn.Module) -> None:
    tell()
    time.sleep(6)


def stop_for(seconds: int) -> None:
    tell()
    pid = os.getpid()
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {pid}"])
    os.kill(pid, signal.SIGSTOP)


def poison(model: torch.nn.Module) -> None:
    tell()
    with torch.no_grad():
        model[0].weight[3, 5] = float("nan")


FAULTS = {
    "none": nothing,
    "model": nothing,
    "density": nothing,
    "kill in construction": nothing,
    "kill": kill,
    "kill in backward": kill_in_backward,
    "kill in exchange": nothing,
    "kill in wait": nothing,
    "exception": raise_an_error,
    "skip": skip,
    "slow": be_slow,
    "stop for 3 s": lambda model: stop_for(3),
    "stop for 30 s": lambda model: stop_for(30),
    "nan": poison,
}

if __name__ == "__main__":
    main()
