"""Trains a small network on handwritten digits under Ray Train.

    ray job submit --working-dir examples/recipes -- python ray_train.py --workers 4

Each node needs hvd_sparse, torch and scikit-learn.
"""

from __future__ import annotations

import argparse
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from hvd_sparse.ddp import LAGS, attach

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--workers", type=int, default=2, help="ranks (default: 2)")
parser.add_argument("--gpu", action="store_true", help="give each rank a GPU")
parser.add_argument("--epochs", type=int, default=4, help="passes over the data (default: 4)")


def train_loop(config: dict[str, Any]) -> None:
    """Trains as one rank; Ray has initialised torch.distributed."""
    digits = load_digits()
    data = TensorDataset(
        torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    )
    loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
    loader = ray.train.torch.prepare_data_loader(loader)
    net = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    model = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    exchange = None
    if isinstance(model, DistributedDataParallel):  # Ray wraps the model only for several ranks
        exchange = attach(model, optimizer, LAGS)
    rank = ray.train.get_context().get_world_rank()

    for epoch in range(config["epochs"]):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
        ray.train.report({"epoch": epoch, "loss": loss.item()})
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    if rank == 0 and exchange is not None:
        print(exchange.summary())


def main() -> None:
    args = parser.parse_args()
    trainer = ray.train.torch.TorchTrainer(
        train_loop,
        train_loop_config={"epochs": args.epochs},
        scaling_config=ray.train.ScalingConfig(num_workers=args.workers, use_gpu=args.gpu),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
