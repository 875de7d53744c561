"""An attached exchange, and stand-ins for packages that its metrics are sent to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

LOGGED: list[dict[str, float]] = []  # what runs of wandb were given, one entry a call
GAUGES: dict[str, float] = {}  # Prometheus's, by name
PORTS: list[int] = []  # at which Prometheus may scrape them


class Run:
    """A run of Weights & Biases."""

    def log(self, data: Mapping[str, float], *, commit: bool) -> None:
        """Keeps the data."""
        assert not commit
        LOGGED.append(dict(data))


class Gauge:
    """A gauge of Prometheus; as there, a name may be given once."""

    def __init__(self, name: str, documentation: str) -> None:
        assert name not in GAUGES, f"Duplicated timeseries: {name}"
        assert documentation
        self._name = name
        GAUGES[name] = float("nan")

    def set(self, value: float) -> None:
        """Keeps the value."""
        GAUGES[self._name] = value


def stand_in() -> None:
    """Makes `import wandb` and `import prometheus_client` find stand-ins that remember nothing."""
    for remembered in (LOGGED, GAUGES, PORTS):
        remembered.clear()
    modules: dict[str, dict[str, Any]] = {
        "wandb": {"init": lambda *, project: Run()},
        "prometheus_client": {"Gauge": Gauge, "start_http_server": PORTS.append},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module


def watchable() -> Any:
    """Installs the stand-ins, and returns the attached optimizer of a small model."""
    from tests.docs.ddp_stage import attached

    stand_in()
    return attached(steps=2)[1]
