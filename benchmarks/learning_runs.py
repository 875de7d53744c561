"""Trainings to compare, each kept in a file, so that hours of them can be interrupted."""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from clusters import ClusterLauncher, Hosts, LocalLauncher

RANK_PROGRAM = str(Path(__file__).with_name("learning_rank.py"))
RANKS = 4
RUN_SECONDS = 3600  # a training that is still running then has failed


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        task: In learning_tasks.TASKS.
        method: The method, as learning_rank.method_of reads it.
        rate: Learning rate.
        steps: That the schedule is made for.
        seed: Seed of weights and batches.
        bits: Per second of every rank's link; None: one machine, where seconds say nothing.
        gloo: True if Horovod's own sums go over Gloo.
        seconds: On the clock, after which it ends.
        stop: Steps after which it ends; None: as many as the schedule has.
        ranks: The number of ranks.
        per_host: Ranks on each host.
        until: The held-out loss at which it ends; None: it goes on.
    """

    task: str
    method: str
    rate: float
    steps: int
    seed: int = 0
    bits: float | None = None
    gloo: bool = False
    seconds: float = 1e9
    stop: int | None = None
    ranks: int = RANKS
    per_host: int = 1
    until: float | None = None

    @property
    def name(self) -> str:
        """Name of its file, without the suffix."""
        where = "one-machine" if self.bits is None else f"{self.bits / 1e6:g}mbit"
        words = re.sub(r"[^A-Za-z0-9.]+", "-", self.method).strip("-")
        where += "" if self.ranks == RANKS else f"_{self.ranks}ranks"
        where += "" if self.per_host == 1 else f"_{self.per_host}perhost"
        return (
            f"{self.task}_{where}_{words}{'_gloo' if self.gloo else ''}_rate{self.rate:g}"
            f"_steps{self.steps}_seed{self.seed}"
        )


@dataclass(frozen=True)
class Account:
    """Record of a run.

    Attributes:
        run: The run.
        told: Rank 0's account: parameters, ranks, same, blocks, facts, report.
    """

    run: Run
    told: dict[str, Any]

    @cached_property
    def blocks(self) -> list[dict[str, float]]:
        """By block: step, seconds, bytes since the start; loss; held_out (loss) and accuracy."""
        return list(self.told["blocks"])

    @property
    def held_out(self) -> float:
        """The held-out loss at the end."""
        return self.blocks[-1]["held_out"]

    @property
    def accuracy(self) -> float:
        """The share of right answers on held-out data at the end; NaN if it was not counted."""
        return self.blocks[-1].get("accuracy", math.nan)

    def at(self, step: int) -> dict[str, float] | None:
        """The block that ends with this step; None where none does."""
        return next((block for block in self.blocks if block["step"] == step), None)

    def reaches(self, loss: float, what: str) -> float | None:
        """Steps, seconds or bytes until the held-out loss is that low, between blocks linearly."""
        before = {"step": 0.0, "seconds": 0.0, "bytes": 0.0, "held_out": float("inf")}
        for block in self.blocks:
            if block["held_out"] <= loss:
                drop = before["held_out"] - block["held_out"]
                part = (before["held_out"] - loss) / drop if drop < float("inf") else 1.0
                return before[what] + part * (block[what] - before[what])
            before = block
        return None

    def per_step(self, what: str) -> float:
        """Seconds or bytes of a step, over the second half of the run."""
        none = {"step": 0.0, what: 0.0}
        half = self.blocks[len(self.blocks) // 2 - 1] if len(self.blocks) > 1 else none
        end = self.blocks[-1]
        return (end[what] - half[what]) / (end["step"] - half["step"])


class Store:
    """A folder of accounts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def find(self, run: Run) -> Account | None:
        """Returns the account of a run; None if it was not made."""
        file = self.folder / f"{run.name}.json"
        if not file.exists():
            return None
        return Account(run, json.loads(file.read_text())["told"])

    def all(self) -> Iterator[Account]:
        """Everything that is there."""
        for file in sorted(self.folder.glob("*.json")):
            content = json.loads(file.read_text())
            yield Account(Run(**content["run"]), content["told"])

    def keep(self, account: Account) -> None:
        """Writes an account."""
        file = self.folder / f"{account.run.name}.json"
        half_written = file.with_suffix(".part")
        half_written.write_text(json.dumps({"run": asdict(account.run), "told": account.told}))
        half_written.rename(file)


def train(hosts: Hosts, run: Run, every: int) -> Account:
    """Makes a run on some hosts.

    Raises:
        RuntimeError: It failed, or took too long, or ranks ended with different weights.
    """
    told = Path(tempfile.gettempdir(), f"{run.name}.json")
    told.unlink(missing_ok=True)
    options: dict[str, object] = {
        "task": run.task, "method": run.method, "rate": run.rate, "steps": run.steps,
        "seed": run.seed, "seconds": run.seconds, "every": every,
        "rendezvous": hosts.address(), "json": told,
    }  # fmt: skip
    if run.bits is not None:
        options["interface"] = hosts.interface
    program = [RANK_PROGRAM, *(f"--{name}={value}" for name, value in options.items())]
    program += [f"--stop={run.stop}"] if run.stop is not None else []
    program += [f"--until={run.until}"] if run.until is not None else []
    program += ["--gloo"] if run.gloo else []
    env = {"OMP_NUM_THREADS": "1"}
    hosts.run(program, env=env, timeout=RUN_SECONDS, ranks_per_host=run.per_host)
    account = Account(run, json.loads(told.read_text()))
    told.unlink()
    if not account.told["same"]:
        raise RuntimeError("the ranks ended with different weights")
    return account


def make(runs: Sequence[Run], store: Store, *, every: int) -> list[str]:
    """Makes those runs that are missing, network by network; says what failed."""
    failed = []

    def network(run: Run) -> tuple[float | None, int]:
        return run.bits, run.ranks // run.per_host

    for bits, number in dict.fromkeys(map(network, runs)):
        missing = [
            run for run in runs if network(run) == (bits, number) and store.find(run) is None
        ]
        if not missing:
            continue
        launcher = LocalLauncher() if bits is None else ClusterLauncher()
        with launcher.hosts(number, bits or 0.0) as hosts:
            for run in missing:
                try:
                    account = train(hosts, run, every)
                except RuntimeError as error:
                    failed.append(f"{run.name}: {error}")
                    print(f"failed: {failed[-1]}", file=sys.stderr, flush=True)
                    continue
                store.keep(account)
                print(
                    f"{run.name}: {account.blocks[-1]['step']} steps, "
                    f"{account.blocks[-1]['seconds']:.0f} s, held out {account.held_out:.4f}",
                    flush=True,
                )
    return failed


def or_infinity(loss: float) -> float:
    """A loss to compare by: a training that diverged is worse than all others."""
    return math.inf if math.isnan(loss) else loss


def tuned(store: Store, run: Run, rates: Sequence[float]) -> Run:
    """The run with the rate that ended lowest without a network; by default the middle one."""
    known = [
        account
        for rate in rates
        if (account := store.find(replace(run, rate=rate, bits=None, gloo=False, seconds=1e9)))
    ]
    if not known:
        return replace(run, rate=rates[len(rates) // 2])
    return replace(run, rate=min(known, key=lambda account: or_infinity(account.held_out)).run.rate)
