"""Synthetic profiles for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hvd_sparse.planning.network import distances_below
from hvd_sparse.planning.profile import (
    ONE_CORE,
    GpuLinks,
    LayerProfile,
    Link,
    Machine,
    Network,
    Profile,
)

MACHINE = ONE_CORE
# A machine whose work costs nothing, which leaves the network's times.
IDLE = Machine(
    select_seconds_per_entry=0,
    select_overhead=0,
    merge_seconds_per_entry=0,
    code_seconds_per_entry=0,
)
NOTHING = Link(alpha=0.0, beta=0.0)


def gigabits(rate: float, size: int, *, latency: float = 5e-5, **rest) -> Network:
    """Returns a network of `rate` Gb/s."""
    return Network.assumed(size, rate * 1e9 / 8, latency, **rest)


def profile_of(
    numels: Sequence[int],
    backward: Sequence[float],
    *,
    forward: float = 0.05,
    network: Network | None = None,
    machine: Machine = MACHINE,
) -> Profile:
    """Returns a profile of these layers."""
    layers = tuple(
        LayerProfile(name=f"layer{i}", numel=numel, backward=seconds)
        for i, (numel, seconds) in enumerate(zip(numels, backward, strict=True))
    )
    return Profile(
        layers=layers, forward=forward, network=network or gigabits(1, 16), machine=machine
    )


def random_profile(seed: int, layers: int, **rest) -> Profile:
    """Returns a profile of layers of 10^3 to 10^6.5 entries, with unrelated backward times."""
    random = np.random.default_rng(seed)
    numels = (10 ** random.uniform(3, 6.5, layers)).astype(int).tolist()
    backward = (10 ** random.uniform(-5, -2, layers)).tolist()
    return profile_of(numels, backward, **rest)


def deep_profile(layers: int = 161, *, rate: float = 1.0, size: int = 16) -> Profile:
    """Returns 25.6 million entries, most in the last layers; forward 0.090 s, backward 0.120 s."""
    weights = np.linspace(3, 0.1, layers) ** 2
    numels = np.maximum(1, weights / weights.sum() * 25_600_000).astype(int).tolist()
    backward = np.full(layers, 0.120 / layers).tolist()
    return profile_of(numels, backward, forward=0.090, network=gigabits(rate, size))


def between_devices(
    network: Network,
    rate: float,
    *,
    latency: float = 2e-5,
    merge: Link = NOTHING,
    handing: Link = NOTHING,
) -> Network:
    """Returns the network with devices that are connected at `rate` Gb/s."""
    link = Link(alpha=latency, beta=8e-9 / rate)
    links = tuple((distance, link) for distance in distances_below(network.size))
    return replace(network, devices=GpuLinks(links=links, merge=merge, handing=handing))
