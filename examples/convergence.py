"""Compares the results of sparse and dense training: runs the examples and writes a table.

    python examples/convergence.py

Every method trains with several seeds and with the settings of dense training; the means and their
spread are written to docs/convergence.md. Fails if a method misses the goal.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import launch
import typer
from rich.console import Console

DOCUMENT = Path(__file__).parents[1] / "docs" / "convergence.md"
LAGS = ["--compression", "lags", "--collective", "gtopk"]
# By name: the title in the table, and the example's arguments.
METHODS = {
    "none": ("dense", ["--compression", "none"]),
    "lags": ("LAGS", LAGS),
    "lags-corrected": ("LAGS, momentum correction", [*LAGS, "--momentum-correction"]),
    "gtopk": ("GTopK", ["--compression", "gtopk"]),
    "gaussiank": ("GaussianK", ["--compression", "gaussiank"]),
    "topk": ("TopK", ["--compression", "topk"]),
    "topk-corrected": (
        "TopK, momentum correction", ["--compression", "topk", "--momentum-correction"],
    ),
}  # fmt: skip
RULE = {
    "points": "test accuracy at most {goal:.1f} points below dense",
    "percent": "perplexity at most {goal:.0f} % above dense",
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Study:
    """One example, the methods to compare, and how far they may fall behind dense."""

    title: str
    name: str
    example: str
    methods: tuple[str, ...]
    metric: str
    unit: str  # "points": of the metric, larger is better; "percent": relative, smaller is better
    goal: float | None  # None: the study has no goal
    density: float | None = None  # overrides the density that all studies share

    def behind(self, dense: float, sparse: float) -> float:
        """Returns how much worse a sparse result is than the dense one; negative if better."""
        return dense - sparse if self.unit == "points" else 100 * (sparse / dense - 1)


STUDIES = (
    Study("Handwritten digits, CNN", "digits", "pytorch_digits.py",
          ("none", "lags", "gtopk", "gaussiank", "topk"), "test accuracy, %", "points", 1.0),
    Study("Python's standard library, LSTM", "char_lm", "pytorch_char_lm.py",
          ("none", "lags"), "perplexity per character", "percent", 2.0),
    *(Study(f"Momentum correction, density {density}", "momentum", "pytorch_digits.py",
            ("none", "lags", "lags-corrected", "topk", "topk-corrected"), "test accuracy, %",
            "points", None, density) for density in (0.01, 0.001)),
)  # fmt: skip


@app.command()
def main(
    ranks: Annotated[int, typer.Option(min=1, help="processes of each job")] = 4,
    seeds: Annotated[int, typer.Option(min=1, help="runs of each method")] = 3,
    density: Annotated[float, typer.Option(help="of the sparse methods")] = 0.01,
    only: Annotated[str | None, typer.Option(help="one study: digits, char_lm or momentum")] = None,
    method: Annotated[str | None, typer.Option(help="one sparse method, and dense")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="instead of each example's own")] = None,
    document: Annotated[Path, typer.Option(help="where to write")] = DOCUMENT,
) -> None:
    """Runs all studies, writes the document, and fails if a method misses its goal."""
    console = Console()
    sections, missed = [], []
    for study in [study for study in STUDIES if only in (None, study.name)]:
        accounts: dict[str, list[dict[str, Any]]] = {}
        shared = ["--density", str(study.density or density)]
        shared += ["--epochs", str(epochs)] if epochs else []
        for one in [one for one in study.methods if one == "none" or method in (None, one)]:
            accounts[one] = []
            for seed in range(1, seeds + 1):
                own = [*METHODS[one][1], "--seed", str(seed)]
                account = launch.run(study.example, [*own, *shared], ranks=ranks)
                accounts[one].append(account)
                console.print(
                    f"{study.title}, {METHODS[one][0]}, seed {seed}: "
                    f"{study.metric} {account['value']:.2f}"
                )
        text, late = section(study, accounts)
        sections.append(text)
        missed += late
    head = HEAD.format(ranks=ranks, seeds=seeds, density=density, machine=machine())
    document.write_text(head + "".join(sections))
    console.print(f"written: {document}")
    if missed:
        sys.exit("behind the goal: " + ", ".join(missed))


HEAD = """# Convergence

Sparse against dense training: {ranks} ranks, density {density} where a table says no other, after a
warm-up where it says so, mean of {seeds} seeds and their standard deviation. All methods of a table
share all other settings. LAGS has the density of all others, with `adaptive=False`, since adaptive
LAGS may go dense on one machine, and with `collective="gtopk"`. Bytes are those of all steps,
warm-up included; dense ones are computed for a ring. Made on {machine} by

```
make convergence
```
"""


def machine() -> str:
    """Describes the machine in general words."""
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "horovod"))
    return f"one machine of {os.cpu_count()} cores ({platform.machine()}), with {packages}"


def section(study: Study, accounts: dict[str, list[dict[str, Any]]]) -> tuple[str, list[str]]:
    """Returns one table, and the methods that miss the goal."""
    first = accounts["none"][0]
    values = {method: [run["value"] for run in runs] for method, runs in accounts.items()}
    dense = statistics.mean(values["none"])
    warmup = float(first["arguments"]["warmup_epochs"])
    setting = (
        f"{first['parameters']:,} parameters, {len(first['epochs'])} epochs, "
        f"{len(first['steps']['loss'])} steps"
        f"{f', of which {warmup:g} epochs warm-up' if warmup else ''}; `examples/{study.example}`."
    )
    if study.goal is not None:
        setting += f" Goal: {RULE[study.unit].format(goal=study.goal)}."
    columns = (
        "gradients", study.metric, f"behind dense, {study.unit}", "goal",
        "bytes sent per rank and step", "density reached",
    )  # fmt: skip
    lines = [
        f"\n## {study.title}\n",
        f"{setting}\n",
        f"| {' | '.join(columns)} |",
        "|---|--:|--:|---|--:|--:|",
    ]
    missed = []
    for method, runs in accounts.items():
        name = METHODS[method][0]
        mean = statistics.mean(values[method])
        spread = statistics.stdev(values[method]) if len(runs) > 1 else 0.0
        behind = study.behind(dense, mean)
        if method == "none" or study.goal is None:
            verdict = ""
        else:
            verdict = "met" if behind <= study.goal else "missed"
        shown = "" if method == "none" else f"{behind:+.2f}"
        if verdict == "missed":
            missed.append(f"{name} on {study.example}")
        sent = statistics.mean(run["bytes_sent_per_rank_and_step"] for run in runs)
        density = statistics.mean(run["density_reached"] for run in runs)
        lines.append(
            f"| {name} | {mean:.2f} ± {spread:.2f} | {shown} | {verdict} | {sent:,.0f} | "
            f"{density:.4f} |"
        )
    return "\n".join(lines) + "\n", missed


if __name__ == "__main__":
    app()
