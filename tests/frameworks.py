"""The interface through which the laws of tests/framework_laws train with any framework.

Gradients and results are NumPy arrays by the name of their parameter. The adapters are in
tests/parallel/torch_framework.py, tests/parallel_ddp/ddp_framework.py and
tests/parallel_tensorflow/tensorflow_framework.py.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hvd_sparse.compression import Compression
from hvd_sparse.stats.step_stats import StepStats
from hvd_sparse.tuning.stages import Tuning

Arrays = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]

SHAPES = {"first": (40, 30), "bias": (7,), "second": (25, 8, 5), "last": (30, 20)}
DTYPES = ("float64", "float32", "float16", "bfloat16")


class Model(ABC):
    """Parameters whose gradients the laws choose, with what exchanges and applies them.

    Attributes:
        compression: The compression; None for Horovod's dense gradients.
    """

    compression: Compression | None

    @abstractmethod
    def step(self, gradients: Arrays) -> Arrays | None:
        """Takes a step: all passes with these gradients, the exchange, and the optimizer's step.

        Args:
            gradients: This rank's gradients; a parameter may be missing, and has none.

        Returns:
            The result of each parameter as float64; None if the loss scaling has skipped the step.

        Raises:
            Exception: `Framework.refusal`, if the step was refused.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Builds the exchange before the first step, if there is none yet. Collective."""

    @abstractmethod
    def residuals(self) -> Arrays:
        """Returns this rank's residuals as float64, flat; those of a later exchange are missing."""

    @abstractmethod
    def velocities(self) -> Arrays:
        """Returns this rank's velocities as float64, flat, if there are any."""

    @abstractmethod
    def weights(self) -> Arrays:
        """Returns the weights as float64."""

    @abstractmethod
    def moments(self) -> list[np.ndarray]:
        """Returns the optimizer's own state."""

    @abstractmethod
    def fill(self, value: float) -> None:
        """Sets all weights."""

    @abstractmethod
    def set_rate(self, rate: float) -> None:
        """Changes the learning rate."""

    @abstractmethod
    def loss_scale(self) -> float:
        """Returns the factor of the next step's loss."""

    @abstractmethod
    def stats(self) -> StepStats | None:
        """Returns the statistics of the last step."""

    @abstractmethod
    def tuning(self) -> Tuning | None:
        """Returns the tuning of an adaptive compression."""

    @abstractmethod
    def replan(self) -> None:
        """Starts the tuning anew. Collective."""

    @abstractmethod
    def save(self, folder: str | Path, **extra: Any) -> None:
        """Writes a checkpoint of the job. Collective."""

    @abstractmethod
    def load(self, folder: str | Path, **options: Any) -> dict[str, Any] | None:
        """Loads a checkpoint of the job. Collective."""

    def sparse_buckets(self) -> int:
        """Returns how many sparse buckets the last step had."""
        found = self.stats()
        return 0 if found is None else len(found.buckets)


