"""The handle of PyTorch's users, whoever runs the ranks."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hvd_sparse.compression.checks import checked_count
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.exchange.interval import checked_loss
from hvd_sparse.pytorch import checkpoint
from hvd_sparse.pytorch import masks as masks_of_exchange
from hvd_sparse.pytorch.attachment import Attachment, require_attachment
from hvd_sparse.pytorch.forward import ForwardSteps
from hvd_sparse.pytorch.hooks import opaque
from hvd_sparse.pytorch.host import TorchHost
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.norms import norms_of
from hvd_sparse.pytorch.parameters import check_kind, weakly
from hvd_sparse.pytorch.shards import shard_of
from hvd_sparse.state.inheritance import checked_policy
from hvd_sparse.stats.metrics import ScalarWriter, Sink, metrics_of, sink_of, summary_of
from hvd_sparse.stats.step_stats import Stats
from hvd_sparse.tuning.stages import Tuning


class TorchExchange(ABC):
    """The exchange of an optimizer's gradients, as its user sees it.

    Each call finds the exchange anew, through the optimizer, which it does not keep alive. So it
    stays valid when ranks come and go, and when the optimizer is attached again.

    Args:
        optimizer: The optimizer. Without a sparse compression it can be saved and loaded, alone.

    Raises:
        InvalidArgumentError: `optimizer` is no optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        check_kind("optimizer", optimizer, torch.optim.Optimizer)
        self._owner = weakly(optimizer)

    @abstractmethod
    def _everyone(self, call: str) -> TorchHost:
        """Returns the host of all ranks of the job, for a call of the user's."""

    def _module_of(self, model: torch.nn.Module) -> torch.nn.Module:
        """Returns the module of a model whose state is saved."""
        return model

    @property
    def stats(self) -> Stats:
        """The cost of exchanging the gradients, as measured on this rank.

        The last step, bucket by bucket, and the sums over all steps: density asked and reached,
        bytes sent and received by this rank, seconds of selection and of exchange, and seconds that
        synchronize() really waited.

        Raises:
            InvalidArgumentError: The optimizer has no sparse compression.
        """
        return self._attachment.renewal.stats

    @property
    def tuning(self) -> Tuning | None:
        """The measurements and the plan of an adaptive compression; the same on all ranks.

        The network, the machine, the profile of the model, the plan, and the measured times of
        dense and sparse steps, as far as they are known; `exchange.tuning.profile.save(path)`
        writes what `hvd-sparse plan` reads. None if the compression is not adaptive, or if this
        rank has no peers.

        Raises:
            InvalidArgumentError: The optimizer has no sparse compression.
        """
        exchange = self._attachment.exchange
        return None if exchange is None or exchange.tuner is None else exchange.tuner.tuning

    @property
    def local_steps(self) -> int:
        """The number of local steps from one meeting to the next; 1 without peers.

        With AdaComm it changes; lower the learning rate once it is 1, as its authors do.

        Raises:
            InvalidArgumentError: The compression has no local_steps.
        """
        steps = self._local_steps_for("local_steps")
        return 1 if steps is None else steps.interval.length

    @property
    def elastic_residuals(self) -> str:
        """The policy for residuals when ranks come or go in an elastic job; the same on all ranks.

        "spread", the default: the sum of all residuals is shared out among the new ranks, entry by
        entry to one after the other. "reset": residuals are dropped. Set it before training.

        Raises:
            InvalidArgumentError: It is set to neither, or the optimizer has no sparse compression.
        """
        return self._attachment.renewal.policy

    @elastic_residuals.setter
    def elastic_residuals(self, policy: str) -> None:
        self._attachment.renewal.policy = checked_policy(policy)

    def summary(self) -> str:
        """Returns a line about all steps so far, for the end of a run.

        Raises:
            InvalidArgumentError: The optimizer has no sparse compression.
        """
        exchange = self._attachment.exchange
        if exchange is None:
            return "one rank has nobody to exchange gradients with"
        groups = self._owner().param_groups
        params = [shard_of(param) for group in groups for param in group["params"]]
        dense_bytes = sum(param.numel() * param.element_size() for param in params)
        return summary_of(exchange.stats, dense_bytes=dense_bytes, size=exchange.world.size)

    def watch(self, target: ScalarWriter | Sink, *, every: int = 1, norms: bool = False) -> None:
        """Reports the cost of every step, on the rank that calls this.

        On rank 0 alone::

            if rank == 0:
                exchange.watch(SummaryWriter("runs/lags"), every=10)

        Args:
            target: A `torch.utils.tensorboard.SummaryWriter`, or anything with its `add_scalar`; or
                a function of the metrics by name, and the number of the step.
            every: Number of steps from one report to the next.
            norms: True to add `residual_norm` and `residual_over_gradient`: the Euclidean norm of
                what this rank has not sent, and its ratio to the norm of the averaged gradients.
                They cost a pass over both.

        Reports include the quality of selection in the steps in which the compression's
        `quality_every` measures it, which takes all ranks.

        Raises:
            InvalidArgumentError: The optimizer has no sparse compression, `every` is not a positive
                integer, or `target` is neither.
            UnsupportedError: `norms` with wait_in_forward.
        """
        exchange = self._attachment.exchange
        every = checked_count("every", every, low=1, high=2**62)
        if not callable(target) and not hasattr(target, "add_scalar"):
            raise InvalidArgumentError(
                f"target must be a SummaryWriter or a function, got {type(target).__name__}"
            )
        if norms and isinstance(exchange, ForwardSteps):
            raise UnsupportedError(
                "norms=True cannot be used with wait_in_forward: after step(), residuals and "
                "gradients are in flight"
            )
        sink = sink_of(target)

        def tell(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            exchange = require_attachment(optimizer).exchange  # another one if ranks have changed
            last = None if exchange is None else exchange.stats.last
            if exchange is None or last is None or last.step % every:
                return
            metrics = metrics_of(last, None if exchange.tuner is None else exchange.tuner.tuning)
            if norms:
                metrics |= norms_of(exchange, optimizer)
            sink(metrics, last.step)

        self._owner().register_step_post_hook(opaque(tell))

    def replan(self) -> None:
        """Measures the network now, and all else in the next steps, for a new plan. Collective.

        Call it between two steps.

        Raises:
            InvalidArgumentError: The compression is not adaptive.
            GradientInFlightError: Gradients have arrived but are not exchanged yet.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        attachment = self._attachment
        exchange = attachment.exchange
        if exchange is None or exchange.world.size == 1:
            return
        if exchange.tuner is None:
            raise InvalidArgumentError("replan() needs an adaptive compression, such as LAGS")
        exchange.check()
        attachment.refuse_if_busy("replan()")
        exchange.replan()

    def set_masks(self, masks: Mapping[str, torch.Tensor] | None) -> None:
        """Exchanges only the masked entries of gradients from now on. Collective.

        All other entries of the averages are 0. No positions are sent, so an exchange costs what
        that of so many entries costs. Call it between two steps. Residuals and velocities of
        entries that are no longer masked are dropped. Checkpoints keep the masks. A single rank
        exchanges nothing, and keeps its gradients whole.

        Args:
            masks: Tensors of bool by the name of their parameter, of its shape, on its device, the
                same on all ranks; True marks an entry that is exchanged. They replace all earlier
                ones. A parameter without one is exchanged whole; None or {}: all of them.

        Raises:
            InvalidArgumentError: On every rank, if a mask of one fits no parameter, or the ranks'
                masks differ. Nothing was sent or changed.
            UnsupportedError: The compression is adaptive, or has local steps; with wait_in_forward;
                with a sharded model.
            GradientInFlightError: Gradients have arrived but are not exchanged, or not applied yet.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        checkpoint.refuse_if_busy(self._owner(), "set_masks()")
        self._attachment.renewal.renew()
        masks_of_exchange.replace(self._attachment.exchange, masks)

    def mark_step(self, mark: str) -> None:
        """Marks the current step of this rank, and all later ones until the next call.

        With HVD_SPARSE_CHECK=1 all ranks must give the same mark to the same step, so that a rank
        that left out a step, or a batch, is found in the first exchange after it. Otherwise a mark
        has no effect.

        Args:
            mark: Any text that is equal on all ranks: "epoch 3, batch 17".

        Raises:
            InvalidArgumentError: The optimizer has no sparse compression.
        """
        exchange = self._attachment.exchange
        if exchange is not None:
            exchange.mark = mark

    def reset_residual(self, state_dict: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Empties this rank's residuals; gradients that were not sent yet are lost.

        Args:
            state_dict: A state dict of any model, saved by any rank of any number of ranks.

        Returns:
            A copy of `state_dict` that loads here, without residuals; None if none was passed. If
            it was saved for this model and number of ranks, it keeps the step and the plan, which
            are the same on all ranks.

        Raises:
            InvalidArgumentError: The optimizer has no sparse compression.
            GradientInFlightError: Gradients have arrived but are not exchanged yet.
        """
        return self._attachment.reset_residual(state_dict)

    def meet(self, model: torch.nn.Module | None = None) -> None:
        """Averages the ranks' weights now, amid an interval of local steps. Collective.

        Call it at the end of training, and before checkpoints that another number of ranks may
        load. Right after a meeting it does nothing; where meetings stream, it ends the one in
        flight, and all fragments meet.

        Args:
            model: A module whose dense floating-point buffers are averaged, too, by the library
                that runs the ranks: running statistics of batch normalisation. Those that are equal
                on all ranks stay as they are, bit for bit. None leaves each rank its own.

        Raises:
            InvalidArgumentError: The compression has no local_steps, or `model` is no module.
            UnsupportedError: It is called within DDP's join(), at whose end the ranks meet.
            RanksDisagreeError: The ranks have not taken as many local steps, or their models have
                buffers of different sizes.
            NonFiniteGradientError: A rank's weights are not finite; all ranks have the last common
                weights again.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        steps = self._local_steps_for("meet()")
        if model is not None:
            check_kind("model", model, torch.nn.Module)
        if steps is None:
            return
        steps.check()
        steps.meet_now()
        if model is not None:
            buffers = [
                one.detach()
                for one in model.buffers()
                if one.is_floating_point() and one.layout == torch.strided
            ]
            steps.average(buffers, "buffers")

    def common_weights(self) -> AbstractContextManager[None]:
        """Lends the model the last common weights, the same on all ranks, within the context.

        Without it, between two meetings, the model has this rank's own weights. Do not step within.

        Raises:
            InvalidArgumentError: The compression has no local_steps.
        """
        steps = self._local_steps_for("common_weights()")
        return nullcontext() if steps is None else steps.common_weights()

    def report_loss(self, loss: float | torch.Tensor) -> None:
        """Reports the loss of a local step, for AdaComm, and for the guard of a plan over time.

        Args:
            loss: A number, or a tensor with one element, which is read at the next meeting. AdaComm
                leaves out what is not finite.

        Raises:
            InvalidArgumentError: The compression has no local_steps, or `loss` is not a number.
        """
        steps = self._local_steps_for("report_loss()")
        if not isinstance(loss, torch.Tensor):
            loss = checked_loss(loss)
        elif loss.numel() != 1 or loss.is_complex():
            raise InvalidArgumentError(
                f"loss must be a real tensor with one element, got {loss.dtype} of shape "
                f"{tuple(loss.shape)}"
            )
        if steps is not None:
            steps.interval.note_loss(loss.detach() if isinstance(loss, torch.Tensor) else loss)

    def save_checkpoint(
        self, folder: str | os.PathLike[str], model: torch.nn.Module, **extra: Any
    ) -> None:
        """Writes a checkpoint of the whole job. Collective, between two steps.

        One rank saves the states of model and optimizer, and every rank its own residuals.

        Args:
            folder: The folder to write, replaced if it exists. A job that dies meanwhile leaves the
                former one, as FOLDER or FOLDER.old.
            model: The model, in DistributedDataParallel or not; one rank saves its state_dict().
            **extra: Further objects, saved as one rank has them: the epoch, a schedule's
                state_dict(), ... They must be of types that `torch.load(weights_only=True)`
                accepts, which cannot run code: numbers, bool, str, None, tensors, torch.Size,
                torch.dtype, and dict, OrderedDict, list and tuple of them; others that your version
                of torch accepts, or that both this job and the one that loads have passed to
                `torch.serialization.add_safe_globals`.

        Raises:
            InvalidArgumentError: On every rank, if one gives no folder or model, or another type in
                `extra`.
            GradientInFlightError: Gradients have arrived but are not exchanged yet.
            ExchangeFailedError: The exchange has ended; the ranks may not have taken the same
                steps.
            OSError: On every rank, if one cannot write, or another job is saving to the same
                folder. The former checkpoint is unchanged.
        """
        host = self._everyone("save_checkpoint()")
        checkpoint.save(host, folder, self._module_of(model), self._owner(), extra)

    def load_checkpoint(
        self, folder: str | os.PathLike[str], model: torch.nn.Module, *, residuals: str = "own"
    ) -> dict[str, Any] | None:
        """Loads what `save_checkpoint` wrote. Collective, between two steps.

        Args:
            folder: The folder that was passed to `save_checkpoint`.
            model: A model like the one that was saved.
            residuals: The policy for saved residuals. "own": every rank continues with its own, as
                if nothing had happened; the number of ranks must be that of the checkpoint.
                "spread": the sum of all residuals is shared out, entry by entry to one rank after
                the other, for any number of ranks; nothing is lost but for the rounding of that
                sum, and thresholds and plan are found anew. "reset": residuals are dropped.

        Returns:
            The `extra` that was passed to `save_checkpoint`, its tensors on the CPU; None if there
            is no checkpoint on any rank.

        Raises:
            InvalidArgumentError: On every rank, if `residuals` is none of the three on one, or
                differs between ranks, or one gives no folder or model.
            CheckpointMismatchError: On every rank, if the folder exists but holds no complete
                checkpoint, the checkpoint does not fit, or the ranks have none in common. Nothing
                has changed, except that LAGS may measure its times anew.
        """
        host = self._everyone("load_checkpoint()")
        module = self._module_of(model)
        return checkpoint.load(host, folder, module, self._owner(), residuals=residuals)

    @property
    def _attachment(self) -> Attachment:
        return require_attachment(self._owner())

    def _local_steps_for(self, caller: str) -> LocalSteps | None:
        """Returns the local steps; None without peers."""
        exchange = self._attachment.exchange
        if exchange is not None and not isinstance(exchange, LocalSteps):
            raise InvalidArgumentError(f"{caller} needs a compression with local_steps")
        return exchange
