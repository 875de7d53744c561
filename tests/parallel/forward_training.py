"""Models, presets and helpers for tests of steps that do not wait."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.pytorch import in_flight
from hvd_sparse.torch import LAGS, SBC, Dense, GTopK, TopK
from tests.gpus import DEVICE
from tests.parallel.torch_ranks import Toy, distribute, integer_gradients

FIXED = {"density": 0.1, "layers": Layers(min_numel=64)}
COMPRESSIONS = {
    "topk": TopK(**FIXED),
    "one bucket": GTopK(**FIXED),
    "lags": LAGS(adaptive=False, **FIXED | {"layers": Layers(min_numel=64, bucket_numel=1500)}),
    "adaptive": LAGS(**FIXED),
    "sbc": SBC(layers=Layers(min_numel=64)),
    "own momentum": TopK(
        feedback=Feedback(momentum=0.5, clip_norm=1.0, weight_decay=0.01), **FIXED
    ),
    "dense": Dense(),
    "dense, int8": Dense(values="int8", layers=Layers(bucket_numel=1500)),
}
# Each layer is a bucket.
USUAL = TopK(**FIXED | {"layers": Layers(min_numel=64, bucket_numel=1)})

several = pytest.mark.usefixtures("several_ranks")


class Usual(nn.Module):
    """Layers of several kinds, all of which are used as usual."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.conv = nn.Conv1d(16, 24, 3, padding=1)
        self.norm = nn.BatchNorm1d(24)
        self.attention = nn.MultiheadAttention(24, 2, batch_first=True)
        self.recurrent = nn.LSTM(24, 20, batch_first=True)
        self.head = nn.Linear(20, 30)

    def forward(self, words):
        x = self.norm(self.conv(self.embedding(words).transpose(1, 2))).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.recurrent(x)[0])


class Unusual(nn.Module):
    """Weights that are shared, used by other modules than their own, or only now and then."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.embedding = nn.Embedding(30, 16)
        self.never_called = nn.Linear(16, 16)
        self.sometimes = nn.Linear(16, 16)
        self.unused = nn.Linear(16, 16)
        self.called_later = nn.Linear(16, 16)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embedding.weight
        self.calls = 0

    def forward(self, words):
        x = self.embedding(words) * self.scale + self.called_later.bias
        x = functional.linear(x, self.never_called.weight, self.never_called.bias)
        self.calls += 1
        if self.calls % 3 == 0:
            x = torch.tanh(self.sometimes(x))
        return self.head(self.called_later(x))


def assert_equal(one, other):
    """Compares nested states, bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            if key not in ("tuning", "conditions"):
                assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        for mine, theirs in zip(one, other, strict=True):
            assert_equal(mine, theirs)
    else:
        assert one == other


def start(compression=USUAL, *, waits=True):
    """Returns a toy model and its optimizer after a step, which may be in flight."""
    model = Toy().to(DEVICE)
    optimizer = distribute(model, compression, wait_in_forward=waits)
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    return model, optimizer


def flying(model):
    """Returns the names of the parameters in flight."""
    return {name for name, p in model.named_parameters() if in_flight.is_in_flight(p)}
