"""Trains the network of pytorch_digits.py while ranks come and go.

hosts.sh prints a line HOST:SLOTS for each available host:

horovodrun --gloo -np 2 --min-np 2 --max-np 4 --host-discovery-script ./hosts.sh \
    python examples/pytorch_digits_elastic.py --compression lags --density 0.01
"""

from __future__ import annotations

import argparse

import common
import horovod.torch as hvd
import torch
import torch.nn.functional as F
from pytorch_digits import Net, accuracy, load_digits
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
parser.add_argument("--commit-every", type=int, default=5, help="steps from commit to commit")
parser.add_argument("--residuals", choices=("spread", "reset"), default="spread",
                    help="what becomes of them when ranks come or go")  # fmt: skip
common.add_arguments(parser, epochs=40, warmup_epochs=0, lr=0.01)


def main() -> None:
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # ranks share the cores of a machine

    train_set, test_set = load_digits(args.seed)
    sampler = hvd.elastic.ElasticSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)

    model = Net(width=train_set.tensors[0].shape[-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=common.compression(args, steps_per_epoch=len(loader)),
    )
    if args.compression in common.SPARSE:
        optimizer.exchange.elastic_residuals = args.residuals

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()
        while state.epoch < args.epochs:
            model.train()
            for batch, (images, labels) in enumerate(loader):
                optimizer.zero_grad()
                F.cross_entropy(model(images), labels).backward()
                optimizer.step()
                state.sampler.record_batch(batch, args.batch_size)
                if (batch + 1) % args.commit_every == 0:
                    state.commit()
            percent = accuracy(model, test_set)
            if hvd.rank() == 0:
                print(f"epoch {state.epoch + 1}/{args.epochs} with {hvd.size()} ranks: "
                      f"test accuracy {percent:.2f} %", flush=True)  # fmt: skip
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()

    train(hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0))


if __name__ == "__main__":
    main()
