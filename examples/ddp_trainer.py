"""Trains on handwritten digits with Hugging Face's Trainer; ranks send 5 % of each gradient.

PYTHONPATH=$(make adapters) torchrun --nproc-per-node 2 examples/ddp_trainer.py
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from digits_data import Images, load_digits
from torch import nn
from transformers import Trainer, TrainingArguments

from hvd_sparse.ddp import LAGS
from hvd_sparse.ddp.trainer import SparseExchange

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--epochs", type=int, default=4, help="passes over the training data")
parser.add_argument("--folder", default="checkpoints", help="where the last two epochs are saved")
parser.add_argument("--resume", help="a folder in that one, to go on from")


class SparseTrainer(SparseExchange, Trainer):
    """Hugging Face's Trainer, with a sparse exchange."""


class Net(nn.Module):
    """Two hidden layers; 150 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(),
            nn.Dropout(0.2), nn.Linear(512, 10),
        )  # fmt: skip

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(images)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def rows(part: Images) -> list[dict[str, torch.Tensor]]:
    """Returns the images as the Trainer's data collator takes them."""
    images, labels = map(torch.from_numpy, part)
    return [{"images": x, "labels": y} for x, y in zip(images, labels, strict=True)]


def main() -> None:
    args = parser.parse_args()
    train, test = load_digits(seed=0)
    torch.manual_seed(0)
    trainer = SparseTrainer(
        Net(),
        TrainingArguments(
            args.folder,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=32,
            learning_rate=1e-3,
            save_strategy="epoch",
            save_total_limit=2,
            logging_strategy="epoch",
            disable_tqdm=True,
            report_to="none",
            use_cpu=True,
            ddp_backend="gloo",
        ),
        train_dataset=rows(train),
        # Adaptive, LAGS would find out that dense gradients of so small a model are faster.
        compression=LAGS(density=0.05, adaptive=False),
    )
    trainer.train(resume_from_checkpoint=args.resume)

    net = trainer.model.eval()
    images, labels = map(torch.from_numpy, test)
    with torch.no_grad():
        right = (net(images, labels)["logits"].argmax(1) == labels).float().mean()
        weights = nn.utils.parameters_to_vector(net.parameters())
    equal = bool((trainer.accelerator.gather(weights[None]) == weights).all())
    trainer.accelerator.print(trainer.exchange.summary())
    trainer.accelerator.print(
        f"test accuracy {100 * right:.1f} %; weights equal on all ranks: {equal}"
    )
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
