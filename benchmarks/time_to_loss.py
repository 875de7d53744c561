"""How long until the held-out loss is as low as dense makes it? Real training, many methods.

    python benchmarks/time_to_loss.py learn --task transformer
    python benchmarks/time_to_loss.py race --task transformer
    python benchmarks/time_to_loss.py report

`learn` trains with 4 ranks on this machine: no network, every method takes the same steps, once for
each of three learning rates. `race` trains on 4 hosts of a virtual cluster, as root, over links on
which dense makes a step take about 2, 4 and 8 times as long as computing alone, each method with
the rate that was best in `learn`. The clock stands still while losses are looked at. Each training
is kept in a file, so that all of this can be interrupted and gone on with; `report` prints tables
and draws plots of what is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from learning_report import (
    DENSE,
    Learned,
    Raced,
    as_markdown,
    plot_curves,
    seconds_after,
    shown,
)
from learning_runs import RANKS, Run, Store, make, tuned
from learning_tasks import TASKS, Task
from modes import picked
from progress import correlations, plot_progress, points, within_families

from hvd_sparse.planning.over_time import steps_to_a_loss

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

FOLDER = Path("build/learning")
BLOCK = 50  # steps between two looks at the held-out loss, without a network
RACE_BLOCK = 25  # on the network
GOAL = 500  # dense's loss after so many steps is what all race for; the schedule has twice as many
FEWEST_POINTS = 3  # for a rank correlation
PATIENCE = 1.25  # a method may take so much longer than dense


def gtopk_by_layers(density: float) -> str:
    """Layers sent by gtopk at one density, with Adam's own momentum and without a warm-up."""
    return (
        f"LAGS(density={density}, adaptive=False, collective='gtopk', warmup=None, "
        "feedback=Feedback(momentum='keep'))"
    )


LOCAL_STEPS = (4, 8, 16, 64)


def local(compression: str) -> str:
    """A compression with local steps; Dense is the package's here."""
    return f'WarmedUp(mode="{compression}", warmup=0)'


def own_rates(steps: int, more: str = "") -> str:
    """Local steps whose learning rate is the one given."""
    return f"LocalSteps(every={steps}, lr_scale=1{more})"


_AVERAGED = ", moments='averaged'"

# Local steps at dense's learning rate, to which the model of `steps_to_a_loss` is fitted, by title:
# steps from one meeting to the next, density, fragments, delay.
OVER_TIME = {
    f"over time: {every}, {density:g}, {fragments}, {delay}": (every, density, fragments, delay)
    for every, density, fragments, delay in (
        *((every, 1.0, 1, 0) for every in (2, 4, 8, 16, 32)),
        (4, 1.0, 1, 4), (2, 0.1, 2, 1), (4, 0.1, 4, 1), (8, 0.1, 4, 2), (16, 0.1, 4, 4),
        (32, 0.1, 4, 8), (16, 0.3, 4, 4), (2, 0.03, 2, 1), (4, 0.03, 4, 1), (8, 0.03, 4, 2),
        (2, 0.01, 2, 1),
    )
}  # fmt: skip


def over_time(every: int, density: float, fragments: int, delay: int) -> str:
    """Local steps at dense's learning rate: exact averages, or four bits of a value."""
    streams = f", fragments={fragments}, delay={delay}" if delay else ""
    steps = f"local_steps=LocalSteps(every={every}{streams})"
    if density == 1:
        return local(f"Dense({steps})")
    wire = "wire=Wire(values='int4', indices='packed')"
    return local(f"LAGS(adaptive=False, density={density:g}, warmup=None, {wire}, {steps})")


