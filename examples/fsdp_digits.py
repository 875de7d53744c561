"""Trains a small CNN on handwritten digits with FSDP2: sharded on a node, replicated between nodes.

torchrun --nproc-per-node 4 examples/fsdp_digits.py --shards 2

Here a node is --shards ranks. With --checkpoint it saves after each epoch, through
torch.distributed.checkpoint, and goes on from the last one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from ddp_digits import Net, accuracy, connect, dataset
from digits_data import load_digits
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from hvd_sparse.fsdp import LAGS, attach

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--shards", type=int, default=2, help="ranks that share one replica")
parser.add_argument("--epochs", type=int, default=20, help="passes over the training data")
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of AdamW")
parser.add_argument("--density", type=float, default=0.01, help="least density of a layer")
parser.add_argument("--dense", action="store_true", help="train without compression")
parser.add_argument("--checkpoint", type=Path, help="folder of the checkpoints")


class App(Stateful):
    """Model and optimizer, as torch.distributed.checkpoint takes them."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.both = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of both."""
        model, optimizer = get_state_dict(*self.both)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of both."""
        set_state_dict(
            *self.both,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optimizer"],
        )


def epochs_in(folder: Path | None) -> int:
    """Returns the number of epochs after which the last whole checkpoint was saved; 0: none."""
    whole = () if folder is None else folder.glob("epoch-*/.metadata")
    return max((int(one.parent.name.removeprefix("epoch-")) for one in whole), default=0)


def main() -> None:
    args = parser.parse_args()
    connect()
    torch.manual_seed(0)
    train_data, test_data = map(dataset, load_digits(seed=0))
    sampler = DistributedSampler(train_data, drop_last=True)
    loader = DataLoader(train_data, args.batch_size, sampler=sampler, drop_last=True)

    nodes = dist.get_world_size() // args.shards
    mesh = init_device_mesh("cpu", (nodes, args.shards), mesh_dim_names=("replicate", "shard"))
    model = Net()
    fully_shard(model.fc1, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    state: dict[str, Any] = {"app": App(model, optimizer)}
    if not args.dense:
        exchange = attach(model, optimizer, LAGS(density=args.density))
        state["residuals"] = exchange

    first = epochs_in(args.checkpoint)
    if first:
        dcp.load(state, checkpoint_id=args.checkpoint / f"epoch-{first}")
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
        if args.checkpoint:
            dcp.save(state, checkpoint_id=args.checkpoint / f"epoch-{epoch + 1}")
        share = accuracy(model, test_data)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, {share:.1%} of the test images")

    if dist.get_rank() == 0 and not args.dense:
        print(exchange.summary())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
