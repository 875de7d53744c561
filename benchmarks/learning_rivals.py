"""What else there is for slow networks: accumulated gradients, PyTorch's post-local SGD, torchft.

torchft is not among the packages of this project: `pip install torchft==0.2.0`.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
from gloo_world import address_of
from learning_methods import DDP, Alone, Setup
from learning_tasks import Batch
from torch import nn


class Accumulated(DDP):
    """DDP that sums the gradients of some batches before it exchanges them, and then steps.

    Args:
        setup: The starting point; its steps are batches.
        every: Batches of a step.
        hook: As in `ddp_methods.wrapped`.
    """

    def __init__(self, setup: Setup, *, every: int, hook: str = "") -> None:
        super().__init__(setup, hook=hook)
        self._every = every

    def backward(self, batch: Batch) -> torch.Tensor:
        if self.taken % self._every == 0:
            self.optimizer.zero_grad()
        inputs, targets = batch
        with nullcontext() if self._ends() else self._wrapped.no_sync():
            loss = self.setup.task.loss(self.forward(inputs), targets)
            (loss / self._every).backward()
        return loss

    def update(self) -> None:
        if self._ends():
            super().update()

    def _ends(self) -> bool:
        return self.taken % self._every == self._every - 1


class PostLocal(DDP):
    """PyTorch's post-local SGD: first DDP, and then ranks that average their weights now and then.

    Args:
        setup: The starting point.
        every: Steps between two averages.
        after: Steps of DDP before that.
    """

    def __init__(self, setup: Setup, *, every: int, after: int = 100) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer

        super().__init__(setup)
        alone, _ = self._dist.new_subgroups(1)
        state = post_localSGD_hook.PostLocalSGDState(
            None, alone, start_localSGD_iter=after, post_local_gradient_allreduce=False
        )
        self._wrapped.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        self.optimizer = PostLocalSGDOptimizer(
            self.optimizer, PeriodicModelAverager(period=every, warmup_steps=after)
        )

    is_local = True


class TorchFT(Alone):
    """torchft's DiLoCo, whole or streaming: ranks meet after some steps, with an outer optimizer.

    Each rank is a replica of its own, and rank 0 has the lighthouse. Sums go over torchft's Gloo,
    and this benchmark's own averages over the group that DDP would have.

    Args:
        setup: The starting point.
        every: Steps from one meeting of a fragment to its next one.
        fragments: Parts of the model that meet in turn.
        delay: Steps of the ranks while a fragment is in flight.
        lr: Outer learning rate.
        momentum: Outer momentum, Nesterov's.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        every: int,
        fragments: int = 1,
        delay: int = 0,
        lr: float = 0.7,
        momentum: float = 0.9,
    ) -> None:
        from torchft import Manager, ProcessGroupGloo
        from torchft.coordination import LighthouseServer
        from torchft.local_sgd import DiLoCo

        super().__init__(setup)
        patience = timedelta(seconds=300)
        rank, size = self._dist.get_rank(), self._dist.get_world_size()
        address = address_of(os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
        lighthouse: list[Any] = [None]
        if rank == 0:
            self._lighthouse = LighthouseServer(bind="[::]:0", min_replicas=size)
            port = self._lighthouse.address().rsplit(":", 1)[1]
            lighthouse = [f"http://{address}:{port}"]
        self._dist.broadcast_object_list(lighthouse)
        self._store = self._dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        self._manager = Manager(
            pg=ProcessGroupGloo(timeout=patience),
            load_state_dict=self.model.load_state_dict,
            state_dict=self.model.state_dict,
            min_replica_size=size,
            use_async_quorum=False,
            timeout=patience,
            quorum_timeout=patience,
            rank=0,
            world_size=1,
            store_addr=address,
            store_port=self._store.port,
            lighthouse_addr=lighthouse[0],
            replica_id=f"rank{rank}",
            hostname=address,
            init_sync=False,
        )
        parts = _parts(self.model, fragments)
        outer = [
            torch.optim.SGD(part.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)
            for part in parts
        ]
        self._diloco = DiLoCo(
            self._manager,
            parts,
            self.optimizer,
            outer,
            sync_every=every,
            fragment_sync_delay=delay,
        )
        self._diloco.__enter__()

    def report(self) -> dict[str, Any]:
        return {"meetings": self._manager.current_step()}


def _parts(model: nn.Module, count: int) -> list[nn.Module]:
    """Cuts a model into parts of about the same number of parameters, in its modules' order."""
    modules = [
        one for one in model.modules() if next(one.parameters(recurse=False), None) is not None
    ]
    total = sum(weight.numel() for weight in model.parameters())
    parts: list[nn.ModuleList] = [nn.ModuleList() for _ in range(count)]
    before = 0
    for module in modules:
        numel = sum(weight.numel() for weight in module.parameters(recurse=False))
        parts[min(count - 1, int(count * (before + numel / 2) / total))].append(module)
        before += numel
    return list(parts)
