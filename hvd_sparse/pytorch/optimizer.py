"""Connects an optimizer with the exchange of its gradients, whoever runs the ranks."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hvd_sparse.compression_checks import FORWARD
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.exchange.core_handle import SUPERSEDED
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.messages import Messages
from hvd_sparse.local_steps import check_averages, check_rate
from hvd_sparse.pytorch.attachment import Attachment, attachment_of
from hvd_sparse.pytorch.devices import common_device
from hvd_sparse.pytorch.forward import ForwardSteps, check_forward
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.host import TorchHost
from hvd_sparse.pytorch.local_steps import DifferenceSlot, LocalSteps
from hvd_sparse.pytorch.momentum import Momentum
from hvd_sparse.pytorch.owner import weakly
from hvd_sparse.pytorch.parameters import NamedParameters, describe, name_parameters
from hvd_sparse.pytorch.places import place_of
from hvd_sparse.pytorch.renewal import Renewal
from hvd_sparse.pytorch.settings import Settings, check_dense, check_devices, check_parameter
from hvd_sparse.pytorch.step_way import PlainSteps, StepWay
from hvd_sparse.ranks.agreement import agree, kind_of_device
from hvd_sparse.ranks.world import in_elastic_job
from hvd_sparse.tuning.measurer import Measurer

_live: weakref.WeakSet[StepWay] = weakref.WeakSet()
_renewals: weakref.WeakSet[Renewal] = weakref.WeakSet()
_serial = 0


def live_ways() -> list[StepWay]:
    """Returns the ways of taking steps of all optimizers of this process."""
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
        **options: backward_passes_per_step, sparse_as_dense, and the host's options of a
            reduction: Horovod's op (Average or Sum) and gradient_predivide_factor.

    Returns:
        `optimizer`, with Horovod's synchronize(), skip_synchronize(), zero_grad() and
        set_backward_passes_per_step().

    Raises:
        InvalidArgumentError: An argument lies outside its limits, on this rank or another, or the
            ranks' models or options differ. Nothing was exchanged.
        UnsupportedError: A sparse exchange cannot do what was asked for.
        UnavailableError: HVD_SPARSE_TRANSPORT asks for MPI, and this build or job lacks it.
    """

    def prepare() -> tuple[NamedParameters, Settings]:
        settings = Settings.checked(optimizer, compression, host=host, **options)
        return name_parameters(optimizer, named_parameters), settings

    attachment = connect(optimizer, prepare, host=host)
    attachment.add_methods(options.get("backward_passes_per_step", 1))
    return optimizer


def connect(
    optimizer: torch.optim.Optimizer,
    prepare: Callable[[], tuple[NamedParameters, Settings]],
    *,
    host: TorchHost,
    plain: type[PlainSteps] = PlainSteps,
    again: bool = False,
) -> Attachment:
    """Attaches an exchange to an optimizer. Collective; see `distribute`.

    Args:
        optimizer: The optimizer.
        prepare: Returns the parameters whose gradients are exchanged, by name, and the settings. If
            it raises, so do all ranks.
        host: The host of the ranks; other ranks exchange nothing.
        plain: The way of taking steps, if the settings ask for no other.
        again: True if an optimizer that is attached may be attached again: the new exchange takes
            over the state of the former one.
    """
    named: NamedParameters = []
    settings, problem = None, None
    former = attachment_of(optimizer) if again else None
    try:
        check_type(optimizer)
        if former is None:
            _refuse_second_wrapping(optimizer)
        named, settings = prepare()
        for name, param in named:
            check_parameter(name, param)
        check_devices(named, settings.compression)
        if settings.compression.is_local:
            check_averages(settings.reduction.averages)
            rule, group = settings.compression.local_steps, optimizer.param_groups[0]
            check_rate(rule, group, type(optimizer).__name__)
        check_forward(settings, optimizer, named, host)
        if in_elastic_job() or host.has_peers() or _acts_alone(settings, host):
            check_dense(named, settings.compression, host)
    except Exception as error:
        problem = error

    owner = None if problem is not None else weakly(optimizer)

    def build() -> StepWay | None:
        optimizer = None if owner is None else owner()
        if host.has_peers() or _acts_alone(settings, host):
            way = _build(optimizer, named, settings, problem, host, plain)
            passes = getattr(optimizer, "backward_passes_per_step", way.exchange.passes)
            way.exchange.set_passes(passes)
            return way
        if problem is not None:
            raise problem
        return None

    renewal = Renewal(build, [param for _, param in named], host)
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
    return bool(settings and settings.compression.acts_on_gradients and host.included())


