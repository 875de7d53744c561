"""A stand-in for training: the compute is replaced by waits of equal time, all else is real.

The parameters have the names and shapes of a model in paper_models. Forward waits for each layer's
time. Backward waits and then hands each parameter a gradient, through autograd, so that all hooks
fire as in training: the last layer first, before the layers below it.

A hook's work on backward's thread delays the layers below. A GPU would continue with its queue in
the meantime, but only until it runs out of independent kernels; the papers count selection in the
step, and so does this. Writing the gradients takes the processor, too, but within the wait of their
layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from paper_models import Model, Tensor

# Sizes of the two pools from which gradients are made; primes, so that the sum does not repeat.
SIGNAL_NUMEL = 1_048_573
NOISE_NUMEL = 786_431
SPREAD = 16  # scale of the distribution, Student's t with three degrees of freedom
LARGEST = 512  # largest entry of a pool

EXACT = 2**24  # integers up to here are exact in float32


class Clock:
    """Waits whose sum is exact: if one sleeps too long, the next one is shorter.

    Args:
        dilation: Factor of every wait.
        now: Returns the time in seconds.
        sleep: Sleeps for the given seconds, or longer.
    """

    def __init__(
        self,
        dilation: float,
        *,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._dilation, self._now, self._sleep = dilation, now, sleep
        self._due = self._left = now()

    def start(self) -> None:
        """Begins a step, forgetting earlier waits."""
        self._due = self._left = self._now()

    def spend(self, seconds: float, work: Callable[[], None] | None = None) -> None:
        """Waits until a layer that takes `seconds` is done.

        Time since the previous layer delays this one, since hooks took it. Time of `work` is part
        of the layer's own.
        """
        self._due += self._now() - self._left
        if work is not None:
            work()
        self._due += seconds * self._dilation
        remaining = self._due - self._now()
        if remaining > 0:
            self._sleep(remaining)
        self._left = self._now()


class Gradients:
    """Heavy-tailed integers: a signal common to all ranks and steps, and noise of each step.

    Integers are summed without rounding, whatever the order, so results can be checked with ==.

    Args:
        rank: Rank whose gradients are made.
        seed: Random seed, the same on all ranks.
    """

    def __init__(self, rank: int, *, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self._signal, self._noise = (
            torch.from_numpy(_heavy_tailed(rng, numel)) for numel in (SIGNAL_NUMEL, NOISE_NUMEL)
        )
        self._rank = rank

    def write(self, out: torch.Tensor, *, tensor: int, step: int) -> None:
        """Writes the gradient of a step.

        Args:
            out: Destination, float32 and contiguous.
            tensor: Number of the parameter in the model.
            step: Number of the step; gradients of two steps differ in their noise.
        """
        flat = out.view(-1)
        signal = tensor * 104_729 % SIGNAL_NUMEL
        noise = (tensor * 15_485_863 + step * 32_452_843 + self._rank * 49_979_687) % NOISE_NUMEL
        offset = 0
        while offset < flat.numel():
            count = min(flat.numel() - offset, SIGNAL_NUMEL - signal, NOISE_NUMEL - noise)
            torch.add(
                self._signal[signal : signal + count],
                self._noise[noise : noise + count],
                out=flat[offset : offset + count],
            )
            offset += count
            signal, noise = (signal + count) % SIGNAL_NUMEL, (noise + count) % NOISE_NUMEL


def _heavy_tailed(rng: np.random.Generator, numel: int) -> np.ndarray:
    values = np.rint(SPREAD * rng.standard_t(3, numel))
    return np.clip(values, -LARGEST, LARGEST).astype(np.float32)


def most_steps(ranks: int) -> int:
    """Returns the number of steps in which no sum can exceed what float32 holds exactly."""
    return EXACT // (2 * LARGEST * ranks)


@dataclass(frozen=True)
class Parameter:
    """A parameter of the stand-in.

    Attributes:
        tensor: Name and shape.
        number: Number of the tensor in the model.
        value: The optimizer's parameter. Unless values are given memory, it is never changed, so
            one number stands for all entries, and sixteen ranks of a large model fit on one
            machine.
        gradient: Memory that becomes `value.grad` in every step.
    """

    tensor: Tensor
    number: int
    value: torch.nn.Parameter
    gradient: torch.Tensor


class Training:
    """Forward and backward of a model whose compute is replayed.

    Args:
        model: The model and its layers.
        forward: Seconds of a forward pass, before dilation.
        backward: Seconds of a backward pass, before dilation.
        clock: Clock for the waits.
        gradients: Gradients of this rank.
        memory: One tensor for each parameter, shared between trainings that take turns.
    """

    def __init__(
        self,
        model: Model,
        *,
        forward: float,
        backward: float,
        clock: Clock,
        gradients: Gradients,
        memory: Sequence[torch.Tensor],
    ) -> None:
        self.clock = clock
        self.gradients = gradients
        self.step = 0
        self.parameters = [
            Parameter(tensor, number, _standing(tensor.shape), memory[number])
            for number, tensor in enumerate(model.tensors)
        ]
        self._layers: list[_Layer] = []
        index = 0
        for layer, ahead, back in zip(
            model.layers, model.spread(forward), model.spread(backward), strict=True
        ):
            own = self.parameters[index : index + len(layer.tensors)]
            self._layers.append(_Layer(self, ahead, back, own))
            index += len(own)

    @property
    def layers(self) -> list[Sequence[Parameter]]:
        """Parameters by layer, in forward order."""
        return [layer.parameters for layer in self._layers]

    def give_values_memory(self) -> None:
        """Lets optimizers write to the parameters, which take memory of their own from then on."""
        for parameter in self.parameters:
            parameter.value.data = torch.zeros(parameter.tensor.shape)

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Returns names and parameters, as DistributedOptimizer takes them."""
        return [(parameter.tensor.name, parameter.value) for parameter in self.parameters]

    def forward(self, step: int) -> torch.Tensor:
        """Waits; returns a tensor whose backward hands out the gradients of the step."""
        self.step = step
        self.clock.start()
        flow = torch.zeros(1, requires_grad=True)
        for layer in self._layers:
            for parameter in layer.parameters:
                parameter.value.detach()  # a layer reads its weights, which may wait for them
            flow = _Replayed.apply(flow, layer, *(p.value for p in layer.parameters))
        return flow.sum()


