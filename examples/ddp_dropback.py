"""Trains few of a model's weights with DropBack, beside all of them, on handwritten digits.

torchrun --nproc-per-node 2 examples/ddp_dropback.py --models cnn --factors 1 5 10

Prints a table: the test accuracy of each seed, and the bytes that a rank sends in a step before and
after the tracked weights are frozen. Factor 1 trains all weights, without DropBack.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_digits import Net, accuracy, dataset
from digits_data import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from hvd_sparse.ddp import Dense, DropBack, attach

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--models", nargs="+", default=["cnn", "resnet20"], help="cnn, resnet20")
parser.add_argument("--factors", nargs="+", type=float, default=[1, 5, 10],
                    help="how many times fewer weights are trained")  # fmt: skip
parser.add_argument("--momenta", nargs="+", type=float, default=[0, 0.9], help="of SGD")
parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], help="of weights and data")
parser.add_argument("--epochs", type=int, default=30, help="passes over the training data")
parser.add_argument("--freeze-epochs", type=float, default=8,
                    help="after so many the tracked weights stay the same")  # fmt: skip
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
parser.add_argument("--lr", type=float, default=0.1,
                    help="first learning rate; times 1 - momentum")  # fmt: skip
parser.add_argument("--values", default="float32", help="number type on the wire")


class Residual(nn.Module):
    """Two convolutions beside a shortcut without parameters."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.stride, self.widened = (1, 0) if width_in == width else (2, width - width_in)
        self.first = nn.Conv2d(width_in, width, 3, self.stride, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(y + F.pad(shortcut, (0, 0, 0, 0, 0, self.widened)))


def resnet20() -> nn.Module:
    """ResNet-20 for images of one channel; 272 thousand parameters."""
    widths = [16] * 3 + [32] * 3 + [64] * 3
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        *(Residual(a, b) for a, b in zip([16, *widths], widths, strict=False)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


MODELS = {"cnn": Net, "resnet20": resnet20}


def train(
    args: argparse.Namespace, name: str, factor: float, momentum: float, seed: int
) -> tuple[float, int, int, float]:
    """Returns accuracy, bytes of the first and of the last step, and seconds of a step."""
    torch.manual_seed(seed)
    train_data, test_data = map(dataset, load_digits(seed=seed))
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(
        train_data, seed=seed, drop_last=True
    )
    loader = DataLoader(train_data, args.batch_size, sampler=sampler, drop_last=True)

    model = DistributedDataParallel(MODELS[name]())
    rate = args.lr * (1 - momentum)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    exchange = attach(model, optimizer, Dense(values=args.values))
    if factor > 1:
        frozen = round(args.freeze_epochs * len(loader))
        DropBack(optimizer, tracked=1 / factor, freeze_after=frozen, seed=seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    sent, begin = [], time.perf_counter()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            schedule.step()
            assert exchange.stats.last is not None
            sent.append(exchange.stats.last.bytes_sent)
    seconds = (time.perf_counter() - begin) / len(sent)
    model.eval()
    return accuracy(model.module, test_data), sent[0], sent[-1], seconds


def main() -> None:
    args = parser.parse_args()
    torch.set_num_threads(1)  # ranks share the cores of a machine
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0
    if is_first:
        columns = ["model", "momentum", "weights trained", "accuracy (%) of each seed", "mean",
                   "bytes sent in a step, at first and at last", "ms a step"]  # fmt: skip
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for name in args.models:
        for momentum in args.momenta:
            for factor in args.factors:
                runs = [train(args, name, factor, momentum, seed) for seed in args.seeds]
                shares = [100 * run[0] for run in runs]
                _, first, last, seconds = runs[-1]
                if is_first:
                    print(
                        f"| {name} | {momentum} | 1 / {factor:g} "
                        f"| {', '.join(f'{one:.1f}' for one in shares)} "
                        f"| {statistics.mean(shares):.1f} | {first:,} to {last:,} "
                        f"| {1000 * seconds:.0f} |",
                        flush=True,
                    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
