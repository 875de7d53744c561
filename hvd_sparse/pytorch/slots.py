"""A slot: one parameter's gradient during an exchange."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch

from hvd_sparse.places.buffer import Buffer
from hvd_sparse.pytorch.shards import like, shard_of

DTYPES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


class Slot:
    """One parameter, or this rank's shard of it, and its gradient while that is in flight.

    Attributes:
        name: Name of the parameter.
        param: The parameter.
        whole: Elements of the shard, and so of its gradient.
        numel: Elements that are exchanged: all of them, or those of the support.
        support: Indices in the flattened gradient of the elements that are exchanged, int64, in
            ascending order; None: all of them. The average of the others is zero.
        optimized: True if the exchange's own optimizer updates the parameter.
        passes_left: Backward passes that are still to come before the gradient is exchanged.
        work: The contiguous memory that is exchanged; None unless `launched`.
        at_parameter: True if the gradient lies at the parameter, where backward adds to it.
    """

    at_parameter: ClassVar[bool] = True

    def __init__(
        self, name: str, param: torch.Tensor, passes: int, *, optimized: bool = True
    ) -> None:
        self.name = name
        self.param = param
        self.whole = self.numel = shard_of(param).numel()
        self.support: torch.Tensor | None = None
        self.optimized = optimized
        self.passes_left = passes
        self.work: torch.Tensor | None = None
        self._grad: torch.Tensor | None = None
        self._version = self._address = 0
        self._param_version: int | None = None

    @property
    def launched(self) -> bool:
        """True while the gradient is being exchanged or awaits the optimizer's step."""
        return self.work is not None

    @property
    def weights(self) -> torch.Tensor:
        """This rank's shard of the parameter, without a graph."""
        return shard_of(self.param).detach()

    @property
    def grad(self) -> torch.Tensor | None:
        """This rank's shard of the gradient at the parameter, if there is one."""
        grad = self.param.grad
        return None if grad is None else shard_of(grad)

    def restrict(self, support: torch.Tensor | None) -> None:
        """Replaces the support, between two steps."""
        self.support = support
        self.numel = self.whole if support is None else support.numel()

    def gather(self, whole: torch.Tensor) -> torch.Tensor:
        """Returns the elements of the support; `whole` itself, in its shape, if that is all."""
        if self.support is None:
            return whole
        return whole.reshape(-1).to(self.support.device)[self.support]

    def spread(self, part: torch.Tensor) -> torch.Tensor:
        """Returns all elements, flat: what `gather` has returned, and zeros outside the support."""
        if self.support is None:
            return part
        return part.new_zeros(self.whole).index_copy_(0, self.support, part)

    def note_arrival(self) -> None:
        """Records that a gradient has been computed from the parameter's present value."""
        self._param_version = self.param._version

    def param_changed(self) -> bool:
        """Returns true if the parameter was written to after its gradient arrived."""
        return self._param_version not in (None, self.param._version)

    def gradient(self) -> torch.Tensor:
        """Returns the gradient; creates one of zeros if it is missing."""
        if self.param.grad is None:
            zeros = torch.zeros_like(self.weights, memory_format=torch.contiguous_format)
            self.param.grad = like(zeros, self.param)
        return shard_of(self.param.grad)

    def take(self, *, wide: bool = False) -> torch.Tensor:
        """Begins the exchange of the gradient; a missing one counts as zero.

        Args:
            wide: True if the exchange needs at least float32.

        Returns:
            Contiguous memory with the gradient, kept alive until `release`: the gradient's own,
            unless that is not contiguous, or too narrow, or has a support.
        """
        grad = self.gradient()
        self._grad = grad
        self._version, self._address = grad._version, grad.data_ptr()
        # Horovod may write by functions of PyTorch, which count in the version of a tensor, but not
        # in that of a tensor whose `data` they are given.
        self.work = self.gather(grad.data).contiguous()
        if wide:
            self.convert(torch.promote_types(grad.dtype, torch.float32))
        return self.work

    def convert(self, dtype: torch.dtype) -> None:
        """Continues the exchange in another type."""
        self.work = self.result().to(dtype)

    def change(self) -> str | None:
        """Returns how the gradient was changed after `take`, or None if it was not."""
        if self.param.grad is None:
            return "was set to None"
        if self._grad is None or self.grad is not self._grad:
            return "was replaced"
        if self._grad.data_ptr() != self._address or self._grad.numel() != self.whole:
            return "was given other memory"
        # Views of one flat tensor share its version, which gradients that arrive later raise.
        if self._grad._version != self._version and not self._grad._is_view():
            return "was written to"
        return None

    def result(self) -> torch.Tensor:
        """Returns the memory that was exchanged."""
        assert self.work is not None
        return self.work

    def taken_dtype(self) -> torch.dtype:
        """Returns the type of the gradient that was taken."""
        assert self._grad is not None
        return self._grad.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of what is exchanged."""
        return self.result().numel() * self.result().element_size()

    def write_back(self) -> None:
        """Copies the result into the gradient, if the exchange worked on a copy of it."""
        assert self._grad is not None
        assert self.work is not None
        if self.support is not None:
            self._grad.copy_(self.spread(self.work).view(self._grad.shape))
        elif self.work.data_ptr() != self._grad.data_ptr():
            self._grad.copy_(self.work)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Makes what was exchanged the parameter's gradient, within the context."""
        kept, self.param.grad = self.param.grad, self._grad
        try:
            yield
        finally:
            self.param.grad = kept

    def fill_result(self, value: float) -> None:
        """Fills the gradient that was exchanged, after a step that no rank applies.

        Args:
            value: 0, or infinity, so that a gradient scaler skips the step.
        """
        if self._grad is not None:
            self._grad.fill_(value)

    def release(self, passes: int) -> None:
        """Prepares for the next step."""
        self.passes_left = passes
        self.work = self._grad = self._param_version = None


class DeliveredSlot(Slot):
    """A slot whose gradient is delivered, and does not lie at the parameter.

    Attributes:
        delivered: The gradient, shaped like the parameter; None before it is delivered.
    """

    at_parameter = False

    delivered: torch.Tensor | None = None

    def gradient(self) -> torch.Tensor:
        """Returns the delivered gradient."""
        assert self.delivered is not None
        return self.delivered

    def change(self) -> str | None:
        """Returns None: only the code that delivers a gradient knows its memory."""
        return None


def buffer_of(tensor: torch.Tensor, begin: int = 0, numel: int | None = None) -> Buffer:
    """Returns the memory of a contiguous tensor, or of `numel` elements from `begin` on."""
    address = tensor.data_ptr() + tensor.element_size() * begin
    return Buffer(address, tensor.numel() if numel is None else numel, DTYPES[tensor.dtype])
