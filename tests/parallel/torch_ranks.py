"""Helpers for tests of hvd_sparse.torch: models with known gradients, and checks across ranks."""

from __future__ import annotations

import itertools
from collections import defaultdict

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import ExchangeFailedError, GradientInFlightError
from hvd_sparse.ranks.world import key_of
from tests.torch_model import residuals

SHAPES = {"first": (40, 30), "bias": (7,), "second": (25, 8, 5), "last": (30, 20)}


class Toy(torch.nn.Module):
    """A module with gradients chosen by the test: its loss sums their products with parameters."""

    def __init__(self, shapes=SHAPES, dtype=torch.float32):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def backward(self, gradients):
        sum((getattr(self, name) * g).sum() for name, g in gradients.items()).backward()


def integer_gradients(model, step, *, rank=None, low=-9, high=10):
    """Returns small integers with exact sums; different on every rank and in every step."""
    rank = hvd.rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {
        name: torch.randint(low, high, p.shape, generator=generator).to(p.device, p.dtype)
        for name, p in model.named_parameters()
    }


def distribute(model, compression, *, optimizer=None, **options):
    """Returns the model's DistributedOptimizer; its default is SGD with a learning rate of 1."""
    options.setdefault("op", hvd.Sum)
    return hvd.DistributedOptimizer(
        optimizer or torch.optim.SGD(model.parameters(), lr=1.0),
        named_parameters=model.named_parameters(),
        compression=compression,
        **options,
    )


# Names that Horovod makes differ between ranks once one has started fewer operations.
_serials = defaultdict(itertools.count)


def a_name(process_set):
    """Returns a new name for a Horovod operation, the same on all ranks of the set."""
    return f"test.{next(_serials[key_of(process_set)])}"


def total(tensor, process_set=hvd.global_process_set):
    """Returns the sum over the ranks; exact for small integers or halves of them. On the CPU."""
    flat = tensor.detach().cpu().double().flatten().contiguous()
    return hvd.allreduce(flat, op=hvd.Sum, name=a_name(process_set), process_set=process_set)


def totals(tensors, process_set=hvd.global_process_set):
    """Returns `total` of each tensor, by name; uses one message, since messages are expensive."""
    flat = {name: tensor.detach().cpu().double().flatten() for name, tensor in tensors.items()}
    summed = total(torch.cat(list(flat.values())), process_set=process_set)
    return dict(zip(flat, summed.split([one.numel() for one in flat.values()]), strict=True))


def gradients_of(model):
    """Returns a copy of each parameter's gradient, by name."""
    return {name: p.grad.detach().clone() for name, p in model.named_parameters()}


def assert_same_on_all_ranks(tensors, process_set=hvd.global_process_set):
    """Compares bits: NaN equals NaN and -0 does not equal 0."""
    flat = torch.cat([t.detach().cpu().float().flatten() for t in tensors]).view(torch.int32)
    gathered = hvd.allgather(
        flat[None].contiguous(), name=a_name(process_set), process_set=process_set
    )
    assert all(torch.equal(gathered[0], theirs) for theirs in gathered)


def assert_nothing_is_lost(model, step, before, optimizer, gradients):
    """Checks the law for op=Sum: every input that is not in a residual was applied, exactly."""
    after = residuals(optimizer)
    given = {name: g.cpu().double().flatten() for name, g in gradients.items()}
    for name, kept in after.items():
        given[name] = given[name] + before.get(name, 0.0) - kept
    summed = totals(given)
    for name, p in model.named_parameters():
        assert torch.equal(summed[name], p.grad.cpu().double().flatten()), f"step {step}, {name}"


CULPRIT = hvd.size() - 1
# If all ranks make the mistake, some learn of another's before they make it.
ON_ANY_RANK = (GradientInFlightError, ExchangeFailedError)


def on_the_culprit(action):
    if hvd.rank() == CULPRIT:
        action()


def expect_error_on_every_rank(run, *, match, kind=GradientInFlightError):
    """Expects `kind` on the culprit, and ExchangeFailedError with the same text on the others.

    These raise it in the same step, or in the next if they had all they needed.
    """
    if hvd.rank() == CULPRIT:
        with pytest.raises(kind, match=match):
            run()
        return

    def this_step_or_the_next():
        run()
        run()

    with pytest.raises(ExchangeFailedError, match=match):
        this_step_or_the_next()


def take_over_from_rank_0(optimizer, state, others):
    """Loads rank 0's state on all ranks, in one of the ways that scripts use.

    Args:
        optimizer: A new optimizer.
        state: State dict of rank 0's optimizer, available on all ranks.
        others: How other ranks get it: "get it broadcast" or "load it without residuals".
    """
    if hvd.rank() == 0:
        optimizer.load_state_dict(state)
    if others == "get it broadcast":
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    elif hvd.rank() > 0:
        optimizer.load_state_dict(optimizer.exchange.reset_residual(state))
