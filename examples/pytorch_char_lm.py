"""Trains an LSTM to predict the next character of the Python standard library's sources.

horovodrun -np 4 python examples/pytorch_char_lm.py --compression lags --density 0.01
"""

from __future__ import annotations

import argparse
import math
import sysconfig
from pathlib import Path

import common
import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

CHARACTERS = 128  # ASCII; other characters are read as "?"

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--text", type=Path, metavar="FILE",
                    help="learn this text instead of the standard library's sources")  # fmt: skip
parser.add_argument("--max-characters", type=int, default=1_000_000, help="read at most so many")
parser.add_argument("--batch-size", type=int, default=16, help="sequences per rank and step")
parser.add_argument("--sequence", type=int, default=32, help="characters per sequence")
parser.add_argument("--hidden", type=int, default=128, help="units of the LSTM")
parser.add_argument("--clip", type=float, default=0.0,
                    help="largest norm of the gradient; 0: as it comes")  # fmt: skip
common.add_arguments(parser, epochs=6, warmup_epochs=2, lr=0.25)


class CharLM(nn.Module):
    """Embedding, one LSTM layer, and a linear layer over the characters."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 64)
        self.lstm = nn.LSTM(64, hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, CHARACTERS)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.lstm(self.embedding(characters))[0])


def read_text(file: Path | None, limit: int) -> torch.Tensor:
    """Returns the text as one tensor of character codes."""
    files = [file] if file else sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text, length = [], 0
    for path in files:
        text.append(path.read_text(encoding="utf-8", errors="replace"))
        length += len(text[-1])
        if length >= limit:
            break
    return torch.tensor(list("".join(text)[:limit].encode("ascii", "replace")))


def cut(text: torch.Tensor, length: int) -> torch.Tensor:
    """Cuts the text into sequences of `length` characters and the one that follows."""
    count = (len(text) - 1) // length
    return text[: count * length + 1].unfold(0, length + 1, length)


def main() -> None:
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # ranks share the cores of a machine

    text = read_text(args.text, args.max_characters)
    held_out = len(text) // 10
    train, test = cut(text[:-held_out], args.sequence), cut(text[-held_out:], args.sequence)
    sampler = DistributedSampler(
        train, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed, drop_last=True
    )
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)

    model = CharLM(args.hidden)
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
        metric="perplexity per character",
        first_epoch=first_epoch,
    )
    for epoch in common.epochs(args, first_epoch):
        sampler.set_epoch(epoch)
        for batch in loader:
            with log.step() as loss_of_step:
                optimizer.zero_grad()
                loss = cross_entropy(model, batch)
                loss.backward()
                if args.clip:
                    optimizer.synchronize()
                    nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                    with optimizer.skip_synchronize():
                        optimizer.step()
                else:
                    optimizer.step()
                loss_of_step.append(loss.detach())
            schedule.step()
        log.end_epoch(perplexity(model, test))
        common.save(args, model, optimizer, schedule, epoch)
    log.finish()


def cross_entropy(model: nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    """Returns the loss in nats per character."""
    logits = model(sequences[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())


@torch.no_grad()
def perplexity(model: nn.Module, test: torch.Tensor) -> float:
    """Returns the perplexity per character of the held-out text; every rank reads its share."""
    mine = test[hvd.rank() :: hvd.size()]
    nats = sum(cross_entropy(model, part) * len(part) for part in mine.split(100))
    return math.exp(hvd.allreduce(nats.double(), name="nats", op=hvd.Sum) / len(test))


if __name__ == "__main__":
    main()