def check_type(optimizer: object) -> None:
    """Raises InvalidArgumentError for what is no optimizer."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(
            "optimizer must be a torch.optim.Optimizer, got "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        )


def _refuse_second_wrapping(optimizer: torch.optim.Optimizer) -> None:
    if attachment_of(optimizer) is not None or hasattr(optimizer, "_allreduce_delay"):
        raise InvalidArgumentError(
            f"this {type(optimizer).__name__} already is a distributed optimizer"
        )


def _build(
    optimizer: torch.optim.Optimizer | None,
    named: NamedParameters,
    settings: Settings | None,
    problem: Exception | None,
    host: TorchHost,
    plain: type[PlainSteps],
) -> StepWay:
    global _serial
    world = host.world()
    options = {} if settings is None else settings.describe()
    if settings is not None and problem is None and optimizer is not None:
        options |= kind_of_device(common_device(named).type, settings.compression)
        # Horovod's users broadcast the state afterwards; a former exchange has the velocities.
        if plain is not PlainSteps and attachment_of(optimizer) is None:
            options |= _momentum_of(optimizer, settings, named, size=world.size)
    _serial = 1 + agree(
        world,
        host.ranks,
        problem=problem,
        parameters=describe(named),
        options=options,
        serial=_serial,
    )
    assert settings is not None
    assert optimizer is not None
    for other in live_ways():
        other.settle(quietly=True)  # of an optimizer, perhaps, to which nothing else refers
        if other.exchange.shares_parameters_with(named):
            other.detach(SUPERSEDED)
            _live.discard(other)
    prefix = f"hvd_sparse.{_serial}"
    between = Exchange.between_ranks(world, name=f"optimizer {_serial}")
    place = place_of(common_device(named), between)
    messages = Messages(prefix, host=host, exchange=between)
    build = partial(
        GradientExchange,
        optimizer,
        world=world,
        exchange=between,
        host=host,
        prefix=prefix,
        messages=messages,
        measurer=Measurer(
            world,
            between,
            allreduce=lambda nbytes, values: messages.timed_sum(nbytes, values, place),
            place=place,
        ),
    )
    compression = settings.compression
    way: StepWay
    if compression.is_local:
        updated = {id(param) for group in optimizer.param_groups for param in group["params"]}
        exchange = build(
            [(name, param) for name, param in named if id(param) in updated],
            replace(settings, compression=compression.of_differences()),
            slot_type=DifferenceSlot,
        )
        way = LocalSteps(exchange, compression, messages=messages, host=host, prefix=prefix)
    else:
        way_type = ForwardSteps if compression.overlap == FORWARD else plain
        way = way_type(build(named, settings, slot_type=way_type.slot_type))
    _live.add(way)
    return way


def _momentum_of(
    optimizer: torch.optim.Optimizer, settings: Settings, named: NamedParameters, *, size: int
) -> dict[str, str]:
    """Returns an option for `agree`: momentum that ranks take over must be the same on all."""
    averages = settings.reduction.averages
    momentum = Momentum(optimizer, settings.compression, size=size, averages=averages)
    found = momentum.begin(dict(named), step=0)
    checksum = 0
    for name, velocity in found.items():
        checksum = zlib.crc32(velocity.cpu().numpy().data, zlib.crc32(name.encode(), checksum))
    shown = f"of {len(found)} parameters, with checksum {checksum:08x}" if found else "none yet"
    return {"the momentum in the optimizer's state": shown}