# Methods that a user can pick today, by their titles in tables. "Own momentum": the optimizer
# applies it; otherwise the ranks apply that of an Adam, before error feedback.
TODAY = {
    "dense": "Dense",
    "dense, fp16": "Dense(fp16=True)",
    "LAGS": "LAGS",
    "LAGS, not adaptive": "LAGS(adaptive=False)",
    "LAGS .001, no warm-up, own momentum": (
        "LAGS(density=0.001, warmup=None, feedback=Feedback(momentum='keep'))"
    ),
    "LAGS, not adaptive, bfloat16": "LAGS(adaptive=False, wire='bfloat16')",
    "own dense sum, bfloat16": "WarmedUp(mode=\"Dense(values='bfloat16')\", warmup=0)",
    "own dense sum, int8": "WarmedUp(mode=\"Dense(values='int8')\", warmup=0)",
    "own dense sum, int4": "WarmedUp(mode=\"Dense(values='int4')\", warmup=0)",
    "3LC": "ThreeLC",
    "SBC": "SBC",
    **{
        f"local {steps}, dense": local(f"Dense(local_steps={own_rates(steps)})")
        for steps in LOCAL_STEPS
    },
    **{
        f"local {steps}, LAGS .1": local(
            f"LAGS(adaptive=False, density=0.1, warmup=None, local_steps={own_rates(steps)})"
        )
        for steps in LOCAL_STEPS
    },
    "local 8, LAGS .01": local(f"LAGS(adaptive=False, local_steps={own_rates(8)})"),
    "local 8, dense, delay 8": local(f"Dense(local_steps={own_rates(8, ', delay=8')})"),
    "local 8, dense, moments averaged": local(f"Dense(local_steps={own_rates(8, _AVERAGED)})"),
    "local 8, LAGS .1, moments averaged": local(
        f"LAGS(adaptive=False, density=0.1, warmup=None, local_steps={own_rates(8, _AVERAGED)})"
    ),
    "local 16, dense, Nesterov": local(
        "Dense(local_steps=LocalSteps(every=16, lr_scale=1, "
        "outer=Outer(lr=0.7, momentum=0.9, nesterov=True)))"
    ),
    **{title: over_time(*point) for title, point in OVER_TIME.items()},
    "AdaComm 16, dense": local("Dense(local_steps=AdaComm(first=16, seconds=5.0))"),
    "AdaComm 16, dense, minutes": local("Dense(local_steps=AdaComm(first=16, seconds=60.0))"),
    "DDP, local 8, LAGS .1": (
        f'Hooked(mode="LAGS(adaptive=False, density=0.1, warmup=None, local_steps={own_rates(8)})")'
    ),
    "DDP, LAGS over time": "Hooked(mode=\"LAGS(local_steps='auto')\")",
    "local auto, LAGS .1": local("LAGS(density=0.1, warmup=None, local_steps='auto')"),
    "SBC .001": "SBC(density=0.001)",
    "SBC .01, local 10": "SBC(density=0.01, local_steps=10)",
    "SBC .01, local 100": "SBC(density=0.01, local_steps=100)",
    "TopK .01, warm-up 50": 'WarmedUp(mode="TopK(density=0.01)", warmup=50)',
    "TopK .01, warm-up 25": 'WarmedUp(mode="TopK(density=0.01)", warmup=25)',
    "TopK .01": "TopK(density=0.01)",
    "TopK .003, warm-up 50": 'WarmedUp(mode="TopK(density=0.003)", warmup=50)',
    "TopK .001, warm-up 50": 'WarmedUp(mode="TopK(density=0.001)", warmup=50)',
    "TopK .04, gtopk, warm-up 50": (
        "WarmedUp(mode=\"TopK(density=0.04, collective='gtopk')\", warmup=50)"
    ),
    "TopK .01, gtopk, warm-up 50": (
        "WarmedUp(mode=\"TopK(density=0.01, collective='gtopk')\", warmup=50)"
    ),
    "dense steps of TopK": "TopK(layers=Layers(min_numel=1000000000))",
    "TopK .01, warm-up 50, own momentum": (
        'WarmedUp(mode="TopK(density=0.01, feedback=Feedback(momentum=0))", warmup=50)'
    ),
    "TopK .01, warm-up 50, momentum correction": (
        'WarmedUp(mode="TopK(density=0.01, feedback=Feedback(momentum=0.9))", warmup=50)'
    ),
    "gtopk by layers .01, own momentum": gtopk_by_layers(0.01),
    "gtopk by layers .1, own momentum": gtopk_by_layers(0.1),
    "GTopK .01, own momentum": "GTopK(density=0.01, feedback=Feedback(momentum='keep'))",
    "GaussianK .01, own momentum": "GaussianK(density=0.01, feedback=Feedback(momentum='keep'))",
    "DDP": "DDP",
    "DDP, LAGS": 'Hooked(mode="LAGS")',
    "DDP, LAGS by allgather": "Hooked(mode=\"LAGS(adaptive=False, collective='allgather')\")",
    "DDP, LAGS by allgather, int4": (
        "Hooked(mode=\"LAGS(adaptive=False, collective='allgather', "
        "wire=Wire(values='int4', indices='packed'))\")"
    ),
    "DDP, LAGS by shard_topk": (
        "Hooked(mode=\"LAGS(adaptive=False, collective='shard_topk', "
        "wire=Wire(values='int4', indices='packed'))\")"
    ),
    "DDP, fp16": 'DDP(hook="fp16")',
    **{
        f"DDP, fp16, {every} batches accumulated": f'Accumulated(every={every}, hook="fp16")'
        for every in (4, 8)
    },
    **{f"DDP, PowerSGD {rank}": f'DDP(hook="powersgd", matrix_rank={rank})' for rank in (1, 4, 32)},
    "DDP, post-local SGD 8": "PostLocal(every=8)",
    **{
        f"torchft, DiLoCo {every}{title}": f"TorchFT(every={every}{options})"
        for every in (8, 16)
        for title, options in (
            ("", ""),
            (", momentum .3", ", lr=1.0, momentum=0.3"),
            (", streaming", ", fragments=2, delay=2"),
            (", streaming, momentum .3", ", fragments=2, delay=2, lr=1.0, momentum=0.3"),
        )
    },
    "average every 4": "Average(every=4)",
    "average every 10": "Average(every=10)",
    "average every 30": "Average(every=30)",
}
ALONE = "Alone"
# Prototypes for Adam, by title.
FOR_ADAM = {
    "gradients": "ErrorFeedback(density=0.01)",
    "gradients, warm-up 50": "ErrorFeedback(density=0.01, warmup=50)",
    "gradients, warm-up 50, .1": "ErrorFeedback(density=0.1, warmup=50)",
    "gradients, warm-up 50, .001": "ErrorFeedback(density=0.001, warmup=50)",
    "gradients, warm-up 50, gtopk": 'ErrorFeedback(density=0.01, collective="gtopk", warmup=50)',
    "gradients, warm-up 50, clipped in front": (
        "ErrorFeedback(density=0.01, clip_own=True, warmup=50)"
    ),
    "gradients, warm-up 50, aged": 'ErrorFeedback(density=0.01, second="aged", warmup=50)',
    "momentum, warm-up 50": 'ErrorFeedback(density=0.01, front="momentum", warmup=50)',
    "momentum, masked": 'ErrorFeedback(density=0.01, front="momentum", masked=True)',
    "momentum, warm-up 50, masked": (
        'ErrorFeedback(density=0.01, front="momentum", masked=True, warmup=50)'
    ),
    "momentum, warm-up 200, masked": (
        'ErrorFeedback(density=0.01, front="momentum", masked=True, warmup=200)'
    ),
    "momentum, warm-up 50, masked, gtopk": (
        'ErrorFeedback(density=0.01, front="momentum", masked=True, collective="gtopk", warmup=50)'
    ),
    "momentum, warm-up 50, masked, .1": (
        'ErrorFeedback(density=0.1, front="momentum", masked=True, warmup=50)'
    ),
    "momentum, warm-up 50, masked, .001": (
        'ErrorFeedback(density=0.001, front="momentum", masked=True, warmup=50)'
    ),
    "momentum, warm-up 50, aged": (
        'ErrorFeedback(density=0.01, front="momentum", second="aged", warmup=50)'
    ),
    "own Adam, g^2/P": 'ErrorFeedback(density=0.01, front="adam", second="own/P")',
    "own Adam, g^2/P, warm-up 50": (
        'ErrorFeedback(density=0.01, front="adam", second="own/P", warmup=50)'
    ),
    "own Adam, g^2/P, warm-up 200": (
        'ErrorFeedback(density=0.01, front="adam", second="own/P", warmup=200)'
    ),
    "own Adam, g^2, warm-up 50": (
        'ErrorFeedback(density=0.01, front="adam", second="own", warmup=50)'
    ),
    "own Adam, frozen after 150 dense": (
        'ErrorFeedback(density=0.01, front="adam", second="frozen", dense_steps=150)'
    ),
    "own Adam, g^2/P, warm-up 50, masked": (
        'ErrorFeedback(density=0.01, front="adam", second="own/P", masked=True, warmup=50)'
    ),
    "own Adam, g^2/P, warm-up 50, gtopk": (
        'ErrorFeedback(density=0.01, front="adam", second="own/P", collective="gtopk", warmup=50)'
    ),
    "own Adam, g^2/P, warm-up 50, .1": (
        'ErrorFeedback(density=0.1, front="adam", second="own/P", warmup=50)'
    ),
    "own Adam, g^2/P, warm-up 50, .001": (
        'ErrorFeedback(density=0.001, front="adam", second="own/P", warmup=50)'
    ),
    "EF21, momentum, warm-up 50": "EF21(density=0.01, momentum=0.9, warmup=50)",
    "DeMo, warm-up 50": "DeMo(density=0.01, warmup=50)",
    "MicroAdam, warm-up 50": "MicroAdam(density=0.01, warmup=50)",
    "local 10, .1": "SparseAverage(every=10, density=0.1)",
    "local 10, .1, forgetting": "SparseAverage(every=10, density=0.1, keep=0.95)",
}
# Prototypes for SGD with momentum.
FOR_SGD = {
    "gradients": "ErrorFeedback(density=0.01)",
    "gradients, warm-up 50": "ErrorFeedback(density=0.01, warmup=50)",
    "gradients, warm-up 50, clipped in front": (
        "ErrorFeedback(density=0.01, clip_own=True, warmup=50)"
    ),
    "momentum": 'ErrorFeedback(density=0.01, front="momentum")',
    "momentum, warm-up 50": 'ErrorFeedback(density=0.01, front="momentum", warmup=50)',
    "momentum, warm-up 50, clipped behind": (
        'ErrorFeedback(density=0.01, front="momentum", clip_own=False, warmup=50)'
    ),
    "momentum, masked": 'ErrorFeedback(density=0.01, front="momentum", masked=True)',
    "gradients, gtopk": 'ErrorFeedback(density=0.01, collective="gtopk")',
    "gradients, .1": "ErrorFeedback(density=0.1)",
    "gradients, .001": "ErrorFeedback(density=0.001)",
    "EF21, momentum, warm-up 50": "EF21(density=0.01, momentum=0.9, warmup=50)",
    "local 10, .1": "SparseAverage(every=10, density=0.1)",
}
# Prototypes that race, too. They exchange after the backward pass, tensor by tensor: not as fast as
# they could be.
FINALISTS = {
    f"prototype: {title}": FOR_ADAM[title]
    for title in ("own Adam, g^2/P, warm-up 50", "local 10, .1")
}
# Methods that only a network tells apart, and whose learning rate they take.
SAME_WITHOUT_A_NETWORK = {
    "LAGS": TODAY["LAGS, not adaptive"],
    "DDP, LAGS": TODAY["LAGS, not adaptive"],
    "DDP, local 8, LAGS .1": TODAY["local 8, LAGS .1"],
    "DDP, LAGS over time": "Dense",
    "AdaComm 16, dense, minutes": TODAY["AdaComm 16, dense"],
    "local auto, LAGS .1": TODAY["local 8, LAGS .1"],
    "dense, fp16": "Dense",
    "DDP, fp16": "Dense",
}


