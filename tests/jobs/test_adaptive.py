"""LAGS on a slow network measures the link, plans, and chooses the faster sparse steps."""

from __future__ import annotations

import json
import sys

import pytest
import virtual_cluster
from virtual_cluster import VirtualCluster

from tests.jobs.launch import ROOT

pytestmark = pytest.mark.timed
REASON = virtual_cluster.why_not()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_lags_measures_a_slow_link_and_goes_sparse():
    with VirtualCluster(hosts=2, rate="20mbit") as cluster:
        program = [sys.executable, str(ROOT / "tests/jobs/adaptive_ranks.py")]
        job = cluster.run(program, env={"PYTHONPATH": str(ROOT)}, timeout=180)
    line = next(line for line in job.output.splitlines() if line.startswith("{"))
    found = json.loads(line)
    assert found["sparse"], line
    assert found["dense_seconds"] is None, line  # the network has shown that dense steps lose
    assert found["sparse_seconds"] < 0.5 * found["dense_sum"], line
    # 20 Mb/s are 400 ns a byte; a busy machine adds to that.
    assert 350e-9 < found["beta"] < 800e-9, line
    assert 0.4 < found["predicted_dense"] / found["dense_sum"] < 2.5, line
    assert found["steps"].keys() == {"sparse"}, line
