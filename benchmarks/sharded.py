"""Sharded training between nodes that are far apart: FSDP2 as it is, and with an exchange of ours.

    python benchmarks/sharded.py --nodes 2 --mbit 100 --mbit 1000

As root, on a virtual cluster: each node holds a replica of the transformer, which its ranks share;
links between nodes are shaped, those within a node are not. For each method the table has seconds
and bytes of a step, and the seconds until the held-out loss is FSDP2's after so many steps in
float32, over those that computing and sharding alone take for as many. Every training is verified:
all replicas end with the same weights, bit for bit. Each is kept in a file, so that this can be
interrupted and gone on with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from learning_report import as_markdown, shown
from learning_runs import Account, Run, Store, make

TASK, RATE, BLOCK = "transformer", 3e-3, 25
ALONE = "Sharded(alone=True)"
FLOAT32 = "Sharded"
METHODS = {
    "computing and sharding alone": ALONE,
    "FSDP2, float32": FLOAT32,
    "FSDP2, bfloat16": "Sharded(reduces_in='bfloat16')",
    '`Dense(values="int8")`': "ShardedExchange(mode=\"Dense(values='int8')\")",
    "`LAGS`": 'ShardedExchange(mode="LAGS")',
    '`LAGS(local_steps="auto")`': "ShardedExchange(mode=\"LAGS(local_steps='auto')\")",
}


def main(
    nodes: Annotated[int, typer.Option(min=2, help="hosts, each with a replica")] = 2,
    ranks: Annotated[int, typer.Option(min=1, help="on each node, which share the replica")] = 2,
    mbit: Annotated[list[float], typer.Option(help="of a link per second, repeatedly")] = [100.0],  # noqa: B006
    goal: Annotated[
        int, typer.Option(min=BLOCK, help="steps after which FSDP2 has the loss")
    ] = 300,
    folder: Annotated[Path, typer.Option(help="of the trainings")] = Path("build/sharded"),
) -> None:
    """Makes what is missing, and prints a table."""
    store = Store(folder)
    rows = {title: [title] for title in METHODS}
    failed = []
    for number in mbit:
        whole = Run(
            TASK, FLOAT32, RATE, 2 * goal, bits=1e6 * number, ranks=nodes * ranks, per_host=ranks
        )
        first = [replace(whole, method=one, stop=goal) for one in (ALONE, FLOAT32)]
        failed += make(first, store, every=BLOCK)
        alone, dense = (store.find(run) for run in first)
        if alone is None or dense is None:
            continue
        rest = [
            replace(whole, method=method, until=dense.held_out)
            for method in METHODS.values()
            if method not in (ALONE, FLOAT32)
        ]
        failed += make(rest, store, every=BLOCK)
        found = [alone, dense, *(store.find(run) for run in rest)]
        for row, account in zip(rows.values(), found, strict=True):
            row += cells(account, alone, dense.held_out)
    columns = [
        f"{what}, {number:g} Mb/s"
        for number in mbit
        for what in ("ms a step", "kB a node sends", "to the loss")
    ]
    title = f"{nodes} nodes of {ranks} ranks, to the loss after {goal} steps"
    print(as_markdown(title, ["", *columns], list(rows.values())))
    for one in failed:
        print(f"failed: {one}")
    raise typer.Exit(code=bool(failed))


def cells(account: Account | None, alone: Account, loss: float) -> list[str]:
    """A method's figures on one network: a step's time and bytes, and the time to the loss."""
    if account is None:
        return ["", "", ""]
    took = account.reaches(loss, "seconds")
    told = took / alone.blocks[-1]["seconds"] if took is not None else None
    return [
        shown(1e3 * account.per_step("seconds"), 0),
        shown(account.per_step("bytes") / 1e3, 0),
        "" if told is None else shown(told, 2),
    ]


if __name__ == "__main__":
    typer.run(main)