def methods_of(task: Task) -> dict[str, str]:
    """Returns the methods that are compared without a network, by title."""
    prototypes = FOR_ADAM if task.name == "transformer" else FOR_SGD
    today = {title: one for title, one in TODAY.items() if title not in SAME_WITHOUT_A_NETWORK}
    return today | {f"prototype: {title}": one for title, one in prototypes.items()}


def chosen(names: Sequence[str] | None) -> list[Task]:
    """The tasks of these names, or all."""
    unknown = sorted(set(names or ()) - set(TASKS))
    if unknown:
        raise typer.BadParameter(f"task must be one of {', '.join(TASKS)}, got {unknown[0]!r}")
    return [task for task in TASKS.values() if not names or task.name in names]


Names = Annotated[list[str] | None, typer.Option("--task", help="may be given repeatedly")]
Only = Annotated[list[str] | None, typer.Option("--method", help="a title; repeatedly")]
Goal = Annotated[int, typer.Option(min=RACE_BLOCK, help="steps of dense, whose loss is raced for")]
Folder = Annotated[Path, typer.Option("--folder", help="of the accounts")]
Ranks = Annotated[int, typer.Option(min=2, help="on hosts of their own")]
Rate = Annotated[
    float | None, typer.Option("--rate", help="of learning; default: what learn found")
]


