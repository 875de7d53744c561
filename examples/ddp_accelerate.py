"""Trains on handwritten digits with Accelerate; after a warm-up, ranks send 5 % of each gradient.

PYTHONPATH=$(make adapters) torchrun --nproc-per-node 2 examples/ddp_accelerate.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from digits_data import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvd_sparse.ddp import LAGS
from hvd_sparse.ddp.accelerate import attach_prepared

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--epochs", type=int, default=4, help="passes over the training data")
parser.add_argument("--folder", type=Path, default="checkpoints", help="where each epoch is saved")
parser.add_argument("--resume", type=Path, help="a folder in that one, to go on from")
parser.add_argument("--residuals", choices=("own", "reset"), default="own",
                    help="reset: resume without them, on any number of ranks")  # fmt: skip


def main() -> None:
    args = parser.parse_args()
    set_seed(0)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    train, test = load_digits(seed=0)
    data = TensorDataset(*map(torch.from_numpy, train))
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(),
        nn.Dropout(0.2), nn.Linear(512, 10),
    )  # fmt: skip
    model, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        DataLoader(data, batch_size=16, shuffle=True),
    )
    # Adaptive, LAGS would find out that dense gradients of so small a model are faster.
    compression = LAGS(density=0.05, adaptive=False)
    exchange = attach_prepared(accelerator, model, optimizer, compression, residuals=args.residuals)

    first = 0
    if args.resume is not None:
        accelerator.load_state(args.resume)
        first = int(args.resume.name.removeprefix("epoch-"))
    for epoch in range(first, args.epochs):
        loader.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch + 1}/{args.epochs}: loss {loss:.4f}")
        accelerator.save_state(args.folder / f"epoch-{epoch + 1}")

    net.eval()
    images, labels = (torch.from_numpy(part) for part in test)
    with torch.no_grad():
        right = (net(images).argmax(1) == labels).float().mean()
        weights = nn.utils.parameters_to_vector(net.parameters())
    equal = bool((accelerator.gather(weights[None]) == weights).all())
    accelerator.print(exchange.summary())
    accelerator.print(f"test accuracy {100 * right:.1f} %; weights equal on all ranks: {equal}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
