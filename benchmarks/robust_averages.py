"""What bad ranks do to a training, with the mean and with robust averages.

    python benchmarks/robust_averages.py learn
    python benchmarks/robust_averages.py report
    python benchmarks/robust_averages.py overhead        (as root)

`learn` trains ResNet-20 on digits with 5 and with 7 ranks on this machine. The last ones of them
send gradients that are turned round and ten times as long, noise, or gradients of 20 steps before.
Each training is kept in a file, so that this can be interrupted and gone on with; `report` prints
the table of docs/robust.md from what is there. `overhead` times steps of WRN-16-4 under DDP, whose
computing is replayed as waiting, on hosts of a virtual cluster: with the mean, and with each rule.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from clusters import ClusterLauncher
from ddp_hooks import BACKWARD, BUCKET_MB, FORWARD, job_of
from learning_attacks import ATTACKS
from learning_runs import Account, Run, Store, make
from memory import GIB
from reporting import Result, Row
from table_runs import Effort, run_replay

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

FOLDER = Path("build/robust")
STEPS, RATE, BLOCK = 300, 0.1, 100
SMALL_RULES = ("median", "trimmed_mean", "krum", "multi_krum")
RULES = (*SMALL_RULES, "bulyan")
# The rules that are tried with so many ranks, and bad ones among them.
JOBS = {(5, 1): SMALL_RULES, (7, 1): ("bulyan",), (7, 2): SMALL_RULES}


def run_of(rule: str | None, ranks: int, bad: int, attack: str | None, seed: int) -> Run:
    """Returns a training.

    Args:
        rule: The rule; None: the mean.
        ranks: Number of ranks.
        bad: Bad ranks that the rule bears, and that there are.
        attack: What they send; None: their gradients.
        seed: Seed of weights and batches.
    """
    robust = f"average=RobustAverage(rule='{rule}', bad_ranks={bad})" if rule else ""
    there = bad if attack else 0
    method = f'Attacked(mode="Dense({robust})", attack="{attack or "noise"}", bad={there})'
    return Run("CNN", method, RATE, STEPS, seed=seed, ranks=ranks)


def rows() -> Iterator[tuple[int, int, str | None]]:
    """Yields ranks, bad ranks and rule of each row of the table."""
    for (ranks, bad), rules in JOBS.items():
        yield from ((ranks, bad, rule) for rule in (None, *rules))


@app.command()
def learn(
    seeds: Annotated[int, typer.Option(min=1, help="trainings of each kind")] = 1,
    folder: Annotated[Path, typer.Option(help="where trainings are kept")] = FOLDER,
) -> None:
    """Trains what is missing."""
    runs = [
        run_of(rule, ranks, bad, attack, seed)
        for seed in range(seeds)
        for ranks, bad, rule in rows()
        for attack in (None, *ATTACKS)
    ]
    failed = make(list(dict.fromkeys(runs)), Store(folder), every=BLOCK)
    raise typer.Exit(bool(failed))


@app.command()
def report(
    seeds: Annotated[int, typer.Option(min=1, help="trainings of each kind")] = 1,
    folder: Annotated[Path, typer.Option(help="where trainings are kept")] = FOLDER,
) -> None:
    """Prints accuracies in percent, and how often ranks were left out."""
    store = Store(folder)
    print("| ranks | bad | average | none | " + " | ".join(ATTACKS) + " | left out: bad, others |")
    print("|--:|--:|---|--:|" + "--:|" * len(ATTACKS) + "--:|")
    for ranks, bad, rule in rows():
        cells = []
        accounts: list[Account] = []
        for attack in (None, *ATTACKS):
            found = [store.find(run_of(rule, ranks, bad, attack, seed)) for seed in range(seeds)]
            there = [account for account in found if account is not None]
            mean = sum(account.accuracy for account in there) / max(1, len(there))
            cells.append(f"{100 * mean:.1f}" if there else "-")
            accounts += there if attack else []
        title, shares = rule or "mean", _shares(accounts, bad)
        print(f"| {ranks} | {bad} | {title} | {' | '.join(cells)} | {shares} |")


def _shares(accounts: list[Account], bad: int) -> str:
    """Returns how often bad ranks, and others, were left out, averaged over attacks."""
    shares = [account.told["report"]["left_out"] for account in accounts]
    if not any(shares):
        return ""
    worst = [one for each in shares for one in each[-bad:]]
    others = [one for each in shares for one in each[:-bad]]
    return f"{sum(worst) / len(worst):.0%}, {sum(others) / len(others):.0%}"


@app.command()
def overhead(
    hosts: Annotated[int, typer.Option(help="a power of two, one rank each, one bad")] = 8,
    rate: Annotated[float, typer.Option(help="bits per second")] = 1e9,
    dilation: Annotated[float, typer.Option(help="of computing and links")] = 10.0,
    steps: Annotated[int, typer.Option(min=1, help="in each turn")] = 2,
    turns: Annotated[int, typer.Option(min=1, help="of each average")] = 3,
) -> None:
    """Prints the seconds of a step, and what a rule adds to those of the mean."""
    modes = {"computing alone": "compute", "mean": "Dense()"}
    modes |= {rule: f"Dense(average='{rule}')" for rule in RULES}
    job = job_of("WRN-16-4", hosts, rate, (FORWARD, BACKWARD), dilation)
    effort = Effort(
        repeat=None, steps=steps, dense_steps=1, turns=turns, untimed=1, memory=20.0 * GIB,
        timeout=900.0, tuning_skipped=1, tuning_timed=1,
    )  # fmt: skip
    with ClusterLauncher().hosts(hosts, rate / dilation) as there:
        told = run_replay(there, job, effort, list(modes.values()), ddp=True, bucket_mb=BUCKET_MB)
    of_mode = {one["mode"]: one for one in told["modes"]}
    found = {title: of_mode[mode] for title, mode in modes.items()}
    seconds = {title: statistics.median(one["seconds"]) / dilation for title, one in found.items()}
    rows = [
        Row(title, None, {"s": took, "over the mean's": took / seconds["mean"]})
        for title, took in seconds.items()
    ]
    settings = {"hosts": hosts, "rate": rate, "dilation": dilation, "model": "WRN-16-4"}
    verified = all(one["verified"] for one in found.values())
    result = Result("a step under DDP", rows, settings, verified)
    result.show()
    print(result.markdown())
    raise typer.Exit(not verified)


if __name__ == "__main__":
    app()