@app.command()
def learn(
    task: Names = None,
    method: Only = None,
    folder: Folder = FOLDER,
    steps: Annotated[int, typer.Option(min=2 * BLOCK, help="of each training")] = 2000,
    seeds: Annotated[int, typer.Option(min=1, help="of each method's best rate")] = 1,
    rates: Annotated[int, typer.Option(min=1, max=3, help="learning rates, middle first")] = 3,
    ranks: Ranks = RANKS,
) -> None:
    """Trains without a network, all methods equally many steps."""
    store = Store(folder)
    failed = []
    for one in chosen(task):
        methods = picked(methods_of(one), method)
        low, middle, high = one.rates
        tried = (middle, high, low)[:rates]
        runs = [Run(one.name, text, 0, steps, ranks=ranks) for text in methods.values()]
        every = [replace(run, rate=rate) for rate in tried for run in runs]
        failed += make(every, store, every=BLOCK)
        for seed in range(1, seeds):
            best = [tuned(store, run, tried) for run in runs]
            failed += make([replace(run, seed=seed) for run in best], store, every=BLOCK)
    finish(failed)


@app.command()
def race(
    task: Names = None,
    method: Only = None,
    folder: Folder = FOLDER,
    network: Annotated[
        list[int] | None, typer.Option(min=0, max=2, help="of the three, repeatedly")
    ] = None,
    mbit: Annotated[
        list[float] | None, typer.Option(help="of a link per second, in place of those; repeatedly")
    ] = None,
    rate: Rate = None,
    learned: Annotated[int, typer.Option(help="steps of the runs that chose the rates")] = 2000,
    goal: Goal = GOAL,
    ranks: Ranks = RANKS,
    seed: Annotated[int, typer.Option(help="of weights and batches")] = 0,
    dense_steps: Annotated[
        int | None, typer.Option(help="end dense's trainings after so many, if one has reached it")
    ] = None,
    ends_at_goal: Annotated[
        bool, typer.Option("--ends-at-goal", help="end a training at dense's loss")
    ] = False,
) -> None:
    """Trains on a network, against the clock; of dense sums, --method can leave out MPI's."""
    store = Store(folder)
    failed = []
    mpi, gloo = DENSE
    for one in chosen(task):
        networks = [1e6 * number for number in mbit or ()]
        networks = networks or [one.bits[number] for number in network or (0, 1, 2)]
        for bits in networks:
            every = racers(store, one, bits, learned, goal, rate, ranks=ranks, seed=seed)
            titles = ("alone", gloo) if method and mpi not in method else ("alone", *DENSE)
            first = [every[title] for title in titles]
            short = [first[0], *(replace(run, stop=dense_steps or goal) for run in first[1:])]
            failed += make(short, store, every=RACE_BLOCK)
            dense = [account for run in first[1:] if (account := store.find(run))]
            if not dense:
                continue
            limit = PATIENCE * min(seconds_after(account, goal) for account in dense)
            loss = goal_of(store, first[1], goal) if ends_at_goal else None
            rest = [
                replace(run, seconds=limit, until=loss) for run in picked(every, method).values()
            ]
            failed += make(rest, store, every=RACE_BLOCK)
    finish(failed)


