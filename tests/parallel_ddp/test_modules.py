"""What a DistributedDataParallel module can be asked for: it works, and the laws hold."""

from __future__ import annotations

import copy
import io
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from hvd_sparse.compression import Feedback, Layers, LocalSteps
from hvd_sparse.ddp import LAGS, TopK, attach
from hvd_sparse.errors import (
    ExchangeFailedError,
    GradientInFlightError,
    HvdSparseError,
    NonFiniteGradientError,
    UnsupportedError,
)
from tests.frameworks import SHAPES
from tests.gpus import DEVICE
from tests.parallel_ddp.ddp_framework import BUCKET_MB, Ddp, Toy
from tests.parallel_ddp.networks import (
    EVERYTHING,
    ON_ANY_RANK,
    RATE,
    SMALL,
    attached,
    batch,
    integers,
    network,
    residuals,
    weights_of,
)
from tests.torch_model import array_of

# ---- Options of the module -----------------------------------------------------------------------


@pytest.mark.parametrize("preset", [TopK(density=0.1, **SMALL), LAGS(adaptive=False, **SMALL)])
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"static_graph": True, "find_unused_parameters": True, "gradient_as_bucket_view": True},
        {"bucket_cap_mb": 25},
        {"bucket_cap_mb": 1e-9},
    ],
    ids=lambda options: ", ".join(options),
)
def test_nothing_is_lost_with_any_option(options, preset):
    framework = Ddp(**options)
    model = framework.model(preset)
    for step in range(5):
        framework.checked_step(model, framework.integer_gradients(step))
    framework.assert_same_on_all_ranks(model.weights())


def test_several_forward_passes_add_up(framework):
    ddp = DistributedDataParallel(Toy().to(DEVICE), bucket_cap_mb=BUCKET_MB)
    optimizer = attached(ddp, TopK(density=0.1, **SMALL), op=dist.ReduceOp.SUM)
    for step in range(3):
        optimizer.zero_grad()
        first, second = integers(framework, 2 * step), integers(framework, 2 * step + 1)
        before = residuals(optimizer)
        (ddp(first) + ddp(second)).backward()
        given = {name: array_of(first[name] + second[name]) for name in SHAPES}
        results = {name: array_of(one.grad) for name, one in ddp.module.named_parameters()}
        framework.assert_nothing_is_lost(given, results, before, residuals(optimizer))
        optimizer.step()


def test_a_backward_pass_onto_an_average_is_exchanged_with_it(framework):
    ddp = DistributedDataParallel(Toy().to(DEVICE), bucket_cap_mb=BUCKET_MB)
    optimizer = attached(ddp, TopK(density=0.1, **SMALL), op=dist.ReduceOp.SUM)
    ddp(integers(framework, 0)).backward()
    found = {name: array_of(one.grad) for name, one in ddp.module.named_parameters()}
    before, second = residuals(optimizer), integers(framework, 1)
    ddp(second).backward()  # outside of no_sync()
    given = {name: found[name] + array_of(second[name]) for name in SHAPES}
    results = {name: array_of(one.grad) for name, one in ddp.module.named_parameters()}
    framework.assert_nothing_is_lost(given, results, before, residuals(optimizer))


def test_gradients_accumulate_within_no_sync(framework):
    ours, theirs = network(), network()
    optimizers = attached(ours), torch.optim.SGD(theirs.parameters(), lr=RATE)
    for step in range(4):
        for ddp, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            for part in range(3):
                with nullcontext() if part == 2 else ddp.no_sync():
                    ddp(batch(3 * step + part, framework)).square().mean().backward()
            optimizer.step()
    for name, weights in weights_of(ours).items():
        np.testing.assert_allclose(weights, weights_of(theirs)[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RAdam, torch.optim.SGD])
def test_at_density_one_an_optimizer_does_as_without_compression(framework, kind):
    ours, theirs = network(), network()
    compression = TopK(density=1.0, layers=Layers(min_numel=1), feedback=Feedback(momentum="keep"))
    optimizers = attached(ours, compression, kind=kind), kind(theirs.parameters(), lr=RATE)
    for step in range(6):
        for ddp, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            ddp(batch(step, framework)).square().mean().backward()
            optimizer.step()
    for name, weights in weights_of(ours).items():
        np.testing.assert_allclose(weights, weights_of(theirs)[name], rtol=1e-4, atol=1e-5)
    framework.assert_same_on_all_ranks(weights_of(ours))


