"""Trains in an elastic job and checks, each time the ranks have changed, what they took over.

    elastic_ranks.py SIZE ... [--policy POLICY] [--compression NAME] [--dies RANK] [--fails]

Ends well when there have been SIZE ranks for some steps, for each SIZE given, in that order. Run by
test_elastic.py, which adds and kills ranks meanwhile. Or a RANK of three kills itself in its fifth
step, for whose gradients the others then wait; or an operation fails on all ranks in that step.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from hvd_sparse.torch import LAGS, GTopK, elastic_residuals

STEPS_EACH = 8
MOST_STEPS = 2000
PAUSE = 0.05  # seconds between two steps
UNIT = 2.0**-10  # of the integers, so small that gTop-k prefers the gradients of the regression
COMPRESSIONS = {
    "lags": LAGS(density=0.05, adaptive=False, min_numel=1),
    "gtopk": GTopK(density=0.05, min_numel=1),
    "adaptive": LAGS(density=0.05, min_numel=1),
}


class Net(torch.nn.Module):
    """A regression, and beside it a weight whose gradients are integers of UNIT."""

    def __init__(self) -> None:
        super().__init__()
        # Without biases, which travel dense, nothing of Horovod's runs between backward and step.
        self.hidden = torch.nn.Linear(16, 48, bias=False)
        self.out = torch.nn.Linear(48, 1, bias=False)
        self.counted = torch.nn.Parameter(torch.zeros(50, 40))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(inputs)))


def counted_residual(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """What this rank has yet to send of the integers; zeros where it holds nothing."""
    saved = optimizer.state_dict().get("hvd_sparse")
    if saved is None or "counted" not in saved["residuals"]:
        return torch.zeros(2000, dtype=torch.float64)
    return saved["residuals"]["counted"].double()


class Witness:
    """Remembers what residuals were before the ranks changed, by other means than the package."""

    def __init__(self) -> None:
        self.own = torch.zeros(2000, dtype=torch.float64)  # of this rank, at the last commit
        self.total = torch.zeros(2000, dtype=torch.float64)  # of all ranks then
        self.steps = 0
        self.place = (-1, 0)  # rank and size then
        self.why = "new"

    def before_commit(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        own = counted_residual(optimizer)
        self.total = hvd.allreduce(own, op=hvd.Sum, name="witness.total")
        self.own, self.steps, self.place = own, steps, (hvd.rank(), hvd.size())

    def check(self, optimizer: torch.optim.Optimizer, policy: str) -> None:
        """After the ranks have changed: what they hold is what those that are left held."""
        everybody = hvd.allgather_object((self.why, self.steps), name="witness.why")
        reasons = {why for why, _ in everybody}
        # Ranks that leave in order hand over; of one that died nothing is left. A rank that had not
        # finished the step that rank 0 has committed counts as one that died.
        if "failure" in reasons:
            kept = self.own * (self.steps == everybody[0][1])
        else:
            kept = self.total * (hvd.rank() == 0)
        expected = hvd.allreduce(kept, op=hvd.Sum, name="witness.expected")
        if policy == "reset":
            expected.zero_()
        if self.why == "failure" and self.place == (hvd.rank(), hvd.size()):
            assert torch.equal(counted_residual(optimizer), self.own), "not its own residual"
        found = hvd.allreduce(counted_residual(optimizer), op=hvd.Sum, name="witness.found")
        assert torch.equal(found, expected), (found - expected).abs().sum()
        share = int(torch.count_nonzero(counted_residual(optimizer)))
        shares = hvd.allgather_object(share, name="witness.shares")
        total = int(expected.abs().sum() / UNIT)
        tell(f"reasons {sorted(reasons)} size {hvd.size()} total {total} shares {shares}")


def tell(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


def check_replicas(model: torch.nn.Module) -> None:
    flat = torch.cat([param.detach().flatten() for param in model.parameters()])
    bits = hvd.allgather(flat.view(torch.int32)[None], name="replicas")
    assert bool((bits == bits[0]).all()), "replicas differ"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("--policy", default="spread")
    parser.add_argument("--compression", choices=COMPRESSIONS, default="lags")
    parser.add_argument("--dies", type=int)
    parser.add_argument("--fails", action="store_true")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())  # replicas are equal because they are synchronised
    model = Net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
        named_parameters=model.named_parameters(),
        compression=COMPRESSIONS[args.compression],
    )
    elastic_residuals(optimizer, args.policy)
    truth = torch.linspace(-1, 1, 16)
    place = f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}"
    witness = Witness()

    def step(number: int, *, dies: bool) -> float:
        draw = torch.Generator().manual_seed(1000 * number + hvd.rank())
        inputs = torch.randn(32, 16, generator=draw)
        counts = torch.randint(-9, 10, (50, 40), generator=draw) * UNIT
        optimizer.zero_grad()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = (model(inputs).squeeze(1) - inputs @ truth).square().mean()
        (loss + (model.counted * counts).sum()).backward()
        optimizer.step()
        return float(hvd.allreduce(loss.detach(), name="loss"))

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        print(f"pid {os.getpid()} at {place} is rank {hvd.rank()} of {hvd.size()}", flush=True)
        witness.check(optimizer, args.policy)
        check_replicas(model)
        first = state.step
        try:
            while state.step < MOST_STEPS:
                reached = ""
                fifth = hvd.size() == 3 and state.step == first + 4
                loss = step(state.step, dies=fifth and hvd.rank() == args.dies)
                if args.fails and state.step == 4 and witness.why == "new":
                    raise HorovodInternalError("an operation failed on all ranks")
                state.step += 1
                if state.step == 1:
                    state.first_loss = loss
                if state.step == first + 3:
                    tell(f"three steps as {hvd.size()}")
                if hvd.size() == args.sizes[state.reached] and state.step >= first + STEPS_EACH:
                    state.reached += 1
                    reached = f"reached {hvd.size()}"
                if state.reached == len(args.sizes):
                    check_replicas(model)
                    assert loss < 0.5 * state.first_loss, (state.first_loss, loss)
                    tell(
                        f"done after {state.step} steps, loss {state.first_loss:.3f} to {loss:.3f}"
                    )
                    return
                witness.before_commit(optimizer, state.step)
                state.commit()
                if reached:
                    tell(reached)
                time.sleep(PAUSE)
        except HorovodInternalError as error:
            witness.why = "failure"
            print(f"{place} met {type(error).__name__}", flush=True)
            raise
        except HostsUpdatedInterrupt:
            witness.why = "update"
            print(f"{place} met HostsUpdatedInterrupt", flush=True)
            raise

    train(hvd.elastic.TorchState(model, optimizer, step=0, reached=0, first_loss=0.0))


if __name__ == "__main__":
    main()
