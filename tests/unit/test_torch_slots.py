"""A gradient in flight is kept alive, watched, and written back."""

from __future__ import annotations

import pytest
import torch

from hvd_sparse.pytorch.slots import Slot, buffer_of


def slot_with(grad, shape=(4, 3)):
    param = torch.nn.Parameter(
        torch.zeros(shape, dtype=torch.float32 if grad is None else grad.dtype)
    )
    param.grad = grad
    return Slot("weight", param, passes=2)


def test_a_missing_gradient_counts_as_zero():
    slot = slot_with(None)
    work = slot.take()
    assert torch.equal(work, torch.zeros(4, 3))
    assert slot.param.grad.data_ptr() == work.data_ptr()


def test_a_contiguous_gradient_is_exchanged_in_place():
    slot = slot_with(torch.ones(4, 3))
    slot.take().fill_(2.0)
    slot.write_back()
    assert torch.equal(slot.param.grad, torch.full((4, 3), 2.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("wide", [False, True])
def test_another_layout_or_type_is_exchanged_in_a_copy(dtype, wide):
    slot = slot_with(torch.arange(12.0, dtype=dtype).reshape(3, 4).t())
    work = slot.take(wide=wide)
    assert work.is_contiguous()
    assert work.dtype == (torch.float32 if wide and dtype == torch.float16 else dtype)
    assert torch.equal(work.to(dtype), slot.param.grad)
    work.neg_()
    slot.write_back()
    assert torch.equal(slot.param.grad, -torch.arange(12.0, dtype=dtype).reshape(3, 4).t())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p: None, None),
        (lambda p: setattr(p, "grad", None), "was set to None"),
        (lambda p: setattr(p, "grad", p.grad.clone()), "was replaced"),
        (lambda p: p.grad.zero_(), "was written to"),
        (lambda p: p.grad.mul_(1.0), "was written to"),
        (lambda p: setattr(p.grad, "data", torch.ones(4, 3)), "was given other memory"),
    ],
)
def test_changes_in_flight_are_noticed(change, text):
    slot = slot_with(torch.ones(4, 3))
    slot.take()
    change(slot.param)
    assert slot.change() == text


def test_the_gradient_lives_as_long_as_it_is_in_flight():
    slot = slot_with(torch.ones(4, 3))
    buffer = buffer_of(slot.take())
    slot.param.grad = None
    assert slot.work.data_ptr() == buffer.address
    slot.release(passes=5)
    assert slot.work is None
    assert (slot.passes_left, slot.launched) == (5, False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_buffer_is_the_tensors_memory(dtype):
    tensor = torch.zeros(7, dtype=dtype)
    assert buffer_of(tensor) == (tensor.data_ptr(), 7, str(dtype)[6:])
