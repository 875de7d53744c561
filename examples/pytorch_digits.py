"""Trains a small CNN on handwritten digits, sending 1 % of each gradient.

horovodrun -np 4 python examples/pytorch_digits.py --compression lags --density 0.01
"""

from __future__ import annotations

import argparse

import common
import horovod.torch as hvd
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--data", choices=("digits", "mnist"), default="digits",
                    help="digits come with scikit-learn, mnist by torchvision")  # fmt: skip
parser.add_argument("--data-dir", default="data", help="where torchvision keeps MNIST")
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
common.add_arguments(parser, epochs=40, warmup_epochs=0, lr=0.01)


class Net(nn.Module):
    """Two convolutions and two linear layers; 284 thousand parameters on 8x8 images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(64 * (width // 2) ** 2, 256)
        self.fc2 = nn.Linear(256, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(self.dropout(x.flatten(1))))
        return self.fc2(self.dropout(x))


def load_digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Returns scikit-learn's digits: four fifths to train, one fifth to test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    split = train_test_split(
        digits.images.astype(np.float32)[:, None] / 16,
        digits.target,
        test_size=0.2,
        random_state=seed,
        stratify=digits.target,
    )
    train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in split)
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


def load_mnist(folder: str) -> tuple[TensorDataset, TensorDataset]:
    """Returns MNIST from torchvision; the first rank of a machine downloads it."""
    try:
        from torchvision.datasets import MNIST
    except ImportError as error:
        raise SystemExit(
            f"--data mnist needs torchvision, which does not import: {error}"
        ) from None

    if hvd.local_rank() == 0:
        MNIST(folder, download=True)
    hvd.barrier()
    parts = (MNIST(folder, train=train) for train in (True, False))
    train, test = (TensorDataset(p.data.float()[:, None] / 255, p.targets) for p in parts)
    return train, test


def main() -> None:
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # ranks share the cores of a machine

    train, test = load_mnist(args.data_dir) if args.data == "mnist" else load_digits(args.seed)
    sampler = DistributedSampler(
        train, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed, drop_last=True
    )
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)

    model = Net(width=train.tensors[0].shape[-1])
    optimizer = hvd.DistributedOptimizer(
        common.sgd(args, model),
        named_parameters=model.named_parameters(),
        compression=common.compression(args, steps_per_epoch=len(loader)),
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    first_epoch = common.resume(args, model, optimizer, schedule)
    log = common.TrainingLog(
        args,
        model=model,
        optimizer=optimizer,
        steps_per_epoch=len(loader),
        metric="test accuracy (%)",
        first_epoch=first_epoch,
    )
    for epoch in common.epochs(args, first_epoch):
        model.train()
        sampler.set_epoch(epoch)
        for images, labels in loader:
            with log.step() as loss_of_step:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                loss_of_step.append(loss.detach())
            schedule.step()
        log.end_epoch(accuracy(model, test))
        common.save(args, model, optimizer, schedule, epoch)
    log.finish()


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Returns the percentage of test images recognised; every rank evaluates its share."""
    model.eval()
    images, labels = test[hvd.rank() :: hvd.size()]
    right = sum(
        (model(x).argmax(1) == y).sum()
        for x, y in zip(images.split(500), labels.split(500), strict=True)
    )
    return 100 * float(hvd.allreduce(right.double(), name="right", op=hvd.Sum)) / len(test)


if __name__ == "__main__":
    main()
