"""Times the coding of blocks for the wire, and finds the bandwidth above which it does not pay."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import oracle
import torch
from blocks import holds
from reporting import Row, Timing

from hvd_sparse import _core

BLOCKS = 16  # in rotation
HEADER = 32  # bytes of a message before its entries
SCALED_BLOCK = 64  # values of int8 and int4 that share a scale
DTYPES = ("float32", "bfloat16", "float16", "int8", "int4", "binary")
FORMATS = [(packed, dtype) for dtype in DTYPES for packed in (True, False)]
PLAIN = (False, "float32")
COPY = "memcpy of the plain message"


@dataclass(frozen=True)
class Message:
    """A block of k entries at random positions, and the blocks expected after coding.

    Attributes:
        blocks: The block before coding, by type: binary values are of one sign.
        rounded: The block by type, with the rounded values.
    """

    blocks: dict[str, oracle.Block]
    rounded: dict[str, oracle.Block]

    @classmethod
    def drawn(cls, k: int, numel: int, generator: np.random.Generator) -> Message:
        indices = np.sort(generator.choice(numel, size=k, replace=False)).astype(np.int32)
        values = generator.laplace(size=k).astype(np.float32)
        given = {name: 1 + np.abs(values) if name == "binary" else values for name in DTYPES}
        return cls(
            {name: oracle.Block(indices, one) for name, one in given.items()},
            {name: oracle.Block(indices, rounded_to(name, one)) for name, one in given.items()},
        )


def rounded_to(dtype: str, values: np.ndarray) -> np.ndarray:
    """Returns the numbers of a type to which float32 values of usual sizes round."""
    if dtype == "binary":
        return np.full_like(values, mean_of(values))
    if dtype.startswith("int"):
        return rounded_to_integers(values, most=127 if dtype == "int8" else 7)
    return torch.from_numpy(values).to(getattr(torch, dtype)).to(torch.float32).numpy()


def rounded_to_integers(values: np.ndarray, *, most: int) -> np.ndarray:
    """Returns integers of at most `most` times the smallest power of two that reaches a block."""
    padded = np.pad(values.astype(np.float64), (0, -len(values) % SCALED_BLOCK))
    blocks = padded.reshape(-1, SCALED_BLOCK)
    least = np.abs(blocks).max(axis=1, keepdims=True) / most
    scales = np.exp2(np.ceil(np.log2(least)))
    numbers = np.rint(blocks / scales) * scales + 0.0  # without -0.0
    return numbers.astype(np.float32).reshape(-1)[: len(values)]


def mean_of(magnitudes: np.ndarray) -> float:
    """Returns the number that is sent for magnitudes: see csrc/wire/binary_coder.h."""
    mean = magnitudes.cumsum(dtype=np.float64)[-1] / len(magnitudes)
    place = float(np.spacing(magnitudes.max()))
    return min(mean, 2 * float(magnitudes.min())) // place * place


class Coding:
    """All formats; each yields (name, seconds, bytes, true if the result is right)."""

    def __init__(self, k: int, numel: int) -> None:
        generator = np.random.default_rng(1)
        self._messages = [Message.drawn(k, numel, generator) for _ in range(BLOCKS)]
        self._coders = {
            (packed, dtype): _core.Coder(packed=packed, values=dtype, numel=numel)
            for packed, dtype in FORMATS
        }
        self._plain = np.zeros(HEADER + 8 * k, np.uint8)
        self._copies = [np.zeros_like(self._plain) for _ in range(BLOCKS)]
        self._received = _core.Block([], [])

    def step(self, number: int) -> Iterator[tuple[str, float, int, bool]]:
        """Runs all formats, in shuffled order."""
        pieces = [self.code(number, one) for one in FORMATS if one != PLAIN]
        pieces.append(self._copy(self._copies[number % BLOCKS]))
        random.shuffle(pieces)
        for piece in pieces:
            yield from piece

    def code(self, number: int, wire: tuple[bool, str]) -> Iterator[tuple[str, float, int, bool]]:
        """Runs one of FORMATS; the last that it yields is all of the coding."""
        message = self._messages[number % BLOCKS]
        packed, dtype = wire
        coder = self._coders[wire]
        block = _core.Block(message.blocks[dtype].indices, message.blocks[dtype].values)
        name = f"{'packed' if packed else 'plain'}, {dtype}: "
        narrowed = encoded = time.perf_counter()
        if dtype != "float32":
            coder.narrow(block)
            encoded = time.perf_counter()
        bytes_ = coder.encode(block)
        ended = time.perf_counter()
        coder.decode(self._received)
        decoded = time.perf_counter()
        right = holds(self._received, message.rounded[dtype])
        if dtype != "float32":
            yield name + "round", encoded - narrowed, bytes_, right
        yield name + "encode", ended - encoded, bytes_, right
        yield name + "decode", decoded - ended, bytes_, right
        yield name + "all", decoded - narrowed, bytes_, right

    def _copy(self, into: np.ndarray) -> Iterator[tuple[str, float, int, bool]]:
        self._plain[:] = random.randrange(256)
        start = time.perf_counter()
        np.copyto(into, self._plain)
        seconds = time.perf_counter() - start
        yield COPY, seconds, self._plain.nbytes, np.array_equal(into, self._plain)


def measure_coding(k: int, numel: int, *, steps: int) -> tuple[list[Row], bool]:
    """Returns rows of all formats, and true if all blocks were decoded correctly.

    "pays up to" is the bandwidth at which the saved bytes take as long as encoding and decoding:
    both count, since a message is encoded on one rank and decoded on another before the next round
    begins.

    Args:
        k: Number of entries of each block.
        numel: Number of entries of the gradient that they belong to.
        steps: Number of timed steps, after as many untimed ones as there are blocks.
    """
    coding = Coding(k, numel)
    seconds: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    verified = True
    for number in range(BLOCKS + steps):
        for name, took, bytes_, right in coding.step(number):
            verified = verified and right
            sizes[name] = max(bytes_, sizes.get(name, 0))
            if number >= BLOCKS:
                seconds.setdefault(name, []).append(took)
    copy = Timing.of(seconds[COPY]).median
    rows = []
    for name in sorted(seconds):
        timing = Timing.of(seconds[name])
        facts: dict[str, float | int | str] = {
            "ns per entry": 1e6 * timing.median / k,
            "x memcpy": timing.median / copy,
            "bytes per entry": sizes[name] / k,
        }
        if name.endswith("all"):
            saved = sizes[COPY] - sizes[name]
            facts["pays up to Gb/s"] = 8e-6 * saved / timing.median
        rows.append(Row(name, timing, facts))
    return rows, verified
