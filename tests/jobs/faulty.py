"""A small training job in which one rank misbehaves; started by tests of jobs."""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import horovod.torch as hvd
import torch

from benchmarks.gloo_world import prepare
from hvd_sparse import _core
from hvd_sparse.compression import Layers, LocalSteps
from hvd_sparse.torch import LAGS

# Seconds after its backward pass at which a rank of this model is exchanging.
EXCHANGING_SECONDS = 0.02
# These faults use a large model; those of EARLY occur in the first step, when memory grows.
LARGE = ("kill in exchange", "memory", "fill shm")
EARLY = ("memory", "fill shm")
# These have no layer that Horovod sums: it would need memory, and report its shutdown by itself.
ALONE = (*EARLY, "leave")
# Seconds that others compute after a rank has ended; MPI shuts down meanwhile if it left.
COMPUTING_SECONDS = 1.5
WHILE_OTHERS_COMPUTE = ("leave", "kill while others compute")
# Seconds after the last backward pass at which a rank waits for others, and then of the delay.
WAITING_SECONDS, HELD_SECONDS = 0.5, 3
# While the lifeline is being connected, this rank is killed; another one is late.
KILLED_WHILE_CONNECTING = {"kill while connecting": 2, "kill rank 0 while connecting": 0}
CONNECTING_SECONDS, LATE_SECONDS = 0.5, 1.5
# Seconds that the rank stays after its last step.
STAYS = {"skip and stay": 6, "late": 4}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--gloo", metavar="HOST:PORT", help="for Horovod over Gloo")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--streams", action="store_true", help="fragments meet, a step late")
    parser.add_argument("--forward", action="store_true", help="step() does not wait")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
    args = parser.parse_args()
    fault = args.fault

    if args.gloo is not None:
        prepare(args.gloo, "lo")
    hvd.init()
    victim = hvd.rank() == hvd.size() - 1
    torch.manual_seed(0)
    width = 48 if victim and fault == "model" else 64
    bias = fault not in ALONE
    sizes = [256, width, 64]
    large = fault in LARGE  # exchanges then take noticeable time and memory
    if large:
        sizes[2:] = [65536, 64]
    layers = [torch.nn.Linear(*shape, bias=bias) for shape in pairwise(sizes)]
    model = torch.nn.Sequential(*layers)
    density = 0.5 if victim and fault == "density" else 0.01
    if large:
        density = 0.2
    if fault in ("model", "density", "small shm", "late") and victim:
        print_fault_time()
    if victim and fault == "kill in construction":
        kill(model)
    if fault in KILLED_WHILE_CONNECTING:
        kill_while_connecting(KILLED_WHILE_CONNECTING[fault])
    local_steps = args.local_steps
    if args.streams:
        local_steps = LocalSteps(every=local_steps, fragments=local_steps, delay=1)
    before = set(own_threads())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=LAGS(
            adaptive=False,
            density=density,
            layers=Layers(min_numel=1),
            local_steps=local_steps,
        ),
        wait_in_forward=args.forward,
    )
    of_exchange = set(own_threads()) - before
    for step in range(args.steps):
        held = fault == "hold" and step == args.steps - 1
        breaks = victim and step == (0 if fault in EARLY else 2)
        if breaks:
            FAULTS[fault](model)
        if breaks and fault in ("skip", "skip and stay"):
            continue
        if fault in WHILE_OTHERS_COMPUTE and step == 2:
            if victim:
                break
            time.sleep(COMPUTING_SECONDS)
        if held and not victim:
            time.sleep(COMPUTING_SECONDS)
        optimizer.exchange.mark_step(f"batch {step}")
        optimizer.zero_grad()
        model(torch.randn(8, 256)).square().mean().backward()
        if breaks and fault == "kill in wait":
            kill(model)
        if breaks and fault == "kill in exchange":
            threading.Timer(EXCHANGING_SECONDS, kill, [model]).start()
        if held and victim:
            hold_up(of_exchange)
        optimizer.step()
        if hvd.rank() == 0:
            print(f"step {step} done", flush=True)
        time.sleep(args.pause)
    if victim and fault in STAYS:
        time.sleep(STAYS[fault])
    hvd.stop_timeline()  # otherwise Horovod's own lacks the events not written at shutdown


