"""Every framework gives the bits that the core gives without one.

The expected bits come from threads that exchange the gradients of all ranks through the core alone,
bucket by bucket. Dense gradients are left out: their sums are Horovod's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hvd_sparse.compression import LAGS, SBC, Compression, Feedback, GTopK, Layers, TopK
from hvd_sparse.compression.collectives import COLLECTIVES, SHARD_SUM
from hvd_sparse.compression.parts import AUTO
from tests import laws
from tests.cases import in_turn
from tests.dense_sums import DENSE_SUMS, SPARSER_TERNARY

SHAPES = {"first": (40, 30), "second": (25, 8, 5), "last": (30, 20)}
STEPS = 4


@dataclass(frozen=True)
class Case:
    """A compression, with the buckets that it is expected to form.

    Attributes:
        compression: A compression that is not adaptive.
        buckets: Names of the parameters of each bucket, in order.
        sparsifier: Name of the sparsifier.
        collective: Name of the collective.
    """

    compression: Compression
    buckets: tuple[tuple[str, ...], ...]
    sparsifier: str
    collective: str


BACKWARDS = ("last", "second", "first")
TWO_BUCKETS = (("last", "second"), ("first",))
THREE_BUCKETS = (("last",), ("second",), ("first",))
FIXED = {
    "density": 0.05,
    "layers": Layers(min_numel=64, bucket_numel=1700),
    "feedback": Feedback(rescale=False),
    "warmup": None,
}
ALONE = FIXED | {"layers": Layers(min_numel=64)}
CASES = {
    "lags": Case(LAGS(adaptive=False, **FIXED), TWO_BUCKETS, "gaussian", "allgather"),
    "lags, gtopk": Case(
        LAGS(adaptive=False, collective="gtopk", **FIXED), TWO_BUCKETS, "gaussian", "gtopk"
    ),
    "gtopk": Case(GTopK(**FIXED), (BACKWARDS,), "top_k", "gtopk"),
    "topk": Case(TopK(**FIXED), TWO_BUCKETS, "top_k", "allgather"),
    "sbc": Case(SBC(**ALONE), THREE_BUCKETS, "one_sign", "allgather"),
}
MOMENTUM = {
    "lags": LAGS(adaptive=False, **FIXED | {"feedback": Feedback(rescale=False, momentum=0.9)}),
    "lags, gtopk": LAGS(
        adaptive=False,
        collective="gtopk",
        **FIXED | {"feedback": Feedback(rescale=False, momentum=0.9)},
    ),
    "gtopk": GTopK(**FIXED | {"feedback": Feedback(rescale=False, momentum=0.9)}),
    "topk": TopK(**FIXED | {"feedback": Feedback(rescale=False, momentum=0.9)}),
    "sbc": SBC(**ALONE | {"feedback": Feedback(rescale=False, momentum=0.9)}),
}


def gradients_of(rank, step, shapes):
    rng = np.random.default_rng([step, rank])
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def expected_bits(case, size, *, shapes, dtype, op):
    """Returns, by rank and step, results, residuals and velocities by parameter."""
    expected = [[({}, {}, {}) for _ in range(STEPS)] for _ in range(size)]
    for names in case.buckets:
        numels = [math.prod(shapes[name]) for name in names]

        def train(rank, names=names, numels=numels):
            for step in range(STEPS):
                gradients = gradients_of(rank.rank, step, shapes)
                flat = np.concatenate([gradients[name].ravel() for name in names])
                rank.step(flat, output_scale=1 / size if op == "Average" else 1.0)
                found = rank.array.numpy().copy(), rank.residual.copy(), rank.velocity.copy()
                for kept, whole in zip(expected[rank.rank][step], found, strict=True):
                    kept |= zip(names, np.split(whole, np.cumsum(numels)[:-1]), strict=True)

        laws.on_threads(
            size,
            train,
            segments=numels if case.compression.layers.layer_wise else [sum(numels)],
            density=case.compression.density,
            sparsifier=case.sparsifier,
            collective=case.collective,
            values="float32" if case.compression.values == AUTO else case.compression.values,
            scale=case.compression.collective_options.get("scale", 1.0),
            momentum=case.compression.feedback.own_momentum,
            dtype=dtype,
            numels=numels,
        )
    return expected


def bits_of(arrays):
    """Returns the bits of arrays by name; all values are float32."""
    return {name: array.astype(np.float32).tobytes() for name, array in arrays.items()}


def check_bits(framework, case, *, shapes=SHAPES, dtype="float32", op="Sum"):
    expected = expected_bits(case, framework.size, shapes=shapes, dtype=dtype, op=op)
    leaves = case.collective != SHARD_SUM or case.compression.values != "float32"
    model = framework.model(case.compression, shapes, dtype=dtype, op=op)
    for step in range(STEPS):
        results = model.step(gradients_of(framework.rank, step, shapes))
        sums, residuals, velocities = expected[framework.rank][step]
        assert bits_of(results) == bits_of(sums)
        assert bits_of(model.residuals()) == bits_of(residuals)
        if case.compression.feedback.own_momentum:
            assert bits_of(model.velocities()) == bits_of(velocities)
        assert all(np.any(one) == leaves for one in residuals.values())


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize("with_momentum", [False, True], ids=["plain", "momentum"])
@pytest.mark.parametrize("name", CASES)
def test_training_gives_the_bits_of_the_core(framework, name, with_momentum, op):
    case = CASES[name]
    if with_momentum:
        case = Case(MOMENTUM[name], case.buckets, case.sparsifier, case.collective)
    check_bits(framework, case, op=op)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("compression", [*DENSE_SUMS.values(), SPARSER_TERNARY], ids=repr)
def test_a_dense_sum_gives_the_bits_of_the_core(framework, compression, momentum):
    compression = replace(compression, feedback=replace(compression.feedback, momentum=momentum))
    check_bits(framework, Case(compression, TWO_BUCKETS, "top_k", SHARD_SUM), op="Average")


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize(
    ("sparsifier", "collective"),
    in_turn(
        ["top_k", "gaussian", "sampled", "sidco", "one_sign"],
        [*COLLECTIVES],
    ),
)
def test_every_collective_and_sparsifier_gives_the_bits_of_the_core(
    framework, collective, sparsifier
):
    compression = LAGS(
        density=0.02,
        sparsifier=sparsifier,
        collective=collective,
        adaptive=False,
        layers=Layers(min_numel=1),
        warmup=None,
    )
    shapes = {"w": (60, 50)}
    check_bits(framework, Case(compression, (("w",),), sparsifier, collective), shapes=shapes)
