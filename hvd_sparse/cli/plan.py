"""hvd-sparse plan: the plan of LAGS for a saved profile, on its own network or another one."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hvd_sparse.cli.console import wide_console
from hvd_sparse.cli.files import check_picture
from hvd_sparse.cli.model import show_ways, tensors_of
from hvd_sparse.cli.numbers import integer, number
from hvd_sparse.cli.plot import plot_plan
from hvd_sparse.compression import LAGS, Adaptive
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError
from hvd_sparse.places.place import OnCpu, OnDevice
from hvd_sparse.planning import in_16_bits, planner, quantities
from hvd_sparse.planning.cluster import Cluster
from hvd_sparse.planning.explanation import explain
from hvd_sparse.planning.network import MEMORY, MESSAGE_SECONDS, Link, Network
from hvd_sparse.planning.plan import Plan
from hvd_sparse.planning.planner import Rules
from hvd_sparse.planning.profile import ONE_CORE, Machine, Profile
from hvd_sparse.planning.routes import CALLS
from hvd_sparse.planning.ways import compared, profile_of


class Rule(str, Enum):
    """Values of planner.Rules."""

    SIMULATED = "simulated"
    PAPER = "paper"


def plan(
    profile_file: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            help="The model: what exchange.tuning.profile.save(FILE) wrote after a training's "
            "first 30 steps.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Instead: FILE.py:FUNCTION, which returns a torch.nn.Module. Compares ways to "
            "train it, before any run; takes --step-seconds, and --ranks and --bandwidth or "
            "--network.",
            show_default=False,
        ),
    ] = None,
    step_seconds: Annotated[
        float | None,
        typer.Option(parser=number, help="Of a step on one rank that exchanges nothing."),
    ] = None,
    cluster_file: Annotated[
        Path | None,
        typer.Option("--network", help="Plan for the cluster that hvd-sparse bench --save wrote."),
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Of a node's link, like 10Gbps. Default: as measured.")
    ] = None,
    latency: Annotated[
        str | None, typer.Option(help="Of a message, like 50us. Default: as measured.")
    ] = None,
    ranks: Annotated[int | None, typer.Option(parser=integer, help="Default: as measured.")] = None,
    per_node: Annotated[
        int | None,
        typer.Option(parser=integer, help="Ranks on a node, share its link. Default: as measured."),
    ] = None,
    density: Annotated[
        float, typer.Option(parser=number, help="Floor of the densities, after a warm-up.")
    ] = LAGS.density,
    rule: Annotated[Rule, typer.Option(help="How buckets and densities are found.")] = (
        Rule.SIMULATED
    ),
    collective: Annotated[
        list[str] | None,
        typer.Option(help="Allow this one; may be repeated. Default: those of LAGS."),
    ] = None,
    fixed: Annotated[bool, typer.Option(help="Keep the density fixed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the step's timeline to this PNG.")] = None,
) -> None:
    """Says what LAGS would do with a model on a network, and whether that helps."""
    try:
        if plot is not None:
            check_picture("--plot", plot)
        cluster = None if cluster_file is None else Cluster.load(cluster_file)
        if model is not None:
            if profile_file is not None:
                raise InvalidArgumentError("--model takes the place of --profile: give one of them")
            tensors = tensors_of(model)
            network, machine = unmeasured(cluster, bandwidth, latency, ranks, per_node)
            here = profile_of(tensors, positive_seconds(step_seconds), network, machine)
            ways = compared(here, tensors)
            show_ways(ways, here, title(here), wide_console(), as_json=as_json, plot=plot)
            return
        if profile_file is None:
            raise InvalidArgumentError("give --profile, or --model with --step-seconds")
        measured = Profile.load(profile_file)
        if cluster is not None:
            measured = cluster.with_model_of(measured)
        network = network_of(measured.network, bandwidth, latency, ranks, per_node)
        here = measured.scaled(network=network)
        place = OnDevice if here.machine.on_device else OnCpu
        allowed = planner.rules_of(LAGS(density=density, adaptive=Adaptive(rule=rule.value)), place)
        rules = replace(allowed, adaptive=not fixed)
        if collective:
            rules = replace(rules, collectives=tuple(collective))
        made = planner.make_plan(here, rules)
        if plot is not None:
            plot_plan(plot, made, here, title(here), select_on=rules.select_on)
    except HvdSparseError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        print(json.dumps(account(made, here, rules), indent=2))
    else:
        assumed = any(one is not None for one in (bandwidth, latency, per_node))
        show(made, here, wide_console(), assumed=assumed, rules=rules)


def positive_seconds(step_seconds: float | None) -> float:
    """Returns the seconds of computing, which --model takes."""
    if step_seconds is None or not 0 < step_seconds < math.inf:
        raise InvalidArgumentError(
            f"--model takes --step-seconds, a positive number, got {step_seconds}"
        )
    return step_seconds


def unmeasured(
    cluster: Cluster | None,
    bandwidth: str | None,
    latency: str | None,
    ranks: int | None,
    per_node: int | None,
) -> tuple[Network, Machine]:
    """Returns the network and the machine of a model that has not run: assumed, if not measured."""
    if cluster is not None:
        return network_of(cluster.network, bandwidth, latency, ranks, per_node), cluster.machine
    if ranks is None or bandwidth is None:
        raise InvalidArgumentError("--model takes --ranks and --bandwidth, or --network")
    two = Network.assumed(2, 1.0, MESSAGE_SECONDS)
    return network_of(two, bandwidth, latency, ranks, per_node), ONE_CORE


def network_of(
    measured: Network,
    bandwidth: str | None,
    latency: str | None,
    ranks: int | None,
    per_node: int | None,
) -> Network:
    """Returns the network of the options; anything they leave open is as measured.

    With other links or nodes than measured, dense is an ideal ring, and devices are not connected,
    since no measurement applies to them.
    """
    size = measured.size if ranks is None else ranks
    if size < 1:
        raise InvalidArgumentError(f"ranks must be at least 1, got {size}")
    local_size = min(measured.local_size, size) if per_node is None else per_node
    if not 1 <= local_size <= size:
        raise InvalidArgumentError(f"per-node must lie in [1, {size} ranks], got {local_size}")
    if bandwidth is None and latency is None and per_node is None:
        return measured.scaled(size)
    link = measured.link
    if bandwidth is None and link.beta == 0:
        raise HvdSparseError("the profile measured no bandwidth (one rank): give --bandwidth")
    of_node = (
        measured.local_size / link.beta
        if bandwidth is None
        else quantities.bytes_per_second(bandwidth)
    )
    network = Network.assumed(
        size,
        of_node / local_size,
        link.alpha if latency is None else quantities.seconds(latency),
        local_size=local_size,
        local=measured.local or MEMORY,
    )
    if measured.gap is None:
        return network
    return replace(network, gap=min(measured.gap, network.link.alpha))


def account(made: Plan, here: Profile, rules: Rules) -> dict[str, Any]:
    """Returns the plan and its predictions as plain values, for JSON."""
    return {
        "plan": json.loads(made.to_json()),
        "buckets": [asdict(row) for row in explain(made, here, select_on=rules.select_on)],
        "ranks": made.size,
        "sparse": not made.dense,
        "step_seconds": made.step_seconds,
        "dense_seconds": made.dense_seconds,
        "dense16_seconds": in_16_bits.host_step(here),
        "compute_seconds": made.compute_seconds,
        "speedup": made.speedup,
        "efficiency": made.efficiency,
        "dense_efficiency": made.compute_seconds / made.dense_seconds if made.dense_seconds else 1,
    }


def title(here: Profile) -> str:
    """Returns a line that describes the plan's model and network."""
    devices = here.network.devices
    return (
        f"{len(here.layers)} layers, {here.numel:,} entries, {here.network.size} ranks"
        f"{f', {here.network.local_size} on a node' if here.network.local_size > 1 else ''}, "
        f"{shown_link(here.network.link)}"
        + ("" if devices is None else f"; between devices {shown_link(devices.link)}")
    )


