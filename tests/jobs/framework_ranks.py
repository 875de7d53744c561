"""Exchanges the same gradients through one framework; writes averages and residuals to a file.

  framework_ranks.py torch|tensorflow FOLDER

It covers every pair of a collective and a sparsifier. Run by test_frameworks.py, which compares the
files.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from hvd_sparse.compression import LAGS, SBC, Collective, Compression, Feedback, Layers, Wire
from hvd_sparse.compression.collectives import COLLECTIVES

SHAPES = {"a": (60, 50), "b": (40, 25), "c": (30, 50)}
SPARSIFIERS = ("top_k", "gaussian", "sampled", "sidco", "random_k")
STEPS = 3

# The averages and residuals after a step, by layer, flat.
Step = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


def compressions() -> Iterator[Compression]:
    """Yields compressions with collectives and sparsifiers in pairs, and a few of their options."""
    common = {
        "density": 0.02,
        "adaptive": False,
        "layers": Layers(min_numel=1),
        "feedback": Feedback(rescale=False),
    }
    small = common | {"layers": Layers(min_numel=1, bucket_numel=4000)}
    for collective, sparsifier in itertools.product(COLLECTIVES, SPARSIFIERS):
        yield LAGS(collective=collective, sparsifier=sparsifier, **small)
    yield LAGS(
        collective=Collective(name="gtopk", slack=2.0),
        wire=Wire(values="bfloat16", indices="packed"),
        **common,
    )
    alone = common | {"layers": Layers(min_numel=1, bucket_numel=1)}
    yield LAGS(collective="allgather", wire="float16", **alone)
    clipped = Feedback(momentum=0.9, clip_norm=100.0, rescale=False)
    yield LAGS(**small | {"feedback": clipped})
    yield SBC(density=0.02, layers=Layers(min_numel=1))
    # PyTorch may round weight and gradient together, so sums are exact here.
    decayed = Feedback(momentum=0.5, weight_decay=1.5, rescale=False)
    yield LAGS(**common | {"feedback": decayed})


def gradients_of(rank: int, step: int) -> dict[str, np.ndarray]:
    """Returns small integers, different on every rank and in every step."""
    rng = np.random.default_rng(1000 * step + rank)
    return {name: rng.integers(-9, 10, shape).astype(np.float32) for name, shape in SHAPES.items()}


def through_torch(compression: Compression, gradients: Sequence[dict]) -> Iterator[Step]:
    """Yields the steps of DistributedOptimizer."""
    import horovod.torch as hvd
    import torch

    import hvd_sparse.torch  # noqa: F401 teaches Horovod

    model = torch.nn.ParameterDict({n: torch.zeros(shape) for n, shape in SHAPES.items()})
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Sum,
    )
    for given in gradients:
        optimizer.zero_grad()
        sum((model[n] * torch.from_numpy(g)).sum() for n, g in given.items()).backward()
        optimizer.synchronize()
        averages = {name: model[name].grad.numpy().ravel().copy() for name in SHAPES}
        saved = optimizer.state_dict()["hvd_sparse"]["residuals"]
        with optimizer.skip_synchronize():
            optimizer.step()
        yield averages, {name: saved[name].numpy().copy() for name in SHAPES}


def through_tensorflow(compression: Compression, gradients: Sequence[dict]) -> Iterator[Step]:
    """Yields the steps of DistributedGradientTape."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    import hvd_sparse.tensorflow  # noqa: F401 teaches Horovod
    from hvd_sparse.tensorflow.registry import find_exchange

    variables = [tf.Variable(tf.zeros(shape), name=name) for name, shape in SHAPES.items()]

    @tf.function
    def step(given: list) -> list:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * g) for v, g in zip(variables, given, strict=True)])
        tape = hvd.DistributedGradientTape(tape, compression=compression, op=hvd.Sum)
        averages = tape.gradient(loss, variables)
        for variable, average in zip(variables, averages, strict=True):
            variable.assign_sub(average)
        return averages

    for given in gradients:
        averages = step([tf.constant(given[name]) for name in SHAPES])
        exchange = find_exchange(variables)
        assert exchange is not None
        left = exchange.residuals()
        yield (
            {n: average.numpy().ravel() for n, average in zip(SHAPES, averages, strict=True)},
            {name: left[name].numpy() for name in SHAPES},
        )


def horovod_of(framework: str) -> ModuleType:
    """Returns Horovod's module for a framework."""
    if framework == "torch":
        import horovod.torch as hvd
    else:
        import horovod.tensorflow as hvd
    hvd.init()
    return hvd


def main(framework: str, folder: str) -> None:
    """Runs a few steps of each compression."""
    rank = horovod_of(framework).rank()
    through = {"torch": through_torch, "tensorflow": through_tensorflow}[framework]
    gradients = [gradients_of(rank, step) for step in range(STEPS)]
    found = {}
    for compression in compressions():
        for step, (averages, left) in enumerate(through(compression, gradients)):
            for name in SHAPES:
                found[f"{compression} step {step} average of {name}"] = averages[name]
                found[f"{compression} step {step} residual of {name}"] = left[name]
    np.savez(Path(folder) / f"{framework}-{rank}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