class ReplayedModule(torch.nn.Module):
    """A training as a module, for DistributedDataParallel; its input is the number of the step."""

    def __init__(self, replay: Training) -> None:
        super().__init__()
        self._replay = replay
        for parameter in replay.parameters:
            self.register_parameter(self.name_of(parameter), parameter.value)

    @staticmethod
    def name_of(parameter: Parameter) -> str:
        """Returns a parameter's name in this module, where names have no dots."""
        return parameter.tensor.name.replace(".", "/")

    def forward(self, step: int) -> torch.Tensor:
        return self._replay.forward(step)


def gradient_memory(model: Model) -> list[torch.Tensor]:
    """Allocates memory for one gradient of each parameter."""
    return [torch.zeros(tensor.shape) for tensor in model.tensors]


def _standing(shape: tuple[int, ...]) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(1).expand(shape))


@dataclass(frozen=True)
class _Layer:
    training: Training
    forward: float
    backward: float
    parameters: Sequence[Parameter]

    def write(self) -> None:
        for parameter in self.parameters:
            self.training.gradients.write(
                parameter.gradient, tensor=parameter.number, step=self.training.step
            )


class _Replayed(torch.autograd.Function):
    """One layer as an autograd function."""

    @staticmethod
    def forward(ctx: Any, flow: torch.Tensor, layer: _Layer, *_: torch.Tensor) -> torch.Tensor:
        layer.training.clock.spend(layer.forward)
        ctx.layer = layer
        return flow.clone()

    @staticmethod
    def backward(ctx: Any, flow: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        layer: _Layer = ctx.layer
        layer.training.clock.spend(layer.backward, layer.write)
        # New tensors over the same memory, which autograd takes without copying; each has a version
        # counter of its own, as new memory would have.
        return flow, None, *(parameter.gradient.data for parameter in layer.parameters)