def shown_link(link: Link) -> str:
    """Formats a link's bandwidth and latency for people."""
    rate = quantities.shown_rate(1 / link.beta) if link.beta else "no limit"
    return f"{rate}, {quantities.shown_seconds(link.alpha)} a message"


def show(made: Plan, here: Profile, console: Console, *, assumed: bool, rules: Rules) -> None:
    """Prints the buckets, the predicted steps and the verdict."""
    console.print(f"[bold]{title(here)}[/]\n", soft_wrap=True)
    steps = {"compute only": made.compute_seconds, "dense": made.dense_seconds}
    narrow = in_16_bits.host_step(here)
    if narrow is not None:
        steps["dense, float16"] = narrow
    if made.dense:
        best = planner.make_plan(here, replace(rules, dense=False))
        steps["best sparse plan"] = best.step_seconds
    else:
        show_buckets(made, here, console, rules)
        steps["this plan"] = made.step_seconds
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, seconds in steps.items():
        efficiency = min(1.0, made.compute_seconds / seconds) if seconds else 1.0
        table.add_row(name, f"{1000 * seconds:.4g} ms", f"efficiency {100 * efficiency:.1f} %")
    console.print(table)
    if made.dense:
        verdict = (
            "[bold yellow]Compression will not help here:[/] the plan is dense. A sparse one "
            f"must be {100 * rules.margin:.3g} % faster."
        )
    else:
        verdict = f"[bold green]{made.speedup:.3g} times[/] as fast as dense."
    if assumed:
        verdict += " Dense is taken for an ideal ring; Horovod's own may be slower."
    console.print(f"\n{verdict}", soft_wrap=True)


def show_buckets(made: Plan, here: Profile, console: Console, rules: Rules) -> None:
    """Prints a row for each bucket."""
    table = Table(box=None, pad_edge=False)
    table.add_column("layers, in ready order", overflow="fold")
    for column in ("entries", "density", "collective", "select", "exchange", "ready", "done"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in explain(made, here, select_on=rules.select_on):
        times = (row.select_seconds, row.exchange_seconds, row.ready, row.end)
        how = row.route if row.route != CALLS else "packed" if row.wire == "packed" else ""
        values = row.values if row.values != "float32" else ""
        first = "nodes first" if row.nodes_first else ""
        table.add_row(
            escape(row.layers),
            f"{row.numel:,}",
            f"{row.density:.3g}",
            ", ".join(part for part in (row.collective, first, how, values) if part),
            *(quantities.shown_seconds(seconds) for seconds in times),
        )
    console.print(table)
    console.print()
