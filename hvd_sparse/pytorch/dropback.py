"""DropBack: trains few weights, while all others stay what a seed makes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hvd_sparse import _core
from hvd_sparse.compression.checks import checked_count, checked_density
from hvd_sparse.compression.parts import MAX_BUCKET_NUMEL
from hvd_sparse.errors import CheckpointMismatchError, UnsupportedError
from hvd_sparse.pytorch.attachment import require_attachment
from hvd_sparse.pytorch.checkpoint import refuse_if_busy
from hvd_sparse.pytorch.hooks import opaque
from hvd_sparse.pytorch.initial_values import Distribution
from hvd_sparse.pytorch.parameters import weakly
from hvd_sparse.ranks.agreement import agree, agree_on_call
from hvd_sparse.ranks.world import in_elastic_job


class DropBack:
    """Trains a share of a model's weights, and exchanges their gradients alone. Collective.

        dropback = DropBack(optimizer, tracked=0.1, freeze_after=1000)

    After each optimizer.step(), those weights keep their value whose distance to their initial one
    is among the largest of the whole model, and all others get their initial one again. That is
    made anew from the seed and the weight's index, and never stored. After `freeze_after` steps the
    tracked weights stay the same ones, and `Exchange.set_masks` exchanges no other gradients.

    Construction gives all weights new initial values, the same on all ranks: of each parameter's
    mean and standard deviation, normal or uniform as its values are; a parameter whose values are
    all the same keeps them. The optimizer keeps this object alive, and is not kept alive by it.

    Args:
        optimizer: A torch.optim.SGD from hvd.DistributedOptimizer, or given to attach(), with a
            compression that can have masks; see `Exchange.set_masks`.
        tracked: Share in (0, 1] of the optimizer's weights that are trained.
        freeze_after: Number of steps after which the tracked weights stay the same, at least 1.
        seed: Seed of the initial values, in [0, 2^62].

    Raises:
        InvalidArgumentError: An argument lies outside its limits, or the ranks' differ, on every
            rank. Nothing has changed.
        UnsupportedError: The optimizer is of another class, the exchange cannot have masks, or the
            job is elastic.

    Reference:
        Golub, Lemieux, Lis, Full Deep Neural Network Training on a Pruned Weight Budget, MLSys
        2019, https://arxiv.org/abs/1806.06949.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        tracked: float,
        freeze_after: int,
        seed: int = 0,
    ) -> None:
        exchange, problem = require_attachment(optimizer).exchange, None
        refuse_if_busy(optimizer, "DropBack()")
        self._owner = weakly(optimizer)
        self._steps = 0
        self._masks: list[torch.Tensor] = []  # by parameter, once the tracked weights stay the same
        try:
            self._tracked = checked_density("tracked", tracked)
            self._freeze_after = checked_count("freeze_after", freeze_after, low=1, high=2**62)
            self._seed = checked_count("seed", seed, low=0, high=2**62)
            self._check(optimizer)
        except Exception as error:
            problem = error
        if exchange is not None:
            given = {"tracked": tracked, "freeze_after": freeze_after, "seed": seed}
            agree(
                exchange.world,
                exchange.link.host.ranks,
                problem=problem,
                parameters=(),
                options={name: str(value) for name, value in given.items()},
                serial=0,
            )
        elif problem is not None:
            raise problem
        self._exchange.set_masks(None)  # which refuses exchanges that cannot have masks
        self._initial = [Distribution.of(param) for param in self._params()]
        if exchange is not None:  # sums over a parameter may differ in their last bit
            rows: Any = exchange.world.broadcast_object(self._initial, list[Distribution] | None)
            self._initial = rows
        with torch.no_grad():
            for param, initial in zip(self._params(), self._initial_values(), strict=True):
                param.copy_(initial)
        optimizer.register_step_post_hook(opaque(self._after_step))

    def state_dict(self) -> dict[str, Any]:
        """Returns the steps so far, the seed, the initial distributions, and the tracked weights.

        They are of types that `Exchange.save_checkpoint` takes among its `extra`.
        """
        return {
            "steps": self._steps,
            "seed": self._seed,
            "initial": [list(one) for one in self._initial],
            "masks": [mask.cpu() for mask in self._masks],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads what `state_dict` has returned, after `Exchange.load_checkpoint`. Collective.

        Raises:
            InvalidArgumentError: The ranks load different states, on every rank.
            CheckpointMismatchError: It is of another model. Nothing has changed.
            GradientInFlightError: Gradients have arrived but are not exchanged yet.
        """
        refuse_if_busy(self._owner(), "DropBack.load_state_dict()")
        params, exchange = self._params(), require_attachment(self._owner()).exchange
        shapes = [mask.shape for mask in state["masks"]]
        if len(state["initial"]) != len(params) or shapes not in ([], [p.shape for p in params]):
            raise CheckpointMismatchError("the state of DropBack was saved for another model")
        if exchange is not None:
            call = {name: state[name] for name in ("steps", "seed")}
            agree_on_call(exchange.world, exchange.link.host.ranks, "load_state_dict", **call)
        self._steps, self._seed = state["steps"], state["seed"]
        self._initial = [Distribution(*one) for one in state["initial"]]
        masks = zip(state["masks"], params, strict=False)
        self._masks = [mask.to(param.device) for mask, param in masks]
        self._set_masks()

    @property
    def _exchange(self) -> Any:
        """The user's handle on the exchange, which each interface keeps at the optimizer."""
        return self._owner().exchange  # type: ignore[attr-defined]

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.SGD):
            raise UnsupportedError(
                f"DropBack needs torch.optim.SGD, got {type(optimizer).__name__}: how far a weight "
                "has moved says nothing of its gradients where these are divided by their size"
            )
        if in_elastic_job():
            raise UnsupportedError(
                "DropBack cannot tell a rank that joins an elastic job its state"
            )
        numel = sum(param.numel() for param in self._params())
        if numel > MAX_BUCKET_NUMEL:
            raise UnsupportedError(
                f"DropBack takes {MAX_BUCKET_NUMEL} weights at most, got {numel}"
            )

    def _params(self) -> list[torch.Tensor]:
        groups = self._owner().param_groups
        params = [param for group in groups for param in group["params"]]
        return [one for one in params if one.requires_grad and one.numel() > 0]

    def _initial_values(self) -> list[torch.Tensor]:
        return [
            initial.values(param, seed=self._seed, number=number)
            for number, (param, initial) in enumerate(
                zip(self._params(), self._initial, strict=True)
            )
        ]

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        if require_attachment(self._owner()).is_paused:
            return
        self._steps += 1
        if self._rests():
            return
        params, initial = self._params(), self._initial_values()
        masks = self._masks or self._largest(params, initial)
        for param, mask, value in zip(params, masks, initial, strict=True):
            param.copy_(torch.where(mask, param, value))
        if not self._masks and self._steps >= self._freeze_after:
            self._masks = masks
            self._forget_momentum()
            self._set_masks()

    def _rests(self) -> bool:
        """Returns true if steps leave weights that are not tracked alone, by themselves."""
        decays = any(group["weight_decay"] for group in self._owner().param_groups)
        has_peers = require_attachment(self._owner()).exchange is not None
        return bool(self._masks) and has_peers and not decays

    def _forget_momentum(self) -> None:
        """Drops the momentum of weights that are not tracked, whose gradients are zero from now."""
        for param, mask in zip(self._params(), self._masks, strict=True):
            momentum = self._owner().state.get(param, {}).get("momentum_buffer")
            if momentum is not None:
                momentum.mul_(mask)

    def _largest(
        self, params: Sequence[torch.Tensor], initial: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns masks of the weights that are farthest from their initial values.

        Of equal distances, that of the lower index counts as larger; NaN is the largest.
        """
        far = torch.cat(
            [
                (param.float() - value.float()).abs().flatten().cpu()
                for param, value in zip(params, initial, strict=True)
            ]
        )
        block = _core.Block(np.arange(far.numel(), dtype=np.int32), far.numpy())
        _core.keep_top_k(block, math.ceil(self._tracked * far.numel()))
        chosen = torch.zeros(far.numel(), dtype=torch.bool)
        chosen[torch.from_numpy(block.indices()).long()] = True
        parts = torch.split(chosen, [param.numel() for param in params])
        return [
            part.view(param.shape).to(param.device)
            for part, param in zip(parts, params, strict=True)
        ]

    def _set_masks(self) -> None:
        exchange = require_attachment(self._owner()).exchange
        names = {} if exchange is None else {id(param): name for name, param in exchange.named}
        masks = zip(self._params(), self._masks, strict=True) if self._masks and names else ()
        self._exchange.set_masks({names[id(param)]: mask for param, mask in masks})
