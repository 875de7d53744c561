"""Trains in an elastic job with PyTorch; see elastic_steps.py. Run by test_elastic.py."""

from __future__ import annotations

import horovod.torch as hvd
import numpy as np
import torch

import hvd_sparse.torch
from tests.jobs.elastic_steps import TOLERANCE, die, parser, presets, train
from tests.jobs.elastic_witness import COUNTED, Witness, a_count


class Net(torch.nn.Module):
    """A regression model, with an extra weight whose gradients are integers times UNIT."""

    def __init__(self) -> None:
        super().__init__()
        # Without biases, which are dense, no operation of Horovod runs between backward and step.
        self.hidden = torch.nn.Linear(16, 48, bias=False)
        self.out = torch.nn.Linear(48, 1, bias=False)
        self.counted = torch.nn.Parameter(torch.zeros(COUNTED))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(inputs)))


def counted_residual(optimizer: torch.optim.Optimizer) -> np.ndarray:
    """Returns this rank's residual of the extra weight; zeros if it holds none."""
    saved = optimizer.state_dict().get("hvd_sparse")
    if saved is None or "counted" not in saved["residuals"]:
        return np.zeros(np.prod(COUNTED))
    return saved["residuals"]["counted"].double().numpy()


def check_replicas(model: torch.nn.Module) -> None:
    flat = torch.cat([param.detach().flatten() for param in model.parameters()])
    bits = hvd.allgather(flat.view(torch.int32)[None], name="replicas")
    assert bool((bits == bits[0]).all()), "replicas differ"


def main() -> None:
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(hvd.rank())  # replicas become equal only by synchronisation
    model = Net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
        named_parameters=model.named_parameters(),
        compression=presets(hvd_sparse.torch)[args.compression],
    )
    optimizer.exchange.elastic_residuals = args.policy
    truth = torch.linspace(-1, 1, 16)
    witness = Witness(
        hvd,
        residual=lambda: counted_residual(optimizer),
        summed=lambda array, name: hvd.allreduce(
            torch.from_numpy(array), op=hvd.Sum, name=name
        ).numpy(),
        gathered=lambda thing, name: hvd.allgather_object(thing, name=name),
        tolerance=TOLERANCE.get(args.compression, 0.0),
    )

    def step(number: int, *, dies: bool) -> float:
        draw = np.random.default_rng((number, hvd.rank()))
        inputs = torch.from_numpy(draw.normal(size=(32, 16)).astype(np.float32))
        counts = torch.from_numpy(a_count(draw))
        optimizer.zero_grad()
        if dies:
            die()
        loss = (model(inputs).squeeze(1) - inputs @ truth).square().mean()
        (loss + (model.counted * counts).sum()).backward()
        optimizer.step()
        return float(hvd.allreduce(loss.detach(), name="loss"))

    state = hvd.elastic.TorchState(model, optimizer, step=0, reached=0, first_loss=0.0)

    def check() -> None:
        if args.compression == "local":
            optimizer.exchange.meet()
        check_replicas(model)

    train(hvd, state, args, witness, step=step, check_replicas=check)


if __name__ == "__main__":
    main()