def print_fault_time() -> None:
    """Prints the time of the fault."""
    print(f"fault at {time.time()}", flush=True)


def nothing(model: torch.nn.Module) -> None:
    """Does nothing: the fault is elsewhere, or there is none."""


def kill(model: torch.nn.Module | None) -> None:
    print_fault_time()
    os.kill(os.getpid(), signal.SIGKILL)


def kill_while_connecting(rank: int) -> None:
    """Kills a rank that has connected to the lifeline, or listens for it; rank 1 is late."""
    connect = _core.Lifeline.connect

    def connect_or_die(*args: object) -> None:
        if hvd.rank() == rank:
            threading.Timer(CONNECTING_SECONDS, kill, [None]).start()
        elif hvd.rank() == 1:
            time.sleep(LATE_SECONDS)
        connect(*args)

    _core.Lifeline.connect = connect_or_die


def leave_by_exit(model: torch.nn.Module) -> None:
    print_fault_time()
    sys.exit(7)


def kill_in_backward(model: torch.nn.Module) -> None:
    model[0].weight.register_hook(lambda gradient: kill(model))


def skip(model: torch.nn.Module) -> None:
    print_fault_time()


def raise_an_error(model: torch.nn.Module) -> None:
    print_fault_time()
    raise RuntimeError("a bug in the user's code")


def be_slow(model: torch.nn.Module) -> None:
    print_fault_time()
    time.sleep(6)


def stop_for(seconds: int) -> None:
    print_fault_time()
    pid = os.getpid()
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {pid}"])
    os.kill(pid, signal.SIGSTOP)


def use_up_memory(model: torch.nn.Module) -> None:
    """Leaves about 1 MiB for selecting and sending, once a large gradient is there."""

    def limit(gradient: torch.Tensor) -> None:
        print_fault_time()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (1 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    model[1].weight.register_hook(limit)


def own_threads() -> Iterable[int]:
    return (int(task.name) for task in Path("/proc/self/task").iterdir())


def hold_up(threads: Iterable[int]) -> None:
    """Keeps threads that wait for other ranks from receiving for a while."""
    time.sleep(WAITING_SECONDS)
    print_fault_time()
    libc = ctypes.CDLL(None)
    # Called with the signal's number: the thread that gets it sleeps for that many seconds.
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(HELD_SECONDS, ctypes.cast(libc.sleep, ctypes.c_void_p))
    for thread in threads:
        libc.tgkill(os.getpid(), thread, HELD_SECONDS)


def fill_shm(model: torch.nn.Module) -> None:
    """Fills /dev/shm, which is the job's own, to the last byte."""
    print_fault_time()
    size = os.statvfs("/dev/shm")
    assert size.f_blocks * size.f_frsize <= 1 << 26, "this is the machine's /dev/shm"
    with suppress(OSError), open("/dev/shm/full", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


def poison(model: torch.nn.Module) -> None:
    print_fault_time()
    with torch.no_grad():
        model[0].weight[3, 5] = float("nan")


FAULTS = {
    "none": nothing,
    "small shm": nothing,
    "fill shm": fill_shm,
    "model": nothing,
    "density": nothing,
    "kill in construction": nothing,
    "kill while connecting": nothing,
    "kill rank 0 while connecting": nothing,
    "exit": leave_by_exit,
    "kill": kill,
    "kill while others compute": kill,
    "kill in backward": kill_in_backward,
    "kill in exchange": nothing,
    "kill in wait": nothing,
    "exception": raise_an_error,
    "skip": skip,
    "skip and stay": skip,
    "leave": skip,
    "late": nothing,
    "hold": nothing,
    "memory": use_up_memory,
    "slow": be_slow,
    "stop for 3 s": lambda model: stop_for(3),
    "stop for 30 s": lambda model: stop_for(30),
    "nan": poison,
}

if __name__ == "__main__":
    main()
