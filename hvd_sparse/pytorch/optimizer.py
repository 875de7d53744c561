"""Connects an optimizer with the exchange of its gradients, whoever runs the ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.exchange.core_handle import SUPERSEDED
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.interval import check_averages, check_rate
from hvd_sparse.exchange.messages import Messages
from hvd_sparse.pytorch.attachment import Attachment, attachment_of
from hvd_sparse.pytorch.devices import common_device
from hvd_sparse.pytorch.forward import ForwardSteps, check_forward
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.host import Link, TorchHost
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.momentum import Momentum
from hvd_sparse.pytorch.parameters import (
    check_kind,
    describe,
    name_parameters,
    weakly,
)
from hvd_sparse.pytorch.plain_steps import PlainSteps
from hvd_sparse.pytorch.renewal import Renewal
from hvd_sparse.pytorch.replica import Replica
from hvd_sparse.pytorch.settings import Settings, check_dense, check_devices, check_parameter
from hvd_sparse.ranks.agreement import agree, kind_of_device
from hvd_sparse.ranks.world import in_elastic_job

_live: weakref.WeakSet[GradientExchange] = weakref.WeakSet()
_renewals: weakref.WeakSet[Renewal] = weakref.WeakSet()
_serial = 0

_SHOWN = 8  # numbers of ranks in the name of an exchange


def live_exchanges() -> list[GradientExchange]:
    """Returns the exchanges of all optimizers of this process."""
    return list(_live)


def distribute(
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = None,
    *,
    host: TorchHost,
    **options: Any,
) -> torch.optim.Optimizer:
    """Makes `optimizer.step()` use gradients that were exchanged sparsely. Collective.

    In an elastic job, where a rank may join while others train, nothing is sent here: the exchange
    is built when the elastic state is synchronised, or by the first gradient.

    Returns the object itself, with hooks around its step, so that schedulers, gradient scalers and
    isinstance see what they expect.

    A single rank exchanges nothing, but the compression still applies momentum, weight decay and
    clipping to its gradients.

    Args:
        optimizer: Any but LBFGS and SparseAdam; its parameters are on the CPU or, if this build has
            CUDA, on one GPU; of type float64, float32, float16 or bfloat16.
        named_parameters: Horovod's named_parameters, usually `model.named_parameters()`.
        compression: A sparse compression, as a class or an instance.
        host: The host of the ranks; other ranks exchange nothing.
        **options: backward_passes_per_step and sparse_as_dense; the host's options of a reduction:
            Horovod's op (Average or Sum) and gradient_predivide_factor; and
            `grad_scaler`: the torch.amp.GradScaler that scales the loss, or any object with its
            get_scale(). Residuals then hold unscaled gradients, and in a step in which a gradient
            is not finite on one rank, all gradients are infinite on all ranks, so that all of them
            skip the step and lower the scale;
            `wait_in_forward`: True if step() does not wait: the next forward pass waits for each
            parameter before it uses it. Under Horovod.

    Returns:
        `optimizer`, with Horovod's synchronize(), skip_synchronize(), zero_grad() and
        set_backward_passes_per_step().

    Raises:
        InvalidArgumentError: An argument lies outside its limits, on this rank or another, or the
            ranks' models or options differ. Nothing was exchanged.
        UnsupportedError: A sparse exchange cannot do what was asked for.
        UnavailableError: HVD_SPARSE_TRANSPORT asks for MPI, and this build or job lacks it.
    """

    def prepare() -> Settings:
        named = name_parameters(optimizer, named_parameters)
        return Settings.checked(optimizer, compression, named=named, host=host, **options)

    attachment = connect(optimizer, prepare, host=host)
    attachment.add_methods(options.get("backward_passes_per_step", 1))
    return optimizer


def connect(
    optimizer: torch.optim.Optimizer,
    prepare: Callable[[], Settings],
    *,
    host: TorchHost,
    plain: type[PlainSteps] = PlainSteps,
    again: bool = False,
) -> Attachment:
    """Attaches an exchange to an optimizer. Collective; see `distribute`.

    Args:
        optimizer: The optimizer.
        prepare: Returns the settings. If it raises, so do all ranks.
        host: The host of the ranks; other ranks exchange nothing.
        plain: The class of the steps, unless the settings ask for local or for waiting ones.
        again: True if an optimizer that is attached may be attached again: the new exchange takes
            over the state of the former one.
    """
    settings, problem = None, None
    former = attachment_of(optimizer) if again else None
    try:
        check_kind("optimizer", optimizer, torch.optim.Optimizer)
        if former is None:
            _refuse_second_wrapping(optimizer)
        settings = prepare()
        for name, param in settings.named:
            check_parameter(name, param)
        check_devices(settings)
        if settings.compression.is_local:
            check_averages(settings.reduction.averages)
            rule, group = settings.compression.local_steps, optimizer.param_groups[0]
            check_rate(rule, group, type(optimizer).__name__)
        check_forward(settings, optimizer)
        if in_elastic_job() or host.has_peers() or _acts_alone(settings, host):
            check_dense(settings, host)
    except Exception as error:
        problem = error

    owner = None if problem is not None else weakly(optimizer)

    def build() -> GradientExchange | None:
        optimizer = None if owner is None else owner()
        if host.has_peers() or _acts_alone(settings, host):
            exchange = _build(optimizer, settings, problem, host, plain)
            exchange.passes = getattr(optimizer, "backward_passes_per_step", exchange.passes)
            exchange.release()
            return exchange
        if problem is not None:
            raise problem
        return None

    params = [] if settings is None else [param for _, param in settings.named]
    renewal = Renewal(build, params, host)
    if former is not None:
        former.undo_unfinished()
        renewal.succeed(former.renewal)
    if not in_elastic_job():
        renewal.renew()
    elif problem is not None:
        raise problem
    else:
        renewal.defer()
    if former is None:
        attachment = Attachment(optimizer, renewal)
    else:
        attachment, former.renewal = former, renewal
    for other in _renewals:
        if other.shares_parameters_with(renewal):
            other.retire(SUPERSEDED)
    _renewals.add(renewal)
    return attachment


def _acts_alone(settings: Settings | None, host: TorchHost) -> bool:
    return bool(settings and settings.compression.feedback.changes_gradients and host.included())


def _numbers(host: TorchHost) -> str:
    """Returns the numbers of ranks in the job, for an exchange's name, if it counts otherwise."""
    ranks = list(host.ranks)
    if ranks == list(range(len(ranks))):
        return ""
    shown = ", ".join(map(str, ranks[:_SHOWN])) + (", ..." if len(ranks) > _SHOWN else "")
    return f" (ranks {shown} of the job)"


