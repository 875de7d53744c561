"""Trains on handwritten digits with Lightning, sharded on a node and replicated between nodes.

PYTHONPATH=$(make adapters) torchrun --nproc-per-node 4 examples/fsdp_lightning.py --shards 2
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning
import torch
import torch.distributed as dist
import torch.nn.functional as F
from digits_data import load_digits
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from hvd_sparse.fsdp import LAGS, attach

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--shards", type=int, default=2, help="ranks that share one replica")
parser.add_argument("--epochs", type=int, default=4, help="passes over the training data")


class Digits(lightning.LightningModule):
    """A network of two layers, in groups of their own."""

    def __init__(self, shards: int) -> None:
        super().__init__()
        self.shards = shards
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def configure_model(self) -> None:
        """Shards the model. Lightning's own mesh has no replicas."""
        size = (dist.get_world_size() // self.shards, self.shards)
        mesh = init_device_mesh("cpu", size, mesh_dim_names=("replicate", "shard"))
        fully_shard(self.net[1], mesh=mesh)
        fully_shard(self.net, mesh=mesh)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns the optimizer, attached."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        attach(self.net, optimizer, LAGS(density=0.05, adaptive=False))
        return optimizer

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Returns the loss of a batch."""
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)


def main() -> None:
    args = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    train, test = load_digits(seed=0)
    loader = DataLoader(TensorDataset(*map(torch.from_numpy, train)), batch_size=16, shuffle=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=ModelParallelStrategy(int(os.environ["WORLD_SIZE"]), tensor_parallel_size=1),
        max_epochs=args.epochs,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    digits = Digits(args.shards)
    trainer.fit(digits, loader)
    images, labels = (torch.from_numpy(part) for part in test)
    with torch.no_grad():
        right = (digits.net(images).argmax(1) == labels).float().mean()
    if dist.get_rank() == 0:
        print(trainer.optimizers[0].exchange.summary())
        print(f"test accuracy {100 * right:.1f} %")


if __name__ == "__main__":
    main()
