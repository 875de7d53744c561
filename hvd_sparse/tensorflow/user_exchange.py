"""The handle of TensorFlow's users."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from hvd_sparse.errors import HvdSparseError, InvalidArgumentError
from hvd_sparse.state.inheritance import checked_policy
from hvd_sparse.stats.metrics import summary_of
from hvd_sparse.stats.step_stats import Stats
from hvd_sparse.tensorflow import checkpoint, compat, registry
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.local_steps import ATTRIBUTE, LocalSteps
from hvd_sparse.tuning.stages import Tuning


class Exchange:
    """The exchange of the gradients of an optimizer, or of variables that a tape is asked for.

        exchange = optimizer.exchange  # from hvd.DistributedOptimizer, or model.optimizer
        exchange = Exchange(model.trainable_variables)  # where tapes are made anew in each step
        exchange = tape.exchange  # from hvd.DistributedGradientTape, after its gradient()

    It can be made before the first step, builds nothing, and stays valid when ranks come and go. It
    does not keep an optimizer alive, but it does variables.

    Args:
        target: The optimizer; or the variables, in the order in which they are given to a tape from
            `hvd.DistributedGradientTape`, without local ones.
    """

    def __init__(self, target: Any) -> None:
        self._is_of_variables = isinstance(target, (list, tuple))
        if not self._is_of_variables and not hasattr(target, "apply_gradients"):
            raise InvalidArgumentError(
                f"target must be an optimizer or a list of variables, got {type(target).__name__}"
            )
        self._target: Callable[[], Any] = (
            (lambda: target) if self._is_of_variables else weakref.ref(target)
        )

    @property
    def stats(self) -> Stats:
        """The cost of exchanging the gradients, as measured on this rank.

        The last step, bucket by bucket, and the sums over all steps: density asked and reached,
        bytes sent and received by this rank, and seconds of selection and of exchange.
        `wait_seconds` is nan: the graph waits, and other operations run meanwhile.
        """
        exchange = self._found
        return Stats() if exchange is None else exchange.stats

    @property
    def tuning(self) -> Tuning | None:
        """The measurements and the plan of an adaptive compression; the same on all ranks.

        The network, the machine, the profile of the model, the plan, and the measured times of
        dense and sparse steps, as far as they are known; `exchange.tuning.profile.save(path)`
        writes what `hvd-sparse plan` reads. None before the first step, if the compression is not
        adaptive, and if this rank has no peers.
        """
        exchange = self._found
        return None if exchange is None or exchange.tuner is None else exchange.tuner.tuning

    @property
    def local_steps(self) -> int:
        """The number of local steps from one meeting to the next.

        With AdaComm it changes; lower the learning rate once it is 1, as its authors do.

        Raises:
            InvalidArgumentError: The compression has no local_steps.
        """
        return self._local_steps_for("local_steps").length

    @property
    def elastic_residuals(self) -> str:
        """The policy for residuals when ranks come or go in an elastic job; the same on all ranks.

        "spread", the default: the sum of all residuals is shared out among the new ranks, entry by
        entry to one after the other. "reset": residuals are dropped. Set it before training. It
        holds for all exchanges of the process: they are rebuilt together.

        Raises:
            InvalidArgumentError: It is set to neither.
        """
        return registry.policy()

    @elastic_residuals.setter
    def elastic_residuals(self, policy: str) -> None:
        registry.set_policy(checked_policy(policy))

    @property
    def residual_variables(self) -> list[tf.Variable]:
        """This rank's state, which is the residual and more, as `prepare` returns it.

        The state differs between ranks: each rank saves its own, in a file of its own.

        Raises:
            InvalidArgumentError: There is no exchange yet: no step was taken, nor `prepare` called.
        """
        exchange = self._found
        if exchange is None:
            raise InvalidArgumentError(
                "residual_variables needs an exchange, and there is none yet: take a step, or call "
                "prepare()"
            )
        return exchange.variables

    def summary(self) -> str:
        """Returns a line about all steps so far, for the end of a run."""
        exchange = self._found
        if exchange is None:
            return "nothing was exchanged, or one rank has nobody to exchange gradients with"
        return summary_of(
            exchange.stats, dense_bytes=exchange.gradient_bytes, size=exchange.world.size
        )

    def replan(self) -> None:
        """Measures the network now, and all else in the next steps, for a new plan. Collective.

        Call it between two steps.

        Raises:
            InvalidArgumentError: Nothing was exchanged yet, the compression is not adaptive, or a
                step is in flight.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        exchange = self._found
        if exchange is None or exchange.tuner is None:
            raise InvalidArgumentError(
                "replan() needs an exchange with an adaptive compression, such as LAGS, that has "
                "taken a step"
            )
        exchange.refuse_if_ended()
        exchange.replan()

    def mark_step(self, mark: str) -> None:
        """Marks the current step of this rank, and all later ones until the next call.

        With HVD_SPARSE_CHECK=1 all ranks must give the same mark to the same step, so that a rank
        that left out a step, or a batch, is found in the first exchange after it. Otherwise, and
        before the first step, when there is no exchange yet, a mark has no effect.

        Args:
            mark: Any text that is equal on all ranks: "epoch 3, batch 17".
        """
        exchange = self._found
        if exchange is not None:
            exchange.mark(mark)

    def meet(self, model: Any = None) -> None:
        """Averages the ranks' weights now, amid an interval of local steps. Collective.

        Call it at the end of training, and before checkpoints. Right after a meeting it does
        nothing.

        Args:
            model: A model whose non-trainable variables of floating-point numbers Horovod averages,
                too: running statistics of batch normalisation. Those that are equal on all ranks
                stay as they are, bit for bit. None leaves each rank its own.

        Raises:
            InvalidArgumentError: The compression has no local_steps.
            RanksDisagreeError: The ranks have not taken as many local steps from equal weights.
            ExchangeFailedError: Another rank ended the exchange.
            tf.errors.InvalidArgumentError: A rank's weights are not finite; all ranks have the last
                common weights again.
            tf.errors.AbortedError: Another rank died, or ended the exchange, in this meeting.
        """
        local = self._local_steps_for("meet()")
        local.meet()
        if model is not None:
            others = model.non_trainable_variables
            local.average([one for one in others if compat.dtype_of(one).is_floating], "statistics")

    def common_weights(self) -> AbstractContextManager[None]:
        """Lends the model the last common weights, the same on all ranks, within the context.

        Without it, between two meetings, the model has this rank's own weights. Do not step within.

        Raises:
            InvalidArgumentError: The compression has no local_steps.
        """
        return self._local_steps_for("common_weights()").common_weights()

    def report_loss(self, loss: Any) -> None:
        """Reports the loss of a local step, for AdaComm; also within a tf.function.

        Args:
            loss: A number, or a tensor with one element, which is read at the next meeting. AdaComm
                leaves out what is not finite.

        Raises:
            InvalidArgumentError: The compression has no local_steps.
        """
        self._local_steps_for("report_loss()").note_loss(loss)

    def save_checkpoint(
        self, folder: str | os.PathLike[str], model: Any, *, optimizer: Any = None, **extra: Any
    ) -> None:
        """Writes a checkpoint of the whole job. Collective, between two steps.

        One rank saves the state of model and optimizer, and every rank its own residuals.

        Args:
            folder: The folder to write, replaced if it exists. A job that dies meanwhile leaves the
                former one, as FOLDER or FOLDER.old.
            model: A Keras model, a tf.Module or a list of variables. With a tape, its residuals are
                found by the model's trainable variables, or by the list, in that order.
            optimizer: With an exchange of variables, the optimizer that applies the gradients,
                whose state is saved as well; None if there is none.
            **extra: Further values to keep, such as the epoch, of types that JSON supports. One
                rank's values are saved.

        Raises:
            InvalidArgumentError: On every rank, if one gives no folder or model, or another type in
                `extra`; gradients of backward_passes_per_step have been added up but not exchanged
                yet, or local steps taken since the ranks met; or the optimizer has local layers,
                whose weights differ between ranks.
            ExchangeFailedError: The exchange has ended; the ranks may not have taken the same
                steps.
            OSError: On every rank, if one cannot write, or another job is saving to the same
                folder. The former checkpoint is unchanged.
        """
        checkpoint.save(folder, model, self._of(), optimizer, extra)

    def load_checkpoint(
        self,
        folder: str | os.PathLike[str],
        model: Any,
        *,
        residuals: str = "own",
        optimizer: Any = None,
    ) -> dict[str, Any] | None:
        """Loads what `save_checkpoint` wrote. Collective, between two steps.

        In a new job call `prepare` first, so that there is an exchange to load the residuals.

        Args:
            folder: The folder that was passed to `save_checkpoint`.
            model: A model like the one that was saved.
            optimizer: An optimizer like the one that was passed to `save_checkpoint`.
            residuals: The policy for saved residuals. "own": every rank continues with its own, as
                if nothing had happened; the number of ranks must be that of the checkpoint.
                "spread": the sum of all residuals is shared out, entry by entry to one rank after
                the other, for any number of ranks; nothing is lost but for the rounding of that
                sum, and thresholds and plan are found anew. "reset": residuals are dropped.

        Returns:
            The `extra` that was passed to `save_checkpoint`; None if there
            is no checkpoint on any rank.

        Raises:
            InvalidArgumentError: On every rank, if `residuals` is none of the three on one, or
                differs between ranks, or one gives no folder or model.
            CheckpointMismatchError: On every rank, if the folder exists but holds no complete
                checkpoint, the checkpoint does not fit, the ranks have none in common, or there is
                no exchange yet. Nothing has changed, except that LAGS may
                measure its times anew.
        """
        return checkpoint.load(folder, model, self._of(), optimizer, residuals=residuals)

    def _of(self) -> Any:
        """Returns the optimizer or the variables."""
        target = self._target()
        if target is None:
            raise HvdSparseError(
                "the optimizer of this exchange no longer exists: keep a reference to it for as "
                "long as you train"
            )
        return target

    @property
    def _found(self) -> GradientExchange | None:
        return registry.find_exchange(self._of())

    def _local_steps_for(self, caller: str) -> LocalSteps:
        local = (
            None
            if self._is_of_variables
            else getattr(compat.stepping_of(self._of()), ATTRIBUTE, None)
        )
        if not isinstance(local, LocalSteps):
            raise InvalidArgumentError(f"{caller} needs a compression with local_steps")
        return local
