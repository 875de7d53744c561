"""Checks gradients while they are exchanged: error feedback would keep any damage for ever."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import torch

from hvd_sparse.errors import GradientInFlightError, UnsupportedError
from hvd_sparse.pytorch.devices import common_device
from hvd_sparse.pytorch.gradient_memory import Extent, MemoryInUse
from hvd_sparse.pytorch.parameters import ParameterGroups
from hvd_sparse.pytorch.settings import Settings, check_not_twice
from hvd_sparse.pytorch.slots import DTYPES, Slot


class Guard:
    """The checks of one exchange, in their order.

    Args:
        settings: The user's settings.
        groups: The parameter groups of the optimizer.
        large: Names of the parameters whose gradients can be sparse.

    Attributes:
        device: The device of all parameters.
    """

    def __init__(self, settings: Settings, groups: ParameterGroups, large: Container[str]) -> None:
        self._settings = settings
        self._groups = groups
        self._large = large
        self._known = {id(param) for _, param in settings.named}
        self.device = common_device(settings.named)
        self._in_use = MemoryInUse()

    def admit(self, slot: Slot) -> None:
        """Checks a gradient to which backward has just added.

        Raises:
            GradientInFlightError: It was not expected.
            UnsupportedError: It cannot be exchanged.
        """
        if slot.launched or slot.passes_left == 0:
            raise GradientInFlightError(
                step_without_exchange([slot])
                or f"a gradient arrived for '{slot.name}' while it was being exchanged. Gradients "
                "were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        self._check(slot)
        slot.note_arrival()

    def check_step(self, optimizer: torch.optim.Optimizer, slots: Sequence[Slot]) -> None:
        """Checks the optimizer and all gradients at the end of a step.

        Raises:
            GradientInFlightError: A gradient was changed after it had been launched.
            InvalidArgumentError: The optimizer has come to do what the compression does, too.
            UnsupportedError: A parameter, or a gradient that did not arrive, cannot be exchanged.
        """
        _check_parameters(optimizer, self._known)
        check_not_twice(optimizer, self._settings.compression)
        for slot in slots:
            _check_untouched(slot)
        for slot in slots:
            if not slot.launched:
                self._check(slot)

    def release(self) -> None:
        """Prepares for the next step."""
        self._in_use.clear()

    def _check(self, slot: Slot) -> None:
        if slot.param.device != self.device:  # where its bucket's memory is
            raise UnsupportedError(
                f"'{slot.name}' was moved from device '{self.device}' to '{slot.param.device}' "
                "after its exchange was built: move the model first"
            )
        if slot.at_parameter:
            _check_without_graph(slot)
            _check_layout(slot, densify=self._settings.sparse_as_dense)
            check_memory(slot, self._in_use)
        # The optimizer has to apply an average, and the residual in it.
        if slot.name in self._large and self._groups.of(slot.param) is None:
            raise UnsupportedError(
                f"'{slot.name}' is in no parameter group of {self._groups.of_class} any more, and "
                "what its residual holds would be sent and never be applied: leave it in a group "
                "and freeze it with requires_grad_(False), or make a new distributed optimizer"
            )


def step_without_exchange(slots: Iterable[Slot]) -> str | None:
    """Returns why gradients are still in flight, if a parameter was changed after they arrived."""
    for slot in slots:
        if slot.param_changed():
            return (
                f"parameter '{slot.name}' was changed after loss.backward(), and its gradient was "
                "not exchanged: a step that bypassed optimizer.step() and its hooks has applied "
                "this rank's own gradients, and replicas differ. Take steps by optimizer.step()"
            )
    return None


def check_not_an_average(slot: Slot, *, has_momentum: bool) -> None:
    """Raises GradientInFlightError if backward must not add to the average in a gradient.

    Args:
        slot: The slot of the gradient.
        has_momentum: True if the ranks have applied momentum to it.
    """
    if slot.at_parameter:
        raise GradientInFlightError(
            f"a gradient was added to the average of '{slot.name}' after synchronize() and before "
            "step(): call optimizer.zero_grad() if the step is to be skipped"
        )
    if has_momentum:
        raise GradientInFlightError(
            f"a gradient was added to the average of '{slot.name}', to which momentum was "
            "applied: run all but the last loss.backward() of a step within no_sync(); call "
            "optimizer.zero_grad() if the step was to be skipped; or set Feedback(momentum='keep')"
        )


def _check_untouched(slot: Slot) -> None:
    """Raises GradientInFlightError if a gradient was changed after its exchange had begun."""
    change = slot.change() if slot.launched else None
    if change is not None:
        raise GradientInFlightError(
            f"the gradient of '{slot.name}' {change} after loss.backward() but before "
            "optimizer.step() or optimizer.synchronize(), while it was being exchanged. This is "
            "prohibited as it can cause a race condition."
        )


def _check_without_graph(slot: Slot) -> None:
    """Raises UnsupportedError for a gradient with an autograd graph, which no average can have."""
    if slot.param.grad is not None and slot.param.grad.requires_grad:
        raise UnsupportedError(
            f"the gradient of '{slot.name}' has a graph of its own, and its average over the ranks "
            "cannot have one: call loss.backward() without create_graph=True, and "
            "torch.autograd.grad for what is to be differentiated"
        )


def _check_layout(slot: Slot, *, densify: bool) -> None:
    """Makes a sparse gradient dense; raises UnsupportedError unless `densify` allows it."""
    grad = slot.param.grad
    if grad is None or grad.layout == torch.strided:
        return
    if not densify:
        raise UnsupportedError(
            f"the gradient of '{slot.name}' is sparse: pass sparse_as_dense=True, or make the "
            "layer with sparse=False"
        )
    slot.param.grad = grad.to_dense()


def check_memory(slot: Slot, in_use: MemoryInUse) -> None:
    """Raises UnsupportedError if an average could not be written into a gradient.

    Args:
        slot: The gradient's slot; a missing gradient is created later, and needs no check.
        in_use: The memory of this step's gradients, to which this one's is added.
    """
    grad = slot.grad
    if grad is None:
        return
    whose = f"the gradient of '{slot.name}'"
    if grad.is_inference():
        raise UnsupportedError(
            f"{whose} was made in torch.inference_mode(), and its average cannot be written into "
            "it: make it outside, or assign grad.clone()"
        )
    if grad.dtype not in DTYPES:
        raise UnsupportedError(
            f"{whose} is {grad.dtype}; a sparse exchange takes {', '.join(DTYPES.values())}"
        )
    if grad.numel() != slot.whole or grad.device != slot.param.device:
        raise UnsupportedError(
            f"{whose} has {grad.numel()} elements on '{grad.device}'; the parameter had "
            f"{slot.whole} on '{slot.param.device}' when the exchange was built"
        )
    extent = Extent.of(grad)
    if not grad.is_contiguous() and extent.folds:
        raise UnsupportedError(
            f"entries of {whose} share memory (shape {tuple(grad.shape)}, strides {grad.stride()}, "
            "as of an expanded tensor), and their averages cannot be told apart: assign "
            "grad.contiguous()"
        )
    other = in_use.claim(slot.name, extent)
    if other is not None:
        raise UnsupportedError(
            f"{whose} shares memory with the gradient of '{other}', and one average would "
            "overwrite the other: assign grad.clone() to one of them"
        )


def _check_parameters(optimizer: torch.optim.Optimizer, known: Container[int]) -> None:
    """Raises UnsupportedError for parameters whose gradients would silently stay local.

    Args:
        optimizer: The optimizer whose parameters are checked.
        known: Ids of the parameters that are exchanged.
    """
    for index, group in enumerate(optimizer.param_groups):
        for position, param in enumerate(group["params"]):
            if param.requires_grad and id(param) not in known:
                raise UnsupportedError(
                    f"parameter {position} of group {index} was added, or began to want gradients, "
                    "after the exchange was built: make a new distributed optimizer"
                )


def check_not_capturing(device: torch.device) -> None:
    """Raises UnsupportedError during the capture of a CUDA graph, which records no messages.

    Replaying the graph would run no hook: each rank would continue with its own gradients.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            f"the current stream of device '{device}' is being captured into a CUDA graph, and an "
            "exchange of gradients cannot be: capture forward and backward by themselves with "
            "torch.cuda.make_graphed_callables, or optimizer.step() after an own "
            "optimizer.synchronize(), within optimizer.skip_synchronize()"
        )


def describe_step(optimizer: torch.optim.Optimizer, mark: str) -> str:
    """Returns the learning rates of an optimizer, in ascending order, and the user's mark.

    Ranks with HVD_SPARSE_CHECK=1 compare them. A rank that leaves out a whole step looks like a
    slow one: it then exchanges its next step while the others exchange this one. Its learning rate
    differs, if that depends on the number of the batch or of the epoch; so does the user's mark.
    """
    rates = sorted({float(group.get("lr", 0.0)) for group in optimizer.param_groups})
    text = f"learning rate {', '.join(map(repr, rates))}"
    return f"{text}, marked '{mark}'" if mark else text