@pytest.mark.parametrize("local_steps", [1, 2])
def test_gradients_of_another_optimizer_are_averaged_dense(framework, local_steps):
    ours, theirs = network(), network()
    pairs = []
    for ddp in (ours, theirs):
        first, last = ddp.module[0], ddp.module[2]
        pairs.append([torch.optim.SGD(one.parameters(), lr=0.1) for one in (last, first)])
    on_gradients = (
        {"feedback": Feedback(weight_decay=0.5, clip_norm=1e-3)} if local_steps == 1 else {}
    )
    compression = TopK(
        density=0.05, layers=Layers(min_numel=1), local_steps=local_steps, **on_gradients
    )
    attach(ours, pairs[0][0], compression)
    for step in range(3):
        for ddp, optimizers in zip((ours, theirs), pairs, strict=True):
            ddp.zero_grad()
            ddp(batch(step, framework)).square().mean().backward()
            optimizers[1].step()
    assert set(residuals(pairs[0][0])) <= {"2.weight"}
    for name in ("0.weight", "0.bias"):
        np.testing.assert_allclose(
            weights_of(ours.module)[name], weights_of(theirs.module)[name], rtol=1e-5, atol=1e-7
        )


@pytest.mark.usefixtures("several_ranks")
def test_a_rank_without_data_takes_part_in_join(framework):
    ddp = DistributedDataParallel(Toy().to(DEVICE), bucket_cap_mb=BUCKET_MB)
    optimizer = attached(ddp, TopK(density=0.1, **SMALL), op=dist.ReduceOp.SUM)
    owed = dict.fromkeys(SHAPES, 0.0)
    with Join([ddp]):
        for step in range(2 + 2 * framework.rank):
            optimizer.zero_grad()
            given = integers(framework, step)
            ddp(given).backward()
            optimizer.step()
            owed = {name: owed[name] + array_of(one).ravel() for name, one in given.items()}
    kept = residuals(optimizer)
    applied = {name: one - kept.get(name, 0.0) for name, one in owed.items()}
    for name, summed in framework.totals(applied).items():
        assert np.array_equal(-weights_of(ddp.module)[name].ravel() / RATE, summed)
    framework.assert_same_on_all_ranks(weights_of(ddp.module))


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("streams", [{}, {"delay": 3}, {"fragments": 3, "delay": 1}], ids=repr)
def test_ranks_without_data_come_to_meetings_and_all_meet_at_the_end_of_join(framework, streams):
    ddp = DistributedDataParallel(Toy().to(DEVICE), bucket_cap_mb=BUCKET_MB)
    optimizer = attached(
        ddp, TopK(density=0.1, local_steps=LocalSteps(every=3, **streams), **SMALL)
    )
    owed = dict.fromkeys(SHAPES, 0.0)
    for round_of_join in range(2):
        with Join([ddp]):
            for step in range(2 + 3 * framework.rank):
                optimizer.zero_grad()
                given = integers(framework, 10 * round_of_join + step)
                given = {name: framework.size * one for name, one in given.items()}
                ddp(given).backward()
                optimizer.step()
                owed = {name: owed[name] + array_of(one).ravel() for name, one in given.items()}
        framework.assert_same_on_all_ranks(weights_of(ddp.module))
    kept = residuals(optimizer)
    applied = {name: RATE * one - kept.get(name, 0.0) for name, one in owed.items()}
    for name, summed in framework.totals(applied).items():
        assert np.array_equal(-framework.size * weights_of(ddp.module)[name].ravel(), summed)


@pytest.mark.usefixtures("several_ranks")
def test_averages_of_weights_are_over_all_ranks_within_join(framework):
    ddp = network()
    attached(ddp, TopK(density=0.1, local_steps=2, **SMALL))
    with pytest.raises(UnsupportedError, match="divide_by_initial_world_size must be True"):
        ddp.join(divide_by_initial_world_size=False)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("mistake", ["meet", "accumulate"])
