"""The exchange of the shards of a model's gradients between its replicas.

During backward, FSDP2 reduces the gradients of one group after another over the shards, and calls
the hooks of each sharded parameter: so its gradient, at the parameter, starts on its way to the
other replicas. At the end of backward, after FSDP2's own, all are waited for, and the step is
committed: on all ranks of the mesh, or on none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_sparse.errors import GradientInFlightError
from hvd_sparse.fsdp.groups import Group
from hvd_sparse.pytorch.backward_steps import BackwardSteps
from hvd_sparse.pytorch.gradient_exchange import Phase
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.plain_steps import is_kept
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.slots import Slot

_NO_PASS = -1  # PyTorch's numbers of backward passes begin at 0


class ShardedSteps(BackwardSteps):
    """Steps with the shards of a model's gradients, which are averages after loss.backward()."""

    incomplete = ""
    last_pass = "with set_requires_gradient_sync(True) and set_requires_all_reduce(True)"

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings, link: Link) -> None:
        super().__init__(optimizer, settings, link)
        self._group_of: dict[Slot, Group] = {}
        self._last_of: dict[Group, Slot] = {}
        self._came: list[Slot] = []  # of one group, from FSDP2, and not taken yet
        self._pass = _NO_PASS

    def follow(self, groups: Sequence[Group]) -> None:
        """Notes the groups in which gradients arrive."""
        slot_of = {id(slot.param): slot for slot in self.slots}
        for group in groups:
            for slot in (slot_of[id(one)] for one in group.params if id(one) in slot_of):
                self._group_of[slot] = group
                self._last_of[group] = slot

    def watch(self) -> None:
        """Does nothing: gradients that are thrown away are found when others arrive."""

    def arrived(self, slot: Slot) -> None:
        """Accepts a gradient that FSDP2 has reduced over the shards, unless it accumulates."""
        group = self._group_of[slot]
        if self.phase is Phase.EXCHANGED:
            with self.ending():
                self._forget_average(but=slot)
        if not group.exchanges_now:
            return
        this_pass = torch._C._current_graph_task_id()
        if self._pass != this_pass:
            self._pass = this_pass
            self._came = []  # of a backward pass that failed
            # Behind FSDP2's own end of backward, in which more gradients may arrive: it queues that
            # in the course of the pass.
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._at_the_end))
        if self._came and self._group_of[self._came[0]] is not group:
            self._take_group()
        self._came.append(slot)
        if slot is self._last_of[group]:
            self._take_group()

    def _forget_average(self, *, but: Slot) -> None:
        """Undoes an exchanged step whose averages were thrown away, since a gradient arrives.

        Args:
            but: The slot of the gradient, which FSDP2 has added to what was there.

        Raises:
            GradientInFlightError: They were not thrown away.
        """
        others = [slot for slot in self.slots if slot.optimized and slot is not but]
        kept = next(filter(is_kept, others), None)
        if kept is None and not others and but.change() != "was replaced":
            kept = but
        if kept is not None:
            raise GradientInFlightError(
                f"a gradient was added to the average of '{kept.name}': run all but the last "
                "loss.backward() of a step after model.set_requires_all_reduce(False), with one "
                "loss.backward() for all parameters of an optimizer, and call "
                "optimizer.zero_grad() if a step is skipped"
            )
        with torch.no_grad():
            self.drop()

    def _take_group(self) -> None:
        """Takes the gradients of a group, in the order in which backward would have had them."""
        slots, self._came = self._came, []
        for slot in reversed(slots):
            super().arrived(slot)
        with torch.no_grad(), self.ending():
            self.steps.flush(_shared_by(slots))

    def _at_the_end(self) -> None:
        self._pass = _NO_PASS
        if self._came:
            self._take_group()
        if self.phase is Phase.GATHERING:  # else an error has ended the exchange
            self.complete()
            self.note_average()


def _shared_by(slots: Sequence[Slot]) -> torch.Tensor | None:
    """Returns the memory in which FSDP2 has put gradients side by side, from the first one on."""
    first = slots[0].grad
    if first is None:
        return None
    numel = sum(slot.numel for slot in slots)
    room = first.untyped_storage().nbytes() // first.element_size() - first.storage_offset()
    return first.as_strided((numel,), (1,)) if numel <= room else None
