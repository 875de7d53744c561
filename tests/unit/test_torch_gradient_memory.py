"""Tensors with entries that share memory, with each other or with another tensor's."""

from __future__ import annotations

import itertools

import pytest
import torch

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.pytorch.gradient_memory import Extent, MemoryInUse
from hvd_sparse.pytorch.guards import check_memory
from hvd_sparse.pytorch.slots import Slot


def addresses(tensor):
    """Returns the addresses of all entries."""
    base, size = tensor.data_ptr(), tensor.element_size()
    indices = itertools.product(*(range(n) for n in tensor.shape))
    strides = tensor.stride()
    return [base + size * sum(i * s for i, s in zip(p, strides, strict=True)) for p in indices]


@pytest.mark.parametrize("sizes", list(itertools.product([1, 2, 3], repeat=3)))
def test_entries_share_memory_exactly_where_two_addresses_are_equal(sizes):
    memory = torch.zeros(64)
    for strides in itertools.product([0, 1, 2, 3, 6], repeat=3):
        tensor = memory.as_strided(sizes, strides)
        all_addresses = addresses(tensor)
        extent = Extent.of(tensor)
        assert extent.folds == (len(set(all_addresses)) < len(all_addresses)), strides
        assert extent.end == max(all_addresses) + 4


def test_two_tensors_meet_exactly_where_they_have_an_address_in_common():
    memory = torch.zeros(40)
    shapes = [((4,), (1,)), ((4,), (3,)), ((2, 3), (3, 1)), ((3, 2), (1, 6)), ((), ())]
    views = [
        memory.as_strided(shape, stride, offset)
        for (shape, stride), offset in itertools.product(shapes, range(6))
    ]
    for one, other in itertools.product(views, repeat=2):
        common = set(addresses(one)) & set(addresses(other))
        assert Extent.of(one).meets(Extent.of(other)) == bool(common)


def claimed(tensors):
    """Returns the first two names whose tensors overlap, claimed in this order; None if none do."""
    in_use = MemoryInUse()
    for name, tensor in tensors.items():
        other = in_use.claim(name, Extent.of(tensor))
        if other is not None:
            return {name, other}
    return None


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_views_of_one_buffer_are_told_apart_in_any_order(order):
    buffer = torch.zeros(6, 10)
    apart = {
        "left": buffer[:, :4],
        "right": buffer[:, 4:8],
        "last": buffer[:, 8],
        "other": torch.zeros(60),
    }
    names = [list(apart)[index] for index in order]
    assert claimed({name: apart[name] for name in names}) is None
    shared = {**apart, "other": buffer[3, 7:8]}
    assert claimed({name: shared[name] for name in names}) == {"right", "other"}


def test_a_claim_takes_the_place_of_the_one_before():
    in_use = MemoryInUse()
    first, second = Extent.of(torch.zeros(4)), Extent.of(torch.ones(4))
    assert in_use.claim("a", first) is None
    assert in_use.claim("a", second) is None
    assert in_use.claim("b", first) is None
    assert in_use.claim("c", second) == "a"
    in_use.clear()
    assert in_use.claim("c", second) is None


def inference(shape):
    with torch.inference_mode():
        return torch.ones(shape)


def resized(shape):
    grad = torch.ones(shape)
    return grad, lambda: grad.resize_(2, 2)


def of_another_type(shape):
    grad = torch.ones(shape)
    return grad, lambda: setattr(grad, "data", torch.ones(shape, dtype=torch.int32))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda shape: torch.ones(()).expand(shape), r"entries .* share memory .*strides \(0, 0\)"),
        (lambda shape: torch.ones(9).as_strided(shape, (1, 1)), r"share memory .*strides \(1, 1\)"),
        (inference, "was made in torch.inference_mode"),
        (resized, "has 4 elements on 'cpu'; the parameter had 12"),
        (of_another_type, "is torch.int32; a sparse exchange takes float64, "),
    ],
)
def test_a_gradient_that_takes_no_average_is_refused_by_name(make, why):
    param = torch.nn.Parameter(torch.zeros(4, 3))
    slot = Slot("weight", param, passes=1)
    made = make(tuple(param.shape))
    grad, spoil = made if isinstance(made, tuple) else (made, lambda: None)
    param.grad = grad
    spoil()
    with pytest.raises(UnsupportedError, match=f"'weight' .*{why}|{why}"):
        check_memory(slot, MemoryInUse())


@pytest.mark.parametrize(
    "grad",
    [
        None,
        torch.ones(4, 3),
        torch.ones(3, 4).t(),
        torch.ones(4, 6)[:, ::2],
        torch.ones(4, 3, dtype=torch.float32).expand(4, 3),
    ],
)
def test_all_other_layouts_are_good(grad):
    param = torch.nn.Parameter(torch.zeros(4, 3))
    param.grad = grad
    check_memory(Slot("weight", param, passes=1), MemoryInUse())
