"""The handle of FSDP2's users."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.stateful import Stateful

from hvd_sparse.ddp.host import GroupHost
from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError, UnsupportedError
from hvd_sparse.fsdp import sharded_state
from hvd_sparse.fsdp.groups import Mesh
from hvd_sparse.fsdp.host import ShardHost
from hvd_sparse.pytorch.attachment import Attachment
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.user_exchange import TorchExchange
from hvd_sparse.state.checkpoint import Job


class Exchange(TorchExchange):
    """The exchange of the gradients of a sharded model's optimizer.

        exchange = attach(model, optimizer, LAGS)  # or optimizer.exchange, from then on

    It is a Stateful of torch.distributed.checkpoint (DCP), which saves and loads it beside model
    and optimizer:

        dcp.save({"model": ..., "optimizer": ..., "residuals": exchange}, checkpoint_id=folder)

    It does not keep the optimizer alive.

    Args:
        optimizer: An optimizer that was attached.

    Raises:
        InvalidArgumentError: `optimizer` is no optimizer.
    """

    def state_dict(self) -> dict[str, Any]:
        """Returns residuals, velocities, thresholds and plan, for DCP. Collective, between steps.

        With local steps also the last common weights, and this rank's own weights and moments. Save
        within `common_weights()` then: the model's own part of the checkpoint is the same for all
        replicas.

        Returns:
            DTensors by part of the state and by parameter, each with a first dimension for the
            replicas; and a text. Empty on a mesh of one replica.

        Raises:
            GradientInFlightError: Gradients have arrived but are not exchanged yet.
            ExchangeFailedError: The exchange has ended.
        """
        sharded = self._sharded()
        return {} if sharded is None else sharded_state.save(*sharded)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict` has returned, and DCP has loaded. Collective, between steps.

        On a mesh of as many replicas and shards, training goes on as if nothing had happened, bit
        for bit. With another number of shards, thresholds and plan are found anew. DCP refuses
        another number of replicas: see `spread_from`.

        Raises:
            CheckpointMismatchError: On every rank: the state does not fit. Nothing has changed.
            GradientInFlightError: Gradients have arrived but are not exchanged yet.
        """
        sharded = self._sharded()
        if sharded is None or not state_dict:
            return
        exchange, *_ = sharded
        self._attachment.load_apart(sharded_state.read(*sharded, state_dict))
        if isinstance(exchange, LocalSteps):
            sharded_state.load_own(exchange, state_dict)

    def spread_from(self, folder: str | os.PathLike[str]) -> Stateful:
        """Returns what takes this exchange's place in a load from any number of replicas.

            dcp.load({..., "residuals": exchange.spread_from(folder)}, checkpoint_id=folder)

        The sum of all saved residuals is shared out, entry by entry to one replica after the other;
        thresholds, plan and velocities begin anew.

        Args:
            folder: The checkpoint, on a file system that all ranks share.

        Raises:
            InvalidArgumentError: There is no exchange, on a mesh of one replica.
        """
        sharded = self._sharded()
        if sharded is None:
            raise InvalidArgumentError(
                "spread_from() needs a mesh of at least 2 replicas, got 1: leave the residuals out "
                "of what is loaded"
            )
        return _Spread(self._attachment, *sharded, folder)

    def _sharded(self) -> tuple[GradientExchange, Job, Mesh] | None:
        """Returns the exchange, all ranks of its mesh, and that; None on a mesh of one replica."""
        exchange = self._attachment.apart()
        if exchange is None:
            return None
        exchange.check()
        host = exchange.link.host
        assert isinstance(host, ShardHost)
        return exchange, Job(host.of_all_shards().world()), host.mesh

    def save_checkpoint(
        self, folder: str | os.PathLike[str], model: torch.nn.Module, **extra: Any
    ) -> NoReturn:
        """Refuses: torch.distributed.checkpoint saves sharded models; see `state_dict`."""
        raise _unsupported("save_checkpoint()")

    def load_checkpoint(
        self, folder: str | os.PathLike[str], model: torch.nn.Module, *, residuals: str = "own"
    ) -> NoReturn:
        """Refuses: torch.distributed.checkpoint loads sharded models; see `load_state_dict`."""
        raise _unsupported("load_checkpoint()")

    def _everyone(self, call: str) -> GroupHost:
        return GroupHost(call=call)


class _Spread(Stateful):
    """Loads the residuals of any number of replicas; see `Exchange.spread_from`."""

    def __init__(
        self,
        attachment: Attachment,
        exchange: GradientExchange,
        job: Job,
        mesh: Mesh,
        folder: str | os.PathLike[str],
    ) -> None:
        self._attachment, self._exchange, self._job = attachment, exchange, job
        self._mesh, self._folder = mesh, folder

    def state_dict(self) -> dict[str, Any]:
        """Returns the tensors and the text that DCP loads. Collective."""
        with self._job.fail_together(CheckpointMismatchError):
            return sharded_state.to_be_spread(self._exchange, self._mesh, self._folder)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads this rank's share. Collective."""
        self._attachment.load_apart(sharded_state.spread(self._exchange, self._job, state_dict))


def _unsupported(call: str) -> UnsupportedError:
    return UnsupportedError(
        f"{call} cannot be used with a sharded model: pass the exchange to "
        "torch.distributed.checkpoint beside model and optimizer, "
        '{"model": ..., "optimizer": ..., "residuals": exchange}'
    )
