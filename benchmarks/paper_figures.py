"""Step times that the papers have published: context for the measurements made here.

LAGS: Shi et al., ECAI 2020, https://arxiv.org/abs/1911.08727, 16 GPUs at 1 Gb/s.
gTop-k: Shi et al., ICDCS 2019, https://arxiv.org/abs/1901.04359, 32 GPUs at 1 Gb/s.
"""

from __future__ import annotations

from dataclasses import dataclass

BACKWARD_SHARE = 2 / 3  # of a step's compute, if a paper gives only the sum


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One model in one paper. All times are seconds per step.

    Attributes:
        model: Name in paper_models.MODELS.
        ranks: Number of workers.
        rate: Rate of the network, in bits per second.
        density: Fraction of the gradient that is sent.
        forward: Forward pass on one GPU.
        backward: Backward pass on one GPU.
        steps: Step time by method, in the paper's own order: "dense", "SLGS" (top-k of the whole
            model, allgathered), "LAGS", "gTop-k".
        select: Selection in a sparse step, if known.
        communication: Exchange in a sparse step without overlap, if known.
    """

    model: str
    ranks: int
    rate: float
    density: float
    forward: float
    backward: float
    steps: dict[str, float]
    select: float | None = None
    communication: float | None = None

    @property
    def compute(self) -> float:
        """Time of forward and backward."""
        return self.forward + self.backward

    def speed_up(self, method: str, over: str) -> float:
        """Returns the ratio of the other method's step time to this one's."""
        return self.steps[over] / self.steps[method]

    def efficiency(self, method: str) -> float:
        """Returns the share of the step that is compute."""
        return self.compute / self.steps[method]


def _lags(
    model: str,
    density: float,
    parts: tuple[float, float, float, float],
    steps: tuple[float, float, float],
) -> PaperRow:
    forward, backward, select, communication = parts
    return PaperRow(
        model=model,
        ranks=16,
        rate=1e9,
        density=density,
        forward=forward,
        backward=backward,
        select=select,
        communication=communication,
        steps=dict(zip(("dense", "SLGS", "LAGS"), steps, strict=True)),
    )


def _gtopk(model: str, batch: int, samples_per_second: tuple[float, ...]) -> PaperRow:
    alone, *together = (batch / rate for rate in samples_per_second)
    return PaperRow(
        model=model,
        ranks=32,
        rate=1e9,
        density=0.001,
        forward=(1 - BACKWARD_SHARE) * alone,
        backward=BACKWARD_SHARE * alone,
        steps=dict(zip(("dense", "SLGS", "gTop-k"), together, strict=True)),
    )


# Forward, backward, selection and communication; then dense, whole-model sparse and LAGS.
LAGS_TABLE = (
    _lags("ResNet-50", 0.001, (0.090, 0.120, 0.138, 0.319), (1.45, 0.67, 0.51)),
    _lags("Inception-v4", 0.001, (0.305, 0.524, 0.237, 0.536), (3.85, 1.60, 1.25)),
    _lags("LSTM-PTB", 0.004, (0.076, 0.131, 0.375, 0.437), (7.80, 1.02, 0.92)),
)

# Samples per worker and step; then samples per second and worker: on one GPU alone, dense, TopK by
# allgather, gTop-k.
GTOPK_TABLE = (
    _gtopk("VGG-16", 128, (1317, 12.6, 63.0, 123.2)),
    _gtopk("ResNet-20", 32, (921, 288, 696, 789)),
    _gtopk("AlexNet", 32, (173, 1.23, 9.24, 15.8)),
    _gtopk("ResNet-50", 32, (52.9, 10.7, 30.6, 39.1)),
    _gtopk("LSTM-PTB", 32, (392, 2.1, 5.4, 10.8)),
)

# For the sweep only. No paper's GPU: 32 sequences of 128 tokens at 12 trillion operations a second,
# which is near the step of ResNet-50 above; backward takes twice as many operations as forward.
BERT_BASE = PaperRow(
    model="BERT-base",
    ranks=8,
    rate=1e10,
    density=0.001,
    forward=0.06,
    backward=0.12,
    steps={},
)