class Framework(ABC):
    """A framework, as the laws use it.

    Attributes:
        rank: This process's rank.
        size: Number of ranks.
        everyone: Horovod's process set of all ranks.
        refusal: Type of the error of a refused step.
        loads_whole: True if a load reads the state of any compression, and leaves all as it was if
            that is refused.
        scalar: Shape of a parameter with one entry and as few dimensions as there may be.
        scales_passes: True if the loss of several passes per step can be scaled.
        fuses: True if the bits of a dense sum may depend on what is summed with it: with more than
            two ranks, its place in a message says in which order these are added up.
        tells_faults: True if an error tells a NaN from a value beyond float32, for which gradients
            on the CPU are searched.
        scales_narrow: True if the loss can be scaled where gradients are float16 or bfloat16.
        shares_residuals: True if the residuals of a node can be added up first.
        undoes_skipped: True if a step that the loss scaling skips leaves no trace; otherwise
            residuals keep its finite gradients.
    """

    rank: int
    size: int
    everyone: Any
    refusal: type[Exception]
    scales_passes: bool = True
    fuses: bool = False
    tells_faults: bool = True
    scalar: tuple[int, ...] = ()
    loads_whole: bool = True
    scales_narrow: bool = True
    shares_residuals: bool = True
    undoes_skipped: bool = False

    @abstractmethod
    def model(
        self,
        compression: Compression | None,
        shapes: Shapes = SHAPES,
        *,
        dtype: str = "float32",
        op: str = "Sum",
        predivide: float = 1.0,
        passes: int = 1,
        loss_scale: float | None = None,
        rate: float = 1.0,
        optimizer: str = "SGD",
        ranks: Any = None,
    ) -> Model:
        """Makes a model with weights of zero.

        Args:
            compression: The compression; None for Horovod's dense gradients.
            shapes: Shapes of the parameters.
            dtype: Type of parameters and gradients.
            op: "Sum" or "Average".
            predivide: Horovod's gradient_predivide_factor.
            passes: Horovod's backward_passes_per_step.
            loss_scale: First scale of the loss; None without loss scaling.
            rate: Learning rate.
            optimizer: "SGD" or "Adam".
            ranks: Process set; None: all ranks.
        """

    @abstractmethod
    def dense_refusal(self, name: str) -> str:
        """Returns a pattern of the message about a sum sent dense that is not finite."""

    @abstractmethod
    def gathered(self, values: np.ndarray, ranks: Any = None) -> np.ndarray:
        """Returns the flat float64 arrays of all ranks of a process set. Collective."""

    @abstractmethod
    def reduced(self, values: np.ndarray, dtype: str, op: str, predivide: float) -> np.ndarray:
        """Returns Horovod's own reduction of values of a type, as float64. Collective."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Seeds the random numbers that a checkpoint keeps."""

    @abstractmethod
    def coin_flips(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draws zeros and ones from the random numbers that a checkpoint keeps."""

    def integer_gradients(
        self, step: int, shapes: Shapes = SHAPES, *, low: int = -9, high: int = 10
    ) -> Arrays:
        """Returns small integers with exact sums; different on every rank and in every step."""
        return integer_gradients(step, self.rank, shapes, low=low, high=high)

    def signs(self, step: int, shapes: Shapes = SHAPES, *, norm: float = 16.0) -> Arrays:
        """Returns arrays with 256 entries of one magnitude, at indices of this rank's own.

        Their norm is exactly `norm`. Smaller arrays have fewer such entries, and a smaller norm.
        """
        rng = np.random.default_rng([step, self.rank])
        gradients = {}
        for name, shape in shapes.items():
            flat = np.zeros(math.prod(shape))
            indices = rng.permutation(flat.size)[:256]
            flat[indices] = norm / 16 * (2.0 * rng.integers(0, 2, len(indices)) - 1)
            gradients[name] = flat.reshape(shape)
        return gradients

    def totals(self, arrays: Mapping[str, np.ndarray], ranks: Any = None) -> Arrays:
        """Returns flat sums over the ranks, exact for small integers or halves of them."""
        flat = {name: np.asarray(array, np.float64).ravel() for name, array in arrays.items()}
        summed = self.gathered(np.concatenate(list(flat.values())), ranks).sum(axis=0)
        ends = np.cumsum([one.size for one in flat.values()])
        return dict(zip(flat, np.split(summed, ends[:-1]), strict=True))

    def total(self, array: np.ndarray, ranks: Any = None) -> np.ndarray:
        """Returns the flat sum over the ranks."""
        return self.totals({"": array}, ranks)[""]

    def assert_reduced(
        self, result: np.ndarray, sent: np.ndarray, dtype: str, op: str, predivide: float
    ) -> np.ndarray:
        """Compares a dense result with the reduction of what the ranks sent; returns the latter."""
        expected = self.reduced(sent, dtype, op, predivide)
        if self.fuses and self.size > 2:
            last_bits = self.size * (2.0**-7 if dtype == "bfloat16" else 2.0**-10)
            assert np.all(np.abs(result.ravel() - expected) <= last_bits * self.total(np.abs(sent)))
        else:
            assert np.array_equal(result.ravel(), expected)
        return expected

    def barrier(self) -> None:
        """Waits for all ranks."""
        self.gathered(np.zeros(1))

    def path_of_rank_0(self, path: Path) -> Path:
        """Returns rank 0's path on all ranks. Collective."""
        padded = np.frombuffer(str(path).encode().ljust(1000, b"\0"), np.uint8)
        return Path(self.gathered(padded)[0].astype(np.uint8).tobytes().rstrip(b"\0").decode())

    def assert_same_on_all_ranks(self, arrays: Mapping[str, np.ndarray], ranks: Any = None) -> None:
        """Compares bits: NaN equals NaN and -0 does not equal 0."""
        flat = np.concatenate([np.asarray(one, np.float64).ravel() for one in arrays.values()])
        everywhere = self.gathered(flat, ranks).view(np.int64)
        assert all(np.array_equal(everywhere[0], theirs) for theirs in everywhere)

    def assert_equal_on_all_ranks(self, value: object) -> None:
        """Compares the text of a value."""
        text = np.frombuffer(repr(value).encode(), np.uint8).astype(np.float64)
        lengths = self.gathered(np.array([float(text.size)]))
        assert len(np.unique(lengths)) == 1
        self.assert_same_on_all_ranks({"text": text})

    def assert_nothing_is_lost(
        self, given: Mapping[str, np.ndarray], results: Arrays, before: Arrays, after: Arrays
    ) -> None:
        """Checks the law for op=Sum: every input that is not in a residual was applied, exactly.

        Args:
            given: This rank's share of each result, before the residual joins.
            results: The sums that were applied.
            before: This rank's residuals before the step.
            after: This rank's residuals after it.
        """
        owed = {name: np.asarray(one, np.float64).ravel() for name, one in given.items()}
        for name, kept in after.items():
            owed[name] = owed[name] + before.get(name, 0.0) - kept
        for name, summed in self.totals(owed).items():
            assert np.array_equal(summed, results[name].ravel()), name

    def checked_step(self, model: Model, gradients: Arrays, *, momentum: float = 0.0) -> Arrays:
        """Takes a step for op=Sum, checks the law and that replicas are equal; returns results."""
        before, velocity = model.residuals(), model.velocities()
        results = model.step(gradients)
        assert results is not None
        grown = {
            name: gradient.astype(np.float64).ravel() + momentum * velocity.get(name, 0.0)
            for name, gradient in gradients.items()
        }
        self.assert_nothing_is_lost(grown, results, before, model.residuals())
        self.assert_same_on_all_ranks(results)
        return results


def integer_gradients(
    step: int, rank: int, shapes: Shapes = SHAPES, *, low: int = -9, high: int = 10
) -> Arrays:
    """Returns the gradients of a rank; see the method."""
    rng = np.random.default_rng([step, rank])
    return {
        name: rng.integers(low, high, shape).astype(np.float64) for name, shape in shapes.items()
    }


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Returns float32 values rounded to a narrow type, to the nearest and to even, as float64."""
    values = values.astype(np.float32)
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        up = 0x7FFF + ((bits >> 16) & 1)
        return ((bits + up) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)
    return values.astype(dtype).astype(np.float64)


def same(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> bool:
    """Returns true if arrays by name are equal, except for the sign of zero."""
    assert ours.keys() == theirs.keys()
    return all(np.array_equal(ours[name], theirs[name]) for name in ours)


def any_entry(arrays: Mapping[str, np.ndarray]) -> bool:
    """Returns true if any entry of any array is not zero."""
    return any(np.any(one) for one in arrays.values())


def with_bad_entry(gradients: Arrays, name: str, value: float, *, index: int = 0) -> Arrays:
    """Returns gradients of which one entry has a value that is not finite, or not in range."""
    flat = gradients[name].ravel().copy()
    flat[index] = value
    return {**gradients, name: flat.reshape(gradients[name].shape)}
