"""The models of the papers' tables, as an exchange of gradients sees them.

A model is its layers in forward order; a layer is its parameter tensors and the operations of its
forward pass on one sample. Both follow from the architecture; nothing is built or run. Layers
without parameters are ignored.

Operations: a multiplication and an addition count as two. A batch normalisation counts eight per
entry of its output: mean, variance, normalisation, scale and shift.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hvd_sparse.planning.ways import Tensor

NORM_FLOPS = 8
PTB_WORDS = 10_000  # vocabulary of the Penn Treebank
PTB_STEPS = 35  # words of a training sequence
BERT_WORDS = 30_522  # its vocabulary of word pieces

# A fork is a list of branches, a branch a list of steps: "3x3 96" is a convolution with 96 outputs
# that keeps the size, "3x3 96 v" is one without padding, "3x3 96 /2" is one with stride 2 and
# without padding; "max /2" and "avg" are poolings. A step can be a fork again. The outputs of
# branches are concatenated.
Fork = list[list[Any]]


@dataclass(frozen=True)
class Layer:
    """Parameters whose gradients become ready at once, and the operations of their layer.

    Attributes:
        name: Name of the layer.
        tensors: Its parameters, in the order of registration.
        flops: Operations of the forward pass on one sample.
    """

    name: str
    tensors: tuple[Tensor, ...]
    flops: int

    @property
    def numel(self) -> int:
        return sum(tensor.numel for tensor in self.tensors)


@dataclass(frozen=True)
class Model:
    """Layers in forward order."""

    name: str
    layers: tuple[Layer, ...]

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for layer in self.layers for tensor in layer.tensors)

    @property
    def numel(self) -> int:
        """Number of parameters."""
        return sum(layer.numel for layer in self.layers)

    @property
    def flops(self) -> int:
        """Operations of the forward pass on one sample."""
        return sum(layer.flops for layer in self.layers)

    def spread(self, seconds: float) -> list[float]:
        """Splits a time among the layers, in forward order, in proportion to their operations."""
        return [seconds * layer.flops / self.flops for layer in self.layers]


class Builder:
    """Collects layers while it tracks the shape of their input."""

    def __init__(self, channels: int, size: int) -> None:
        self.layers: list[Layer] = []
        self.channels, self.height, self.width = channels, size, size

    def add(self, name: str, flops: int, **shapes: tuple[int, ...]) -> None:
        tensors = tuple(Tensor(f"{name}.{part}", shape) for part, shape in shapes.items())
        self.layers.append(Layer(name, tensors, flops))

    def conv(
        self,
        name: str,
        channels: int,
        kernel: tuple[int, int],
        *,
        stride: int = 1,
        padding: tuple[int, int] | None = None,
        bias: bool = False,
        norm: bool = True,
    ) -> None:
        """Adds a convolution, whose default padding keeps the size, and its normalisation."""
        shape = (channels, self.channels, *kernel)
        self.shrink(kernel, stride, padding)
        self.channels = channels
        outputs = channels * self.height * self.width
        flops = 2 * outputs * math.prod(shape[1:])
        if bias:
            self.add(name, flops + outputs, weight=shape, bias=(channels,))
        else:
            self.add(name, flops, weight=shape)
        if norm:
            self.add(f"{name}_norm", NORM_FLOPS * outputs, weight=(channels,), bias=(channels,))

    def shrink(
        self, kernel: tuple[int, int], stride: int, padding: tuple[int, int] | None = None
    ) -> None:
        """Applies a convolution's or a pooling's change of the size."""
        high, wide = (k // 2 for k in kernel) if padding is None else padding
        self.height = (self.height + 2 * high - kernel[0]) // stride + 1
        self.width = (self.width + 2 * wide - kernel[1]) // stride + 1

    def linear(
        self, name: str, inputs: int, outputs: int, *, times: int = 1, more: int = 0
    ) -> None:
        """Adds a linear layer that is applied so many times, and `more` operations."""
        flops = times * (2 * inputs * outputs + outputs) + more
        self.add(name, flops, weight=(outputs, inputs), bias=(outputs,))

    def lstm(self, name: str, inputs: int, width: int, steps: int) -> None:
        """Adds an LSTM layer that takes so many words."""
        self.add(
            name,
            steps * (2 * 4 * width * (inputs + width) + 2 * 4 * width),
            weight_ih=(4 * width, inputs),
            weight_hh=(4 * width, width),
            bias_ih=(4 * width,),
            bias_hh=(4 * width,),
        )

    def fork(self, name: str, branches: Fork) -> None:
        """Adds branches with the same input and concatenated outputs."""
        channels, height, width = self.channels, self.height, self.width
        total = 0
        for number, branch in enumerate(branches):
            self.channels, self.height, self.width = channels, height, width
            for index, step in enumerate(branch):
                self.step(f"{name}.{number}.{index}", step)
            total += self.channels
        self.channels = total

    def step(self, name: str, step: str | Fork) -> None:
        if not isinstance(step, str):
            self.fork(name, step)
            return
        kind, *rest = step.split()
        stride = 2 if "/2" in rest else 1
        padding = (0, 0) if stride == 2 or "v" in rest else None
        kernel = re.fullmatch(r"(\d)x(\d)", kind)
        if kernel is None:  # a pooling
            self.shrink((3, 3), stride, padding)
        else:
            high, wide = map(int, kernel.groups())
            self.conv(name, int(rest[0]), (high, wide), stride=stride, padding=padding)


def resnet50() -> Model:
    """He et al., CVPR 2016, for ImageNet: bottlenecks of 1x1, 3x3 and 1x1."""
    net = Builder(3, 224)
    net.conv("stem", 64, (7, 7), stride=2)
    net.shrink((3, 3), 2)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            name = f"stage{stage + 1}.{block}"
            stride = 2 if stage and not block else 1
            channels, height, wide = net.channels, net.height, net.width
            net.conv(f"{name}.conv1", width, (1, 1), stride=stride)
            net.conv(f"{name}.conv2", width, (3, 3))
            net.conv(f"{name}.conv3", 4 * width, (1, 1))
            if not block:
                net.channels, net.height, net.width = channels, height, wide
                net.conv(f"{name}.shortcut", 4 * width, (1, 1), stride=stride)
    net.linear("classifier", 2048, 1000)
    return Model("ResNet-50", tuple(net.layers))


def resnet20() -> Model:
    """He et al., CVPR 2016, for CIFAR-10: pairs of 3x3, shortcuts without parameters."""
    net = Builder(3, 32)
    net.conv("stem", 16, (3, 3))
    for stage in range(3):
        for block in range(3):
            name = f"stage{stage + 1}.{block}"
            net.conv(f"{name}.conv1", 16 << stage, (3, 3), stride=2 if stage and not block else 1)
            net.conv(f"{name}.conv2", 16 << stage, (3, 3))
    net.linear("classifier", 64, 10)
    return Model("ResNet-20", tuple(net.layers))


def wrn_16_4() -> Model:
    """Zagoruyko and Komodakis, BMVC 2016, for CIFAR-10: 16 layers, four times as wide.

    The paper normalises ahead of each convolution; the tensors are those of the order used here.
    """
    net = Builder(3, 32)
    net.conv("stem", 16, (3, 3))
    for stage, width in enumerate((64, 128, 256)):
        for block in range(2):
            name = f"stage{stage + 1}.{block}"
            stride = 2 if stage and not block else 1
            channels, height, wide = net.channels, net.height, net.width
            net.conv(f"{name}.conv1", width, (3, 3), stride=stride)
            net.conv(f"{name}.conv2", width, (3, 3))
            if not block:
                net.channels, net.height, net.width = channels, height, wide
                net.conv(f"{name}.shortcut", width, (1, 1), stride=stride, norm=False)
    net.linear("classifier", 256, 10)
    return Model("WRN-16-4", tuple(net.layers))


def inception_v4() -> Model:
    """Szegedy et al., AAAI 2017, figures 3 to 9."""
    stem: Fork = [
        [
            *("3x3 32 /2", "3x3 32 v", "3x3 64"),
            [["max /2"], ["3x3 96 /2"]],
            [["1x1 64", "3x3 96 v"], ["1x1 64", "1x7 64", "7x1 64", "3x3 96 v"]],
            [["3x3 192 /2"], ["max /2"]],
        ]
    ]
    a: Fork = [
        ["1x1 96"],
        ["1x1 64", "3x3 96"],
        ["1x1 64", "3x3 96", "3x3 96"],
        ["avg", "1x1 96"],
    ]
    reduce_a: Fork = [["3x3 384 /2"], ["1x1 192", "3x3 224", "3x3 256 /2"], ["max /2"]]
    b: Fork = [
        ["1x1 384"],
        ["1x1 192", "1x7 224", "7x1 256"],
        ["1x1 192", "7x1 192", "1x7 224", "7x1 224", "1x7 256"],
        ["avg", "1x1 128"],
    ]
    reduce_b: Fork = [
        ["1x1 192", "3x3 192 /2"],
        ["1x1 256", "1x7 256", "7x1 320", "3x3 320 /2"],
        ["max /2"],
    ]
    c: Fork = [
        ["1x1 256"],
        ["1x1 384", [["1x3 256"], ["3x1 256"]]],
        ["1x1 384", "3x1 448", "1x3 512", [["1x3 256"], ["3x1 256"]]],
        ["avg", "1x1 256"],
    ]
    net = Builder(3, 299)
    net.fork("stem", stem)
    for name, block, times in (
        ("a", a, 4), ("reduce_a", reduce_a, 1), ("b", b, 7), ("reduce_b", reduce_b, 1), ("c", c, 3)
    ):  # fmt: skip
        for number in range(times):
            net.fork(f"{name}{number}", block)
    net.linear("classifier", 1536, 1000)
    return Model("Inception-v4", tuple(net.layers))


def vgg16() -> Model:
    """Simonyan and Zisserman, ICLR 2015, as used for CIFAR-10: normalised, one linear layer."""
    net = Builder(3, 32)
    vgg_stages(net, (2, 2, 3, 3, 3), norm=True)
    net.linear("classifier", 512, 10)
    return Model("VGG-16", tuple(net.layers))


def vgg19() -> Model:
    """Simonyan and Zisserman, ICLR 2015, configuration E, for ImageNet."""
    net = Builder(3, 224)
    vgg_stages(net, (2, 2, 4, 4, 4), norm=False)
    net.linear("linear1", net.channels * net.height * net.width, 4096)
    net.linear("linear2", 4096, 4096)
    net.linear("classifier", 4096, 1000)
    return Model("VGG-19", tuple(net.layers))


def vgg_stages(net: Builder, convolutions: Sequence[int], *, norm: bool) -> None:
    """Adds five stages of so many 3x3 convolutions each, with a pooling after each stage."""
    for stage, (count, channels) in enumerate(
        zip(convolutions, (64, 128, 256, 512, 512), strict=True)
    ):
        for number in range(count):
            net.conv(f"stage{stage + 1}.{number}", channels, (3, 3), bias=True, norm=norm)
        net.shrink((2, 2), 2, (0, 0))


def alexnet() -> Model:
    """Krizhevsky, arXiv:1404.5997, for ImageNet: the model in one column."""
    net = Builder(3, 224)
    options = {"bias": True, "norm": False}
    net.conv("conv1", 64, (11, 11), stride=4, padding=(2, 2), **options)
    net.shrink((3, 3), 2, (0, 0))
    net.conv("conv2", 192, (5, 5), **options)
    net.shrink((3, 3), 2, (0, 0))
    for name, channels in (("conv3", 384), ("conv4", 256), ("conv5", 256)):
        net.conv(name, channels, (3, 3), **options)
    net.shrink((3, 3), 2, (0, 0))
    net.linear("linear1", net.channels * net.height * net.width, 4096)
    net.linear("linear2", 4096, 4096)
    net.linear("classifier", 4096, 1000)
    return Model("AlexNet", tuple(net.layers))


def lstm_ptb() -> Model:
    """Zaremba et al., arXiv:1409.2329, the large model: two LSTM layers of 1500."""
    width, steps = 1500, PTB_STEPS
    net = Builder(0, 0)
    net.add("embedding", steps * width, weight=(PTB_WORDS, width))
    for number in range(2):
        net.lstm(f"lstm{number}", width, width, steps)
    net.linear("decoder", width, PTB_WORDS, times=steps)
    return Model("LSTM-PTB", tuple(net.layers))


def sockeye() -> Model:
    """Hieber et al., arXiv:1712.05690, with the options and data of P3's experiments
    (https://github.com/anandj91/p3).

    Two layers of LSTMs of 512 on each side, the first in both directions, attention by an MLP, and
    the vocabularies of IWSLT 2015, English to Vietnamese. A sentence is counted with 25 words.
    """
    width, words, sources, targets = 512, 25, 17_191, 7_709
    net = Builder(0, 0)

    def weight(name: str, outputs: int, inputs: int, times: int = words) -> None:
        net.add(name, 2 * times * inputs * outputs, weight=(outputs, inputs))

    net.add("source", words * width, weight=(sources, width))
    for direction in ("forward", "backward"):
        net.lstm(f"encoder0.{direction}", width, width // 2, words)
    net.lstm("encoder1", width, width, words)
    for state in ("hidden0", "cell0", "hidden1", "cell1"):
        net.linear(f"decoder.{state}", width, width)
    weight("attention.keys", width, width)
    net.add("target", words * width, weight=(targets, width))
    net.lstm("decoder0", 2 * width, width, words)
    net.lstm("decoder1", width, width, words)
    weight("attention.query", width, width)
    weight("attention.score", 1, width, words * words)
    weight("combined", width, 2 * width)
    net.linear("output", width, targets, times=words)
    return Model("Sockeye", tuple(net.layers))


def bert_base() -> Model:
    """Devlin et al., NAACL 2019, the base model for classification, on sequences of 128 tokens.

    A layer's attention is counted with its queries.
    """
    width, tokens = 768, 128
    norm = NORM_FLOPS * tokens * width
    net = Builder(0, 0)
    for name, rows in (("words", BERT_WORDS), ("positions", 512), ("types", 2)):
        net.add(f"embedding.{name}", tokens * width, weight=(rows, width))
    net.add("embedding.norm", norm, weight=(width,), bias=(width,))
    for number in range(12):
        layer = f"layer{number}"
        attention = 2 * 2 * tokens * tokens * width
        net.linear(f"{layer}.query", width, width, times=tokens, more=attention)
        for name in ("key", "value", "output"):
            net.linear(f"{layer}.{name}", width, width, times=tokens)
        net.add(f"{layer}.norm1", norm, weight=(width,), bias=(width,))
        net.linear(f"{layer}.linear1", width, 4 * width, times=tokens)
        net.linear(f"{layer}.linear2", 4 * width, width, times=tokens)
        net.add(f"{layer}.norm2", norm, weight=(width,), bias=(width,))
    net.linear("pooler", width, width)
    net.linear("classifier", width, 2)
    return Model("BERT-base", tuple(net.layers))


_MAKERS: Sequence[Callable[[], Model]] = (
    resnet50, inception_v4, lstm_ptb, vgg16, vgg19, alexnet, resnet20, wrn_16_4, sockeye,
    bert_base,
)  # fmt: skip
MODELS: dict[str, Model] = {model.name: model for model in (make() for make in _MAKERS)}
