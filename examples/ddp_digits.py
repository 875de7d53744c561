"""Trains a small CNN on handwritten digits with DistributedDataParallel, and without Horovod.

torchrun --nproc-per-node 4 --max-restarts 3 examples/ddp_digits.py

It saves a checkpoint after each epoch, and goes on from the last one: after a restart by torchrun,
or if it is called again with the same --checkpoint.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from digits_data import Images, load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from hvd_sparse.ddp import LAGS, Exchange, attach

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--epochs", type=int, default=20, help="passes over the training data")
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of AdamW")
parser.add_argument("--density", type=float, default=0.01, help="least density of a layer")
parser.add_argument("--dense", action="store_true", help="train without compression")
parser.add_argument("--checkpoint", help="folder of the checkpoint")


class Net(nn.Module):
    """Two convolutions and two linear layers; 284 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(64 * 4 * 4, 256)
        self.fc2 = nn.Linear(256, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def dataset(images: Images) -> TensorDataset:
    """Returns images as tensors, with their channel first."""
    return TensorDataset(
        torch.from_numpy(images.images).movedim(-1, 1), torch.from_numpy(images.labels)
    )


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Returns the share of the images that a model recognises."""
    images, labels = data.tensors
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def connect() -> None:
    """Initialises torch.distributed.

    `dist.init_process_group("gloo")` is enough, unless torchrun restarts the job: that of torch
    2.13 keeps its store then, in which the new processes must not find the old ones' addresses.
    """
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    life = dist.PrefixStore(f"life {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=life, rank=rank, world_size=size)


def main() -> None:
    args = parser.parse_args()
    connect()
    torch.manual_seed(0)
    train_data, test_data = map(dataset, load_digits(seed=0))
    sampler = DistributedSampler(train_data, drop_last=True)
    loader = DataLoader(train_data, args.batch_size, sampler=sampler, drop_last=True)

    model = DistributedDataParallel(Net(), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if args.dense:
        exchange = Exchange(optimizer)  # which can be saved and loaded all the same
    else:
        exchange = attach(model, optimizer, LAGS(density=args.density))

    first = 0
    if args.checkpoint:
        saved = exchange.load_checkpoint(args.checkpoint, model)
        first = 0 if saved is None else saved["epoch"] + 1
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        if args.checkpoint:
            exchange.save_checkpoint(args.checkpoint, model, epoch=epoch)
        if dist.get_rank() == 0:
            share = accuracy(model.module, test_data)
            print(f"epoch {epoch}: loss {loss.item():.3f}, {share:.1%} of the test images")

    if dist.get_rank() == 0 and not args.dense:
        print(exchange.summary())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