def _refuse_second_wrapping(optimizer: torch.optim.Optimizer) -> None:
    if attachment_of(optimizer) is not None or hasattr(optimizer, "_allreduce_delay"):
        raise InvalidArgumentError(
            f"this {type(optimizer).__name__} already is a distributed optimizer"
        )


def _build(
    optimizer: torch.optim.Optimizer | None,
    settings: Settings | None,
    problem: Exception | None,
    host: TorchHost,
    plain: type[PlainSteps],
) -> GradientExchange:
    global _serial
    world, everyone = host.world(), host.of_all_shards()
    options: dict[str, str] = {}
    if settings is not None:
        options = settings.describe()
        if problem is None and optimizer is not None:
            options |= kind_of_device(common_device(settings.named).type, settings.compression)
            # Horovod's users broadcast the state afterwards; a former exchange has the velocities.
            if plain is not PlainSteps and attachment_of(optimizer) is None:
                options |= Momentum(optimizer, settings, size=world.size).describe(settings.named)
    _serial = 1 + agree(
        world if everyone is host else everyone.world(),
        everyone.ranks,
        problem=problem,
        parameters=[] if settings is None else describe(settings.named),
        options=options,
        serial=_serial,
    )
    assert settings is not None
    assert optimizer is not None
    for other in live_exchanges():
        other.settle(quietly=True)  # of an optimizer, perhaps, to which nothing else refers
        if other.shares_parameters_with(settings.named):
            other.detach(SUPERSEDED)
            _live.discard(other)
    prefix = f"hvd_sparse.{_serial}"
    core = Exchange.between_ranks(world, name=f"optimizer {_serial}{_numbers(host)}")
    messages = Messages(prefix, host=host, exchange=core)
    siblings = host.of_this_replica()
    replica = None
    if siblings is not None:
        shards = siblings.world()
        name = f"the shards of optimizer {_serial}{_numbers(siblings)}"
        replica = Replica(shards, Exchange.between_ranks(shards, name=name))
    link = Link(world, core, host, prefix, messages, replica)
    kind: type[GradientExchange] = plain
    if settings.compression.is_local:
        kind = LocalSteps
    elif settings.waits_in_forward:
        kind = ForwardSteps
    exchange = kind(optimizer, settings, link)
    _live.add(exchange)
    return exchange
