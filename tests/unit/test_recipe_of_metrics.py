"""The page's code for Weights & Biases and Prometheus hands on each metric, to stand-ins."""

from __future__ import annotations

import sys

import pytest
import torch.distributed as dist

from hvd_sparse.stats.metrics import metrics_of, sink_of
from hvd_sparse.stats.step_stats import StepStats
from tests.docs import watch_stage
from tests.docs.pages import pages

pytestmark = pytest.mark.long  # it looks at recipes and their page alone

(PAGE,) = (page for page in pages() if page.name == "docs/recipes.md")


class Watched:
    """An exchange that reports one step as soon as it is watched."""

    metrics = metrics_of(StepStats(step=7, dense_bytes=80, transport="tcp"))

    def watch(self, target, *, every=1):
        assert every >= 1
        sink_of(target)(self.metrics, 7)
        sink_of(target)(self.metrics, 8)


@pytest.fixture(params=[0, 1])
def rank(request, monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: request.param)
    return request.param


def watch(package, monkeypatch):
    """Runs the page's block for a package."""
    for name in ("wandb", "prometheus_client"):
        monkeypatch.setitem(sys.modules, name, None)  # restores it in the end
    watch_stage.stand_in()
    (block,) = (block for block in PAGE.blocks if block.runs and package in block.code)
    exec(compile(block.code, block.place, "exec"), {"dist": dist, "exchange": Watched()})


def test_weights_and_biases_are_told_each_metric(rank, monkeypatch):
    watch("wandb", monkeypatch)
    told = {f"hvd_sparse/{name}": value for name, value in Watched.metrics.items()}
    assert told["hvd_sparse/dense_bytes"] == 80
    assert ([told, told] if rank == 0 else []) == watch_stage.LOGGED


def test_prometheus_has_a_gauge_for_each_metric(rank, monkeypatch):
    watch("prometheus_client", monkeypatch)
    told = {f"hvd_sparse_{name}": value for name, value in Watched.metrics.items()}
    assert (told if rank == 0 else {}) == watch_stage.GAUGES
    assert ([9400] if rank == 0 else []) == watch_stage.PORTS
