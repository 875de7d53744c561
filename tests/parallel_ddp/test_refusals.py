"""What hvd_sparse.ddp refuses by name, before anything is sent."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.compression import Feedback
from hvd_sparse.ddp import LAGS, Exchange, TopK, attach
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError


def wrapped(**options):
    return DistributedDataParallel(torch.nn.Linear(4, 3), **options)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


def test_a_second_hook_is_refused():
    ddp = wrapped()
    ddp.register_comm_hook(None, allreduce_hook)
    with pytest.raises(UnsupportedError, match="hook 'allreduce_hook' already"):
        attach(ddp, sgd(ddp), LAGS)


def test_optimizers_that_step_during_backward_are_refused():
    module = torch.nn.Linear(4, 3)
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
    ddp = DistributedDataParallel(module)
    with pytest.raises(UnsupportedError, match="step during backward"):
        attach(ddp, sgd(ddp), LAGS)
    fused = wrapped()
    fused._register_fused_optim(torch.optim.SGD, 0.1)
    with pytest.raises(UnsupportedError, match="hook '_hook_then_optimizer"):
        attach(fused, sgd(fused), LAGS)


@pytest.mark.usefixtures("several_ranks")
def test_a_second_attachment_of_a_module_is_refused():
    ddp = wrapped()
    attach(ddp, sgd(ddp), TopK)
    with pytest.raises(UnsupportedError, match="has the communication hook"):
        attach(ddp, sgd(ddp), TopK)


def test_mixed_precision_of_the_module_is_refused():
    ddp = wrapped()
    ddp.mixed_precision = object()  # its own hooks take a GPU
    with pytest.raises(UnsupportedError, match="mixed_precision"):
        attach(ddp, sgd(ddp), LAGS)


def test_the_python_reducer_is_refused():
    import torch._dynamo  # slow to import

    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        ddp = wrapped()
    with pytest.raises(UnsupportedError, match="Python reducer"):
        attach(ddp, sgd(ddp), LAGS)


def test_sparse_gradients_are_refused():
    ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(5, 4, sparse=True)))
    with pytest.raises(UnsupportedError, match=r"'0.weight' is sparse"):
        attach(ddp, sgd(ddp), LAGS)


def test_a_module_that_is_not_wrapped_is_refused():
    module = torch.nn.Linear(4, 3)
    with pytest.raises(InvalidArgumentError, match=r"DistributedDataParallel, got torch\.nn"):
        attach(module, sgd(module), LAGS)


def test_other_optimizers_are_refused():
    class Keras:
        """Has no step that hooks could surround."""

    ddp = wrapped()
    with pytest.raises(InvalidArgumentError, match=r"torch.optim.Optimizer, got .*Keras"):
        attach(ddp, Keras(), LAGS)
    with pytest.raises(UnsupportedError, match="LBFGS"):
        attach(ddp, torch.optim.LBFGS(ddp.parameters()), LAGS)


def test_parameters_of_another_module_are_refused():
    ddp = wrapped()
    with pytest.raises(InvalidArgumentError, match="parameter 0 of group 0 of SGD does not belong"):
        attach(ddp, sgd(torch.nn.Linear(2, 2)), LAGS)


def test_no_compression_and_options_out_of_range_are_refused():
    ddp = wrapped()
    with pytest.raises(InvalidArgumentError):
        attach(ddp, sgd(ddp), "none")
    with pytest.raises(InvalidArgumentError, match="gradient_predivide_factor must be > 0"):
        attach(ddp, sgd(ddp), LAGS, gradient_predivide_factor=0.0)
    with pytest.raises(UnsupportedError, match=r"ReduceOp\.AVG or ReduceOp\.SUM"):
        attach(ddp, sgd(ddp), LAGS, op=torch.distributed.ReduceOp.MAX)


@pytest.mark.usefixtures("several_ranks")
def test_ranks_that_differ_all_learn_of_it(framework):
    ddp = wrapped()
    density = 0.1 if framework.rank else 0.2
    with pytest.raises(InvalidArgumentError, match="compression is"):
        attach(ddp, sgd(ddp), TopK(density=density))


@pytest.mark.usefixtures("several_ranks")
def test_a_problem_of_one_rank_is_told_to_all(framework):
    ddp = wrapped()
    compression = TopK if framework.rank == 0 else "none"
    match = "rank 1 cannot take part" if framework.rank == 0 else ""
    with pytest.raises(InvalidArgumentError, match=match):
        attach(ddp, sgd(ddp), compression)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("bad", ["optimizer", "model", "factor"])
def test_an_argument_of_one_rank_is_told_to_all(framework, bad):
    ddp = wrapped()
    given = {"model": ddp, "optimizer": sgd(ddp), "gradient_predivide_factor": 2.0}
    matches = {
        "optimizer": "optimizer must be a torch.optim.Optimizer, got builtins.NoneType",
        "model": "model must be a .*DistributedDataParallel, got .*Linear",
        "factor": "gradient_predivide_factor must be a number > 0, got '2'",
    }
    if framework.rank == 1:
        given |= {
            "optimizer": {"optimizer": None},
            "model": {"model": ddp.module},
            "factor": {"gradient_predivide_factor": "2"},
        }[bad]
    told = "" if framework.rank == 1 else "rank 1 cannot take part: "
    with pytest.raises(InvalidArgumentError, match=told + matches[bad]):
        attach(compression=TopK, **given)


@pytest.mark.usefixtures("several_ranks")
def test_momentum_that_differs_between_ranks_is_refused(framework):
    ddp = wrapped()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    if framework.rank == 1:  # as if this rank alone had loaded a state
        for param in ddp.parameters():
            optimizer.state[param]["momentum_buffer"] = torch.ones_like(param)
    with pytest.raises(InvalidArgumentError, match=r"momentum in the .* none yet"):
        attach(ddp, optimizer, TopK)
    attach(
        ddp, optimizer, TopK(feedback=Feedback(momentum="keep"))
    )  # which leaves it to the optimizer


def test_a_refused_module_trains_on_without_compression():
    ddp = wrapped()
    optimizer = sgd(ddp)
    with pytest.raises(InvalidArgumentError, match="grad_scaler must have get_scale"):
        attach(ddp, optimizer, TopK, grad_scaler=1024.0)
    ddp(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    with pytest.raises(InvalidArgumentError, match="has no sparse compression"):
        _ = Exchange(optimizer).stats
