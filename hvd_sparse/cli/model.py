"""Reads a model's parameters from a user's file, and compares the ways to train it."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvd_sparse.cli.plot import plot_ways
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning import quantities
from hvd_sparse.planning.profile import Profile
from hvd_sparse.planning.ways import Tensor, Way


def tensors_of(where: str) -> list[Tensor]:
    """Returns the parameters of the model that a function makes, which takes no memory for them.

    Args:
        where: "FILE.py:FUNCTION". The function takes nothing and returns a torch.nn.Module; it runs
            on the device meta. The file is run as it would be by an import.

    Raises:
        InvalidArgumentError: There is no such file or function, or what it returns is no module
            with parameters.
    """
    import torch

    file, _, name = where.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise InvalidArgumentError(f"--model must be FILE.py:FUNCTION, got {where!r}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"--model must be FILE.py:FUNCTION, got {where!r}: not Python")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.absolute().parent))
    spec.loader.exec_module(module)
    make = getattr(module, name, None)
    if not callable(make):
        raise InvalidArgumentError(f"--model: {path} has no function {name!r}")
    with torch.device("meta"):
        model = make()
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"--model: {name} must return a torch.nn.Module, got {model!r}")
    tensors = [
        Tensor(name, tuple(one.shape))
        for name, one in model.named_parameters()
        if one.requires_grad
    ]
    if not tensors:
        raise InvalidArgumentError(f"--model: what {name} returns has no parameters to train")
    return tensors


def show_ways(
    ways: list[Way],
    profile: Profile,
    title: str,
    console: Console,
    *,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Prints the comparison, and draws it."""
    if plot is not None:
        plot_ways(plot, ways, title)
    if as_json:
        print(json.dumps({"ranks": profile.network.size, "ways": [asdict(one) for one in ways]}))
        return
    console.print(f"[bold]{title}[/]\n", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in ("a step", "sent by a rank", "steps to a loss", "time to a loss"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in ways:
        unknown = one.steps is None or one.slowdown is None
        table.add_row(
            one.name,
            quantities.shown_seconds(one.step_seconds),
            f"{one.bytes / 1e6:.3g} MB",
            "-" if unknown else f"{one.steps:.2f}",
            "-" if unknown else f"{one.slowdown:.2f}",
        )
    console.print(table)
    console.print(
        "\nSteps to a loss are those of dense times what a small transformer took; times to a loss "
        "are in steps of computing alone. Both are predicted: measure before you decide.",
        soft_wrap=True,
    )