def goal_of(store: Store, dense: Run, goal: int) -> float:
    """The loss that dense has after the goal's steps, on any network.

    Raises:
        typer.BadParameter: No training of dense has taken as many.
    """
    same = (dense.task, dense.method, dense.rate, dense.steps, dense.seed, dense.ranks)
    for account in store.all():
        one, block = account.run, account.at(goal)
        if block and same == (one.task, one.method, one.rate, one.steps, one.seed, one.ranks):
            return block["held_out"]
    raise typer.BadParameter(f"dense has to take {goal} steps once: leave out --dense-steps")


def racers(
    store: Store,
    task: Task,
    bits: float,
    learned: int,
    goal: int,
    rate: float | None = None,
    *,
    ranks: int = RANKS,
    seed: int = 0,
) -> dict[str, Run]:
    """The runs on one network, by title; a learning rate is that of all but Horovod's own sums."""
    runs = {}
    for title, text in (*TODAY.items(), *FINALISTS.items()):
        like = SAME_WITHOUT_A_NETWORK.get(title, text)
        best = tuned(store, Run(task.name, like, 0, learned), task.rates).rate
        own = best if rate is None or title == "dense" else rate
        runs[title] = Run(task.name, text, own, 2 * goal, seed=seed, bits=bits, ranks=ranks)
    dense = replace(runs.pop("dense"), stop=goal)
    alone = replace(dense, method=ALONE)
    mpi, gloo = DENSE
    return {"alone": alone, mpi: dense, gloo: replace(dense, gloo=True), **runs}


