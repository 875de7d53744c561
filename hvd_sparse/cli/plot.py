"""The plot of a plan: one of its steps above a dense step."""

from __future__ import annotations

from pathlib import Path

from hvd_sparse.planning.explanation import simulated_step
from hvd_sparse.planning.pipeline import SimulatedStep, simulate_dense
from hvd_sparse.planning.plan import Plan
from hvd_sparse.planning.profile import Profile
from hvd_sparse.planning.ways import Way

# Okabe and Ito's colours, which colour-blind readers can tell apart.
FORWARD, BACKWARD, SELECT = "#999999", "#56B4E9", "#E69F00"
SPARSE, DENSE = "#009E73", "#D55E00"


def plot_ways(file: Path, ways: list[Way], title: str) -> None:
    """Draws the predicted times to a loss, and of a step where no more is known."""
    import matplotlib as mpl  # files.check_picture has imported it before

    mpl.use("Agg")  # draws without a display
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
    alone = ways[0].step_seconds
    names = [one.name for one in ways]
    steps = [one.step_seconds / alone for one in ways]
    axis.barh(names, [one.slowdown or 0.0 for one in ways], color=SPARSE, label="to a loss")
    axis.plot(steps, names, "|", color=DENSE, markersize=14, markeredgewidth=2, label="a step")
    axis.axvline(1.0, color=FORWARD, linewidth=0.8)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("{x:g}")
    axis.tick_params(axis="x", which="minor", labelsize=7)
    axis.set_xlabel("seconds, over those of computing alone; predicted")
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def plot_plan(file: Path, plan: Plan, profile: Profile, title: str, *, select_on: str) -> None:
    """Draws forward, backward, selection and exchanges of the plan's step and of a dense step."""
    import matplotlib as mpl  # files.check_picture has imported it before

    mpl.use("Agg")  # draws without a display
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    figure, axis = plt.subplots(figsize=(11, 3.2), layout="constrained")

    def bars(row: float, spans: list[tuple[float, float]], colors: list[str]) -> None:
        axis.broken_barh(
            [(1000 * start, 1000 * (end - start)) for start, end in spans],
            (row - 0.38, 0.76), facecolors=colors, edgecolor="white", linewidth=0.4,
        )  # fmt: skip

    def step(row: int, simulated: SimulatedStep, exchange_colors: list[str]) -> None:
        """Draws two lanes: the thread of backward, and the network."""
        spans, colors = [(0.0, simulated.forward)], [FORWARD]
        clock = simulated.forward
        for bucket in simulated.buckets:
            spans += [(clock, bucket.ready), (bucket.ready, bucket.selected)]
            colors += [BACKWARD, SELECT]
            clock = bucket.selected
        if clock < simulated.backward_end:
            spans.append((clock, simulated.backward_end))
            colors.append(BACKWARD)
        bars(row, spans, colors)
        bars(row - 1, [(one.start, one.end) for one in simulated.buckets], exchange_colors)

    dense = simulate_dense(profile)
    own = dense if plan.dense else simulated_step(plan, profile, select_on=select_on)
    step(4, own, [DENSE if bucket.dense else SPARSE for bucket in plan.buckets])
    step(1, dense, [DENSE] * len(dense.buckets))
    axis.set_yticks([4, 3, 1, 0], ["plan: computing", "network", "dense: computing", "network"])
    axis.set_xlabel("ms")
    axis.set_xlim(0, 1000 * max(own.step, dense.step) * 1.02)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_title(title, fontsize=10)
    names = {"forward": FORWARD, "backward": BACKWARD, "selection": SELECT,
             "sparse exchange": SPARSE, "dense exchange": DENSE}  # fmt: skip
    axis.legend(
        handles=[Patch(color=color, label=name) for name, color in names.items()],
        loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(names), fontsize=8, frameon=False,
    )  # fmt: skip
    figure.savefig(file, dpi=150)
    plt.close(figure)
