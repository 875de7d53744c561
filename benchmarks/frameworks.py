"""Overhead of the PyTorch and TensorFlow interfaces over the core's exchange.

    python benchmarks/frameworks.py --ranks 4 --numel 1000000 --density 0.01

Each framework has a job of its own under mpirun, in which three variants take turns; the two
exchanges are alike:

* core: an exchange over NumPy memory, in place, started and waited for from Python;
* without: the framework copies the gradient, and exchanges nothing;
* interface: the framework copies the gradient and exchanges the copy, by `sparse_allreduce`; in
  TensorFlow within a tf.function, so that the op can work in place.

The overhead of the interface is (interface - without) / core.

A step is timed on the slowest rank, between two barriers. Core and interface must give the
same bits in every step.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import typer
from reporting import Row, Timing, report

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

FRAMEWORKS = ("torch", "tensorflow")
UNTIMED = 5  # steps before the timed ones


class Way(NamedTuple):
    """Converts a NumPy array to the framework's tensor, runs a timed step, and converts back."""

    enter: Callable[[np.ndarray], Any]
    step: Callable[[Any], Any]
    leave: Callable[[Any], np.ndarray]


Ways: TypeAlias = dict[str, Way]


def torch_ways(compression: Any, numel: int) -> Ways:
    """Returns variants through hvd_sparse.torch, whose sparse_allreduce copies."""
    import horovod.torch as hvd
    import torch

    from hvd_sparse.torch import sparse_allreduce

    residual = torch.zeros(numel)

    def step(gradient: torch.Tensor) -> torch.Tensor:
        return sparse_allreduce(gradient, residual, compression=compression, op=hvd.Sum)

    def leave(result: torch.Tensor) -> np.ndarray:
        return result.numpy()

    return {
        "without": Way(torch.from_numpy, torch.clone, leave),
        "interface": Way(torch.from_numpy, step, leave),
    }


def tensorflow_ways(compression: Any, numel: int) -> Ways:
    """Returns variants through hvd_sparse.tensorflow."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from hvd_sparse.tensorflow import sparse_allreduce

    residual = tf.Variable(tf.zeros(numel))

    one = tf.Variable(1.0)  # a variable, so that the product is not optimised away

    @tf.function
    def copy(gradient: tf.Tensor) -> tf.Tensor:
        return gradient * one

    @tf.function
    def exchange(gradient: tf.Tensor) -> tf.Tensor:
        return sparse_allreduce(gradient * one, residual, compression=compression, op=hvd.Sum)

    def leave(result: tf.Tensor) -> np.ndarray:
        return result.numpy()

    return {
        "without": Way(tf.convert_to_tensor, copy, leave),
        "interface": Way(tf.convert_to_tensor, exchange, leave),
    }


def core_way(world: Any, compression: Any, numel: int) -> Way:
    """Returns a variant through the core alone."""
    from hvd_sparse.compression.buckets import Bucket, Layer
    from hvd_sparse.exchange.array_steps import ArraySteps
    from hvd_sparse.exchange.exchange import Exchange
    from hvd_sparse.exchange.planned_bucket import add_planned_bucket
    from hvd_sparse.places.buffer import Buffer
    from hvd_sparse.planning import plan

    exchange = Exchange.between_ranks(world, name="the core alone")
    layout = Bucket((Layer("w", numel),), layer_wise=False)
    (choice,) = plan.fixed_choices(layout.layers, compression)
    steps = ArraySteps(exchange, add_planned_bucket(exchange, layout, choice, compression))
    residual, states = np.zeros(numel, np.float32), np.zeros((1, 4), np.float32)

    def step(gradient: np.ndarray) -> np.ndarray:
        steps.run([Buffer.of(gradient)], residual=Buffer.of(residual), states=Buffer.of(states))
        return gradient

    return Way(np.copy, step, np.asarray)


WAYS = {"torch": torch_ways, "tensorflow": tensorflow_ways}


def measure(framework: str, numel: int, density: float, steps: int, file: Path) -> None:
    """Runs one rank of a framework's job."""
    import importlib

    from hvd_sparse.compression import GTopK
    from hvd_sparse.ranks.world import World

    hvd = importlib.import_module(f"horovod.{framework}")
    hvd.init()
    world = World.from_horovod(hvd, hvd.global_process_set)
    compression = GTopK(density=density, sparsifier="gaussian")
    ways = {
        "core": core_way(world, compression, numel),
        **WAYS[framework](compression, numel),
    }
    own: dict[str, list[float]] = {name: [] for name in ways}
    same = True
    for number in range(UNTIMED + steps):
        rng = np.random.default_rng(1000 * number + hvd.rank())
        gradient = rng.standard_normal(numel, dtype=np.float32)
        results = {}
        for name, way in ways.items():
            entered = way.enter(gradient)
            world.allgather_object(None)  # a barrier that both frameworks have
            start = time.perf_counter()
            result = way.step(entered)
            own[name].append(time.perf_counter() - start)
            results[name] = way.leave(result).view(np.int32)
        same &= np.array_equal(results["core"], results["interface"])
    rows = np.array(world.allgather_object([*itertools.chain(*own.values()), float(same)]))
    if hvd.rank() == 0:
        slowest = rows.max(axis=0)[:-1].reshape(len(ways), -1)[:, UNTIMED:]
        account = {"seconds": dict(zip(ways, slowest.tolist(), strict=True))}
        file.write_text(json.dumps({**account, "verified": bool(rows[:, -1].all())}))
    world.allgather_object(None)


@app.command()
def main(
    ranks: Annotated[int, typer.Option(min=2)] = 4,
    numel: Annotated[int, typer.Option(min=1, help="entries of the gradient")] = 1_000_000,
    density: Annotated[float, typer.Option(help="fraction that is sent")] = 0.01,
    steps: Annotated[int, typer.Option(min=2, help="timed")] = 50,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write it here")] = None,
    rank_of: Annotated[str | None, typer.Option(hidden=True)] = None,
    out: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Times the interfaces of both frameworks against the core."""
    if rank_of is not None:
        assert out is not None
        measure(rank_of, numel, density, steps, out)
        return
    rows, verified = [], True
    with tempfile.TemporaryDirectory() as folder:
        for framework in FRAMEWORKS:
            file = Path(folder) / f"{framework}.json"
            command = [
                "mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks),
                sys.executable, __file__, f"--rank-of={framework}", f"--out={file}",
                f"--numel={numel}", f"--density={density}", f"--steps={steps}",
            ]  # fmt: skip
            subprocess.run(command, check=True)
            account = json.loads(file.read_text())
            verified &= account["verified"]
            timings = {name: Timing.of(times) for name, times in account["seconds"].items()}
            core, without, interface = (
                timings[name].median for name in ("core", "without", "interface")
            )
            rows += [Row(f"{framework}, {name}", timing, {}) for name, timing in timings.items()]
            rows[-1].facts["(interface - without) / core"] = (interface - without) / core
    report(
        f"{ranks} ranks, {numel} entries, density {density}",
        rows,
        settings={"ranks": ranks, "numel": numel, "density": density, "steps": steps},
        verified=verified,
        file=json_file,
    )
    if not verified:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