@app.command()
def report(
    task: Names = None,
    folder: Folder = FOLDER,
    steps: Annotated[int, typer.Option(help="of the trainings without a network")] = 2000,
    goal: Goal = GOAL,
    rate: Rate = None,
    ranks: Ranks = RANKS,
    seed: Annotated[int, typer.Option(help="of the trainings on a network")] = 0,
    plots: Annotated[Path | None, typer.Option(help="a folder for pictures")] = None,
) -> None:
    """Prints tables of what is there, as Markdown, and draws it."""
    store = Store(folder)
    for one in chosen(task):
        learned = Learned(store, one.name, steps, methods_of(one), one.rates)
        if "dense" in learned.best:
            print(learned.table())
            if plots is not None:
                curves = {title: accounts[0] for title, accounts in learned.best.items()}
                plot_curves({one.name: curves}, ["step"], plots / f"learned_{one.name}.png")
            found = points(learned.best)
            if len(found) >= FEWEST_POINTS:
                within = within_families(found)
                rows = [
                    [name, shown(rank, 2), shown(within[name], 2)]
                    for name, rank in correlations(found).items()
                ]
                title = f"{one.name}: rank correlation with progress, {len(found)} trainings"
                print(as_markdown(title, ["predictor", "all", "within families"], rows))
                if plots is not None:
                    plot_progress(found, plots / f"progress_{one.name}.png")
        runs = [account.run for account in store.all()]
        found_bits = {run.bits for run in runs if run.task == one.name and run.bits is not None}
        every = sorted(found_bits.union(one.bits), reverse=True)
        networks = [
            racers(store, one, bits, steps, goal, rate, ranks=ranks, seed=seed) for bits in every
        ]
        raced = Raced(one.name, networks, store, goal)
        if raced.networks:
            print(raced.table())
            if plots is not None:
                file = plots / f"raced_{one.name}.png"
                plot_curves(raced.curves(), ["seconds", "bytes"], file)


@app.command()
def fit(
    task: Annotated[str, typer.Option(help="one of learning_tasks.TASKS")] = "transformer",
    folder: Folder = FOLDER,
    steps: Annotated[int, typer.Option(help="of the trainings without a network")] = 1000,
) -> None:
    """Compares the steps to dense's loss of local steps with the model by which plans are made."""
    store, one = Store(folder), TASKS[task]
    methods = {"dense": TODAY["dense"]} | {title: TODAY[title] for title in OVER_TIME}
    learned = Learned(store, one.name, steps, methods, one.rates)
    rows, errors = [], []
    for title in (title for title in OVER_TIME if title in learned.best):
        every, density, fragments, delay = OVER_TIME[title]
        seen, model = learned.steps_to_dense(title), steps_to_a_loss(every, density, delay)
        errors += [] if seen is None else [model - seen]
        held_out = learned.best[title][0].held_out
        rows.append(
            [str(every), f"{density:g}", str(fragments), str(delay), shown(held_out),
             shown(seen, 2), shown(model, 2)]
        )  # fmt: skip
    columns = ["every", "density", "fragments", "delay", "held-out loss", "steps", "model"]
    print(as_markdown(f"{task}: steps to dense's loss half-way, over dense's", columns, rows))
    if errors:
        print(
            f"root mean square error of the model: {math.hypot(*errors) / len(errors) ** 0.5:.3f}"
        )


def finish(failed: Sequence[str]) -> None:
    """Ends with status 1 if a training failed."""
    for line in failed:
        print(f"failed: {line}")
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
