"""Trains on handwritten digits with Lightning; after a warm-up, ranks send 5 % of each gradient.

PYTHONPATH=$(make adapters) torchrun --nproc-per-node 2 examples/ddp_lightning.py
"""

from __future__ import annotations

import argparse

import lightning
import torch
import torch.nn.functional as F
from digits_data import load_digits
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvd_sparse.ddp import LAGS
from hvd_sparse.ddp.lightning import SparseDDPStrategy

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--ranks", type=int, default=2, help="number of ranks")
parser.add_argument("--epochs", type=int, default=4, help="passes over the training data")
parser.add_argument("--folder", default="checkpoints", help="where the last two epochs are saved")
parser.add_argument("--resume", help="a file in such a folder, to go on from")


class Digits(lightning.LightningModule):
    """Two hidden layers; 150 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 256),
            nn.ReLU(),
            nn.Linear(256, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    @torch.no_grad()
    def on_train_end(self) -> None:
        weights = nn.utils.parameters_to_vector(self.parameters())
        equal = bool((self.all_gather(weights) == weights).all())
        images, labels = (torch.from_numpy(part) for part in load_digits(seed=0)[1])
        right = (self.net(images).argmax(1) == labels).float().mean()
        if self.trainer.is_global_zero:
            print(self.trainer.optimizers[0].exchange.summary())
            print(f"test accuracy {100 * right:.1f} %; weights equal on all ranks: {equal}")


def main() -> None:
    args = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    train, _ = load_digits(seed=0)
    data = TensorDataset(*map(torch.from_numpy, train))
    last_two = ModelCheckpoint(
        dirpath=args.folder, filename="{epoch}", monitor="epoch", mode="max", save_top_k=2
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=args.ranks,
        # Adaptive, LAGS would find out that dense gradients of so small a model are faster.
        strategy=SparseDDPStrategy(LAGS(density=0.05, adaptive=False)),
        max_epochs=args.epochs,
        callbacks=[last_two],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(), DataLoader(data, batch_size=32, shuffle=True), ckpt_path=args.resume)


if __name__ == "__main__":
    main()
