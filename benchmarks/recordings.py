"""Real gradients of the example models' layers, recorded during dense training.

One process trains, with the examples' own models, data, batches and SGD; nothing is exchanged.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from hvd_sparse.compression import LAGS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import pytorch_char_lm as char_lm
import pytorch_digits as digits

# The flat gradients, step by step, of each layer that a compression would exchange sparsely.
Recording = dict[str, list[torch.Tensor]]


def record_digits(steps: int, seed: int) -> Recording:
    """Records examples/pytorch_digits.py."""
    args = digits.parser.parse_args([])
    torch.manual_seed(seed)
    train, _ = digits.load_digits(seed)
    model = digits.Net(width=train.tensors[0].shape[-1])

    def loss(batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(model(images), labels)

    loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True)
    return _record(model, loader, loss, steps, lr=args.lr, momentum=args.momentum)


def record_char_lm(steps: int, seed: int) -> Recording:
    """Records examples/pytorch_char_lm.py."""
    args = char_lm.parser.parse_args([])
    torch.manual_seed(seed)
    text = char_lm.read_text(args.text, args.max_characters)
    model = char_lm.CharLM(args.hidden)
    loader = DataLoader(
        char_lm.cut(text, args.sequence), args.batch_size, shuffle=True, drop_last=True
    )

    def loss(batch: torch.Tensor) -> torch.Tensor:
        return char_lm.cross_entropy(model, batch)

    return _record(model, loader, loss, steps, lr=args.lr, momentum=args.momentum)


RECORDERS: dict[str, Callable[[int, int], Recording]] = {
    "digits": record_digits,
    "character LM": record_char_lm,
}


def _record(
    model: nn.Module, loader: DataLoader, loss: Callable, steps: int, **sgd: float
) -> Recording:
    optimizer = torch.optim.SGD(model.parameters(), **sgd)
    least = LAGS().layers.min_numel
    sparse = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2 and parameter.numel() >= least
    }
    recording: Recording = {name: [] for name in sparse}
    for batch in itertools.islice(_forever(loader), steps):
        optimizer.zero_grad()
        loss(batch).backward()
        for name, parameter in sparse.items():
            assert parameter.grad is not None
            recording[name].append(parameter.grad.flatten().clone())
        optimizer.step()
    return recording


def _forever(loader: DataLoader) -> Iterator:
    while True:
        yield from loader
