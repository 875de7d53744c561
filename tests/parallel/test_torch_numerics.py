"""All features that change gradients, combined: the law holds exactly in every combination.

Gradients are plus or minus one at 256 indices, momentum is 1/2, clipping factors and loss scales
are powers of two, so all sums are exact, in bfloat16 too.
"""

from __future__ import annotations

import math

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.torch import LAGS
from tests.cases import in_turn
from tests.parallel.torch_ranks import (
    Toy,
    assert_same_on_all_ranks,
    distribute,
    residuals,
    signs,
    totals,
    velocities,
)

BAD_STEP = 1
SCALE = 1024.0


def new_optimizer(model, *, ranks, passes, scaler, clips, momentum):
    """Makes an optimizer; clipping quarters each gradient that has all its 256 entries."""
    compression = LAGS(
        adaptive=False,
        density=0.1,
        min_numel=64,
        bucket_numel=1500,
        rescale_residual=False,
        loss_scale=scaler,
        momentum_correction=momentum,
        clip_norm=passes * 16 / 4 * math.sqrt(ranks.size()) if clips else None,
    )
    return distribute(model, compression, backward_passes_per_step=passes, process_set=ranks)


def take_step(model, optimizer, gradients, *, passes, scaler):
    optimizer.zero_grad()
    for _ in range(passes):
        loss = sum((getattr(model, name) * g).sum() for name, g in gradients.items())
        (loss if scaler is None else scaler.scale(loss)).backward()
    if scaler is None:
        optimizer.step()
        return
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


def check_law(model, before, after, gradients, *, ranks, refused, momentum, passes, clips):
    """Checks that gradients, residuals and velocities in equal sums applied and residuals out."""
    (residual, velocity), (left, _) = before, after
    given = {}
    for name, p in model.named_parameters():
        gradient = torch.nan_to_num(gradients[name], nan=0.0).double().flatten()
        factor = 0.25 if clips and p.numel() >= 256 else 1.0
        grown = passes * factor * gradient + momentum * velocity.get(name, 0.0)
        if name in left and ranks.size() > 1:  # otherwise nothing is sent or left
            given[name] = residual[name] + grown - left[name]
        elif not refused:
            given[name] = grown
    if not given:
        return
    for name, summed in totals(given, process_set=ranks).items():
        applied = getattr(model, name).grad.double().flatten()
        assert torch.equal(summed, torch.zeros_like(summed) if refused else applied), name


@pytest.mark.parametrize(
    ("dtype", "passes", "scaled", "clips", "momentum", "ranks"),
    in_turn(
        [torch.float32, torch.bfloat16],
        [1, 2],
        [False, True],
        [False, True],
        [0.0, 0.5],
        ["all ranks", "two ranks"],
    ),
    indirect=["ranks"],
)
def test_nothing_is_lost(dtype, passes, scaled, clips, momentum, ranks):
    if not ranks.included():
        return
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE) if scaled else None
    model = Toy(dtype=dtype)
    optimizer = new_optimizer(
        model, ranks=ranks, passes=passes, scaler=scaler, clips=clips, momentum=momentum
    )
    for step in range(3):
        gradients = signs(model, step, norm=16.0, dtype=dtype)
        refused = scaled and step == BAD_STEP
        if refused and hvd.rank() == ranks.ranks[-1]:
            flat = gradients["second"].view(-1)
            flat[int((flat == 0).nonzero()[0])] = math.nan  # the norm of the rest stays exact
        before = residuals(optimizer), velocities(optimizer)
        weights = [p.detach().clone() for p in model.parameters()]
        take_step(model, optimizer, gradients, passes=passes, scaler=scaler)
        after = residuals(optimizer), velocities(optimizer)
        check_law(
            model, before, after, gradients,
            ranks=ranks, refused=refused, momentum=momentum, passes=passes, clips=clips,
        )  # fmt: skip
        if refused:
            assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
            assert scaler.get_scale() == SCALE / 2
    assert_same_on_all_ranks(model.parameters(), process_set=ranks)
    assert all(p.detach().any() for p in model.parameters())