def test_what_ranks_without_data_cannot_follow_is_refused_within_join(framework, mistake):
    ddp = network()
    optimizer = attached(ddp, TopK(density=0.1, local_steps=2, **SMALL))
    match = r"meet\(\) was called within join" if mistake == "meet" else "there were 2"
    with pytest.raises((UnsupportedError, ExchangeFailedError), match=match), ddp.join():
        for part in range(2):
            ddp(batch(part, framework)).square().mean().backward()
        optimizer.exchange.meet() if mistake == "meet" else optimizer.step()


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_are_computed_again_with_activation_checkpointing(framework, reentrant):
    class Again(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = torch.nn.Linear(20, 40), torch.nn.Linear(40, 10)

        def forward(self, rows):
            return self.last(checkpoint(self.first, rows, use_reentrant=reentrant).relu())

    ours, theirs = (
        DistributedDataParallel(Again().to(DEVICE), bucket_cap_mb=BUCKET_MB) for _ in range(2)
    )
    optimizers = attached(ours), torch.optim.SGD(theirs.parameters(), lr=RATE)
    for step in range(3):
        for ddp, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            ddp(batch(step, framework).requires_grad_()).square().mean().backward()
            optimizer.step()
    for name, weights in weights_of(ours).items():
        np.testing.assert_allclose(weights, weights_of(theirs)[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("inside", [False, True])
def test_a_compiled_model_is_attached(framework, inside):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, 10))
    layers = layers.to(DEVICE)
    if inside:
        layers = torch.compile(layers, backend="aot_eager")
    model = ddp = DistributedDataParallel(layers)  # the compiler wants buckets of 1 MB and more
    if not inside:
        model = torch.compile(ddp, backend="aot_eager")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
    attach(model, optimizer, EVERYTHING)
    theirs = network()
    other = torch.optim.SGD(theirs.parameters(), lr=RATE)
    for step in range(4):
        for one, stepping in ((model, optimizer), (theirs, other)):
            stepping.zero_grad()
            one(batch(step, framework)).square().mean().backward()
            stepping.step()
    found, expected = weights_of(ddp).values(), weights_of(theirs).values()
    for ours, stock in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-7)


def test_a_closure_computes_the_gradients_of_a_step(framework):
    ddp = network()
    optimizer = attached(ddp, TopK(density=0.1, layers=Layers(min_numel=1)), kind=torch.optim.AdamW)

    def closure(step):
        optimizer.zero_grad()
        loss = ddp(batch(step, framework)).square().mean()
        loss.backward()
        return loss

    losses = [optimizer.step(lambda step=step: closure(step)).item() for step in range(20)]
    assert losses[-1] < losses[0]
    framework.assert_same_on_all_ranks(weights_of(ddp))


@pytest.mark.usefixtures("several_ranks")
def test_a_group_of_two_exchanges_by_itself(framework, first_and_last):
    if not first_and_last.included():
        return
    model = Ddp().model(EVERYTHING, ranks=first_and_last)
    gradients = framework.integer_gradients(0)
    exact = framework.totals(gradients, first_and_last)
    for name, result in model.step(gradients).items():
        assert np.array_equal(result.ravel(), exact[name])


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("op", [dist.ReduceOp.AVG, dist.ReduceOp.SUM])
def test_join_may_divide_by_the_ranks_that_have_data(framework, op):
    ddp = DistributedDataParallel(Toy().to(DEVICE), bucket_cap_mb=BUCKET_MB)
    optimizer = attached(ddp, EVERYTHING, op=op)
    with ddp.join(divide_by_initial_world_size=False):
        for _ in range(1 + framework.rank):
            optimizer.zero_grad()
            ddp(
                {name: torch.ones(shape, device=DEVICE) for name, shape in SHAPES.items()}
            ).backward()
            optimizer.step()
    # Rank r trains in steps 0 to r. All gradients are 1, and so is each average over those present.
    present = range(framework.size, 0, -1)
    moved = RATE * sum(1 if op == dist.ReduceOp.AVG else count for count in present)
    assert all(np.all(one == -moved) for one in weights_of(ddp.module).values())


# ---- Steps that are not taken --------------------------------------------------------------------


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("view", [False, True])
def test_a_step_that_is_not_finite_is_refused_out_of_backward_and_training_goes_on(framework, view):
    ddp = network(gradient_as_bucket_view=view)
    optimizer = attached(ddp, TopK(density=0.1, layers=Layers(min_numel=1)))
    for step in range(5):
        optimizer.zero_grad()
        loss = ddp(batch(step, framework)).square().mean()
        if step == 2:
            bad = loss * float("nan") if framework.rank == framework.size - 1 else loss
            with pytest.raises(NonFiniteGradientError, match=f"rank {framework.size - 1}"):
                bad.backward()
            assert not any(param.grad.any() for param in ddp.parameters())
            continue
        loss.backward()
        optimizer.step()
    framework.assert_same_on_all_ranks(weights_of(ddp))
    assert optimizer.exchange.stats.total.steps == 5


