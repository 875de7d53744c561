"""What the tests of the torch face share: models with known gradients, and views across ranks."""

from __future__ import annotations

import itertools
from collections import defaultdict

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import ExchangeFailedError, GradientInFlightError
from hvd_sparse.ranks.world import key_of

SHAPES = {"first": (40, 30), "bias": (7,), "second": (25, 8, 5), "last": (30, 20)}


class Toy(torch.nn.Module):
    """Parameters whose gradients a test chooses: the loss is their product, summed up."""

    def __init__(self, shapes=SHAPES, dtype=torch.float32):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def backward(self, gradients):
        sum((getattr(self, name) * g).sum() for name, g in gradients.items()).backward()


def integer_gradients(model, step, *, rank=None, low=-9, high=10):
    """Small integers, whose sums are exact; different on every rank and in every step."""
    rank = hvd.rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {
        name: torch.randint(low, high, p.shape, generator=generator).to(p.dtype)
        for name, p in model.named_parameters()
    }


def signs(model, step, *, norm, dtype=torch.float32):
    """256 entries of one magnitude per tensor, at places of this rank's own: the norm is exact.

    Smaller tensors have fewer entries of that magnitude, and a smaller norm.
    """
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    gradients = {}
    for name, p in model.named_parameters():
        flat = torch.zeros(p.numel(), dtype=dtype)
        places = torch.randperm(p.numel(), generator=generator)[:256]
        flat[places] = 2.0 * torch.randint(0, 2, (len(places),), generator=generator).to(dtype) - 1
        gradients[name] = norm / 16 * flat.view_as(p)
    return gradients


def distribute(model, compression, *, optimizer=None, **options):
    """The model's DistributedOptimizer; SGD with a learning rate of 1 unless one is given."""
    options.setdefault("op", hvd.Sum)
    return hvd.DistributedOptimizer(
        optimizer or torch.optim.SGD(model.parameters(), lr=1.0),
        named_parameters=model.named_parameters(),
        compression=compression,
        **options,
    )


def residuals(optimizer):
    """By parameter, what this rank has yet to send."""
    saved = optimizer.state_dict().get("hvd_sparse")
    if saved is None:
        return {}
    return {
        name: saved["residuals"].get(name, torch.zeros(numel)).double()
        for name, numel in saved["layers"].items()
    }


def velocities(optimizer):
    """By parameter, this rank's velocity, where momentum is corrected and a step was taken."""
    saved = optimizer.state_dict().get("hvd_sparse", {}).get("velocities", {})
    return {name: part.double() for name, part in saved.items()}


# Horovod's own names of operations differ between ranks once one has started fewer than another.
_serials = defaultdict(itertools.count)


def a_name(process_set):
    """Of a Horovod operation: a new one, the same on all ranks of the set."""
    return f"test.{next(_serials[key_of(process_set)])}"


def total(tensor, process_set=hvd.global_process_set):
    """The sum over the ranks; exact where the values are small integers or halves of them."""
    flat = tensor.detach().double().flatten().contiguous()
    return hvd.allreduce(flat, op=hvd.Sum, name=a_name(process_set), process_set=process_set)


def totals(tensors, process_set=hvd.global_process_set):
    """`total` of each, by name; in one message, for a message costs more than its bytes."""
    flat = {name: tensor.detach().double().flatten() for name, tensor in tensors.items()}
    summed = total(torch.cat(list(flat.values())), process_set=process_set)
    return dict(zip(flat, summed.split([one.numel() for one in flat.values()]), strict=True))


def gradients_of(model):
    """By parameter, a copy of its gradient."""
    return {name: p.grad.detach().clone() for name, p in model.named_parameters()}


def assert_same_on_all_ranks(tensors, process_set=hvd.global_process_set):
    """Bitwise: NaN equals NaN and -0 does not equal 0."""
    flat = torch.cat([t.detach().float().flatten() for t in tensors]).view(torch.int32)
    gathered = hvd.allgather(
        flat[None].contiguous(), name=a_name(process_set), process_set=process_set
    )
    assert all(torch.equal(gathered[0], theirs) for theirs in gathered)


def assert_nothing_is_lost(model, step, before, optimizer, gradients, scale=1.0):
    """The law for op=Sum: what came in and is not in a residual was applied, exactly."""
    after = residuals(optimizer)
    given = {name: (g * scale).double().flatten() for name, g in gradients.items()}
    for name, kept in after.items():
        given[name] = given[name] + before.get(name, 0.0) - kept
    summed = totals(given)
    for name, p in model.named_parameters():
        assert torch.equal(summed[name], p.grad.double().flatten()), f"step {step}, {name}"


CULPRIT = hvd.size() - 1
# Where all ranks make the mistake, some hear of it from another before they make it.
ON_ANY_RANK = (GradientInFlightError, ExchangeFailedError)


def on_the_culprit(action):
    if hvd.rank() == CULPRIT:
        action()


def expect_error_on_every_rank(run, *, match, kind=GradientInFlightError):
    """The culprit meets `kind`; the others ExchangeFailedError with the same text.

    They do in the same step, or in the next where they had all they needed for this one.
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
    """What scripts do with the one state that rank 0 has written; `others`: how it comes to them.

    Args:
        optimizer: A new one.
        state: Of an optimizer of rank 0's; on all ranks.
        others: "get it broadcast" or "load it without residuals".
    """
    if hvd.rank() == 0:
        optimizer.load_state_dict(state)
    if others == "get it broadcast":
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    elif hvd.rank() > 0:
        optimizer.load_state_dict(optimizer.reset_residual(state))