@pytest.mark.usefixtures("several_ranks")
def test_a_step_with_gradients_of_this_rank_alone_is_refused(framework):
    ddp = network()
    optimizer = attached(ddp)
    with ddp.no_sync():
        ddp(batch(0, framework)).sum().backward()
    with pytest.raises(GradientInFlightError, match="no_sync"):
        optimizer.step()


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("rows", [10, 1000])  # of 4 kB; DDP's first bucket holds a megabyte
def test_a_step_after_a_backward_pass_without_some_gradients_is_refused(rows):
    ddp = DistributedDataParallel(Toy({"unused": (50, 40), "used": (rows, 1000)}).to(DEVICE))
    ddp.module.forward = lambda: ddp.module.used.sum()
    optimizer = attached(ddp)
    ddp().backward()
    with pytest.raises(ON_ANY_RANK, match="gradient for every parameter"):
        optimizer.step()


@pytest.mark.usefixtures("several_ranks")
def test_a_step_without_gradients_does_nothing(framework):
    ddp = network()
    optimizer = attached(ddp)
    optimizer.step()
    for param in ddp.parameters():
        param.grad = torch.zeros_like(param)  # as code that makes an optimizer's state does
    optimizer.step()
    assert optimizer.exchange.stats.total.steps == 0
    ddp.zero_grad()
    ddp(batch(0, framework)).sum().backward()
    optimizer.step()
    framework.assert_same_on_all_ranks(weights_of(ddp))


def test_an_output_may_be_ignored(framework):
    ddp = network()
    optimizer = attached(ddp)
    for step in range(4):
        optimizer.zero_grad()
        loss = ddp(batch(step, framework)).square().mean()
        if step % 2:
            loss.backward()
            optimizer.step()
    framework.assert_same_on_all_ranks(weights_of(ddp))


# ---- Lives ---------------------------------------------------------------------------------------


LOCAL = TopK(density=1.0, layers=Layers(min_numel=1), local_steps=2)


@pytest.mark.parametrize("compression", [EVERYTHING, LOCAL])
def test_copies_of_a_module_can_be_made_and_saved(framework, compression):
    ddp = network()
    optimizer = attached(ddp, compression)
    twin = copy.deepcopy(ddp.module)
    torch.save(ddp.state_dict(), io.BytesIO())
    ddp(batch(0, framework)).sum().backward()
    optimizer.step()
    assert any(
        not np.array_equal(one, weights_of(twin)[name])
        for name, one in weights_of(ddp.module).items()
    )
    if framework.size > 1:
        state, _ = ddp._comm_hooks[0][1], None
        assert copy.deepcopy(ddp._comm_hooks)[0][1] is None
        assert state is not None


@pytest.mark.usefixtures("several_ranks")
def test_ddp_gathers_no_gradients_beside_local_steps_and_a_copy_gathers_them(framework):
    ddp = network()
    optimizer = attached(ddp, LOCAL)
    ddp(batch(0, framework)).sum().backward()
    own = [param.grad.clone() for param in ddp.parameters()]
    assert not all(torch.equal(grad, ddp_mean(grad)) for grad in own)
    twin = copy.deepcopy(ddp)
    twin.zero_grad()
    twin(batch(0, framework)).sum().backward()
    for param, grad in zip(twin.parameters(), own, strict=True):
        torch.testing.assert_close(param.grad, ddp_mean(grad))
    optimizer.step()


def ddp_mean(tensor):
    """Returns the mean over the ranks."""
    total = tensor.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("compression", [TopK(density=0.1, **SMALL), LOCAL])
def test_a_module_without_its_optimizer_says_so(framework, compression):
    ddp = network()
    optimizer = attached(ddp, compression)
    ddp(batch(0, framework)).sum().backward()
    optimizer.step()
    del optimizer
    with pytest.raises(HvdSparseError, match="no longer"):
        ddp(batch(1, framework)).sum().backward()
