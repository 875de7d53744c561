"""Every benchmark runs, verifies the results that it times, and reports that as JSON."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from hvd_sparse.compression.collectives import COLLECTIVES
from hvd_sparse.compression.sparsifiers import SPARSIFIERS
from tests.jobs.launch import mpirun, run

pytestmark = pytest.mark.long


def read(file):
    result = json.loads(file.read_text())
    assert result["verified"] is True
    assert all(row["timing"]["median"] > 0 for row in result["rows"])
    return {row["name"]: row for row in result["rows"]}


def test_checks():
    options = ["--numel", "500", "--buckets", "3", "--steps", "2", "--repeat", "2"]
    job = run([sys.executable, "benchmarks/checks.py", *options])
    assert job.status == 0, job.output
    assert "without checks" in job.output


def test_kernels(tmp_path):
    file = tmp_path / "result.json"
    options = [
        "--numel", "50000", "--model", "200000", "--density", "0.01", "--steps", "10",
        "--warm-up", "20", "--slow-every", "4", "--block", "500", "--message", "700",
        "--json", str(file),
    ]  # fmt: skip
    job = run([sys.executable, "benchmarks/kernels.py", *options])
    assert job.status == 0, job.output
    results = json.loads(file.read_text())
    assert all(r["verified"] for r in results)
    coding, dense, *results = results
    assert {"packed, bfloat16: all", "packed, binary: all"} <= {r["name"] for r in coding["rows"]}
    assert {"int4: decode", "ternary: add"} <= {row["name"] for row in dense["rows"]}
    assert [r["settings"]["threads"] for r in results] == [1, 2, 1, 2]
    selection = {row["name"]: row["facts"] for row in results[0]["rows"]}
    assert set(SPARSIFIERS) <= set(selection)
    assert any("topk" in name for name in selection)
    assert selection["residual.add_(gradient)"]["x floor"] == 1
    assert any("merge" in row["name"] for row in results[-1]["rows"])


def test_kernels_side_by_side(tmp_path):
    file = tmp_path / "result.json"
    options = [
        "--side-by-side", "--no-selection", "--numel", "30000", "--density", "0.01", "--steps", "3",
        "--block", "300", "--message", "300", "--model", "5000", "--json", str(file),
    ]  # fmt: skip
    job = run([sys.executable, "benchmarks/kernels.py", *options])
    assert job.status == 0, job.output
    _, _, merging, selecting = json.loads(file.read_text())
    assert merging["verified"] is True
    assert selecting["verified"] is True
    rows = {row["name"]: row for row in selecting["rows"]}
    assert rows["copy"]["facts"]["of a copy's"] == 1
    assert rows["torch.topk"]["facts"]["x topk"] == 1
    assert rows["error feedback and taking"]["facts"]["k"] == pytest.approx(300, abs=2)
    absent = {name for name, row in rows.items() if row["timing"] is None}
    assert {name.split()[0] for name in absent} >= {"cub::DeviceSelect,", "cub::DeviceTopK"}
    for name in absent:
        assert "not there: it needs a GPU" in rows[name]["facts"]["of a copy's"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_kernels_refuse_a_device_that_is_not_there():
    job = run([sys.executable, "benchmarks/kernels.py", "--device", "cuda:0"])
    assert job.status == 2
    assert "cuda:0 cannot be used" in " ".join(job.output.split())


def test_streams(tmp_path):
    file, plot = tmp_path / "result.json", tmp_path / "plot.png"
    options = ["--steps", "8", "--json", str(file), "--plot", str(plot), "--markdown"]
    job = run([sys.executable, "benchmarks/streams.py", *options])
    assert job.status == 0, job.output
    assert "| gaussian |" in job.output
    assert plot.stat().st_size > 10_000
    results = json.loads(file.read_text())
    assert len(results) == 4  # two models, two densities
    assert all(r["verified"] for r in results)


def test_traffic(tmp_path):
    file = tmp_path / "result.json"
    options = ["--steps", "8", "--json", str(file)]
    job = run([sys.executable, "benchmarks/traffic.py", *options])
    assert job.status == 0, job.output
    (result,) = json.loads(file.read_text())
    assert result["verified"]
    facts = {row["name"]: row["facts"] for row in result["rows"]}
    bits = {name: one["bits"] for name, one in facts.items()}
    assert bits["digits: float32"] == 32
    assert bits["digits: ternary, scale 1"] < 1.6 < bits["digits: int4"] < 4.5
    assert bits["digits: SBC .01"] < 0.1
    assert facts["digits: SBC .01"]["per sent"] < 10 < facts["digits: TopK .01, packed"]["per sent"]


def test_collectives(tmp_path):
    file = tmp_path / "result.json"
    options = ["--k", "300", "--repetitions", "3", "--json", str(file)]
    job = mpirun(3, ["benchmarks/collectives.py", *options])
    assert job.status == 0, job.output
    rows = read(file)
    for needed in (*COLLECTIVES, "Horovod"):
        assert any(needed in name for name in rows)


def test_measuring(tmp_path):
    file = tmp_path / "result.json"
    options = ["--repetitions", "2", "--json", str(file)]
    job = mpirun(3, ["benchmarks/measuring.py", *options])
    assert job.status == 0, job.output
    assert len(read(file)) == 1
    assert "alone" in run([sys.executable, "benchmarks/measuring.py"]).output


@pytest.mark.timeout(1200)  # it builds HEAD if the sources of the working tree are others
@pytest.mark.parametrize("part", ["coding", "exchange: gtopk", "step: LAGS"])
def test_compare(tmp_path, part):
    file = tmp_path / "result.json"
    effort = ["--starts", "1", "--pairs", "2", "--threshold", "1"]
    options = ["--only", part, *effort, "--json", str(file)]
    job = run([sys.executable, "benchmarks/compare.py", "HEAD", *options], timeout=1000)
    assert job.status == 0, job.output
    result = json.loads(file.read_text())
    assert result["verified"] is True
    assert result["rows"]
    for row in result["rows"]:
        assert row["facts"]["base ms"] > 0, job.output
        assert row["facts"]["pairs"] == 2


def test_quality(tmp_path):
    file = tmp_path / "result.json"
    options = ["--ranks", "3", "--ranks", "8", "--k", "200", "--draws", "1", "--json", str(file)]
    job = run([sys.executable, "benchmarks/quality.py", *options])
    assert job.status == 0, job.output
    for result in json.loads(file.read_text()):
        assert result["verified"]
        selected = {row["name"]: row["facts"]["P = 8: selected"] for row in result["rows"]}
        assert selected["gtopk, slack 1"] < selected["gtopk, slack 2"] < 1
        assert selected["allgather"] == selected["recursive_doubling"] > 1


def test_frameworks(tmp_path):
    file = tmp_path / "result.json"
    options = ["--ranks", "2", "--numel", "20000", "--steps", "3", "--json", str(file)]
    job = run([sys.executable, "benchmarks/frameworks.py", *options])
    assert job.status == 0, job.output
    assert len(read(file)) == 6


def test_watching(tmp_path):
    file = tmp_path / "result.json"
    options = ["--steps", "3", "--width", "64", "--depth", "3", "--json", str(file)]
    job = run([sys.executable, "benchmarks/watching.py", *options])
    assert job.status == 0, job.output
    rows = read(file)
    assert len(rows) == 5
    assert rows["a timeline"]["facts"]["events a step"] > 5


def test_overlap_and_a_waiting_exchange_leaves_the_cores_to_the_model(tmp_path):
    file = tmp_path / "result.json"
    options = ["--repetitions", "5", "--width", "64", "--json", str(file)]
    job = mpirun(4, ["benchmarks/overlap.py", *options])
    assert job.status == 0, job.output
    rows = read(file)
    waiting = [row for name, row in rows.items() if name.startswith("waiting: ")]
    assert len(waiting) >= 2
    # docs/performance_exchange.md has the result of a quiet machine; a busy one adds noise.
    slower = [row["facts"]["slower than the first (%)"] for row in waiting]
    assert max(slower) < 20, job.output


def test_steps_that_do_not_wait_have_the_same_weights(tmp_path):
    file = tmp_path / "result.json"
    shape = ["--depth", "3", "--numel", "20000", "--forward-ms", "6", "--backward-ms", "12"]
    options = ["--forward", *shape, "--repetitions", "2", "--json", str(file)]
    job = mpirun(2, ["benchmarks/overlap.py", *options])
    assert job.status == 0, job.output
    assert set(read(file)) == {
        f"{kind}: {way}"
        for kind in ("sparse", "dense")
        for way in ("usual", "forward, sent as they come", "forward")
    }


def test_scaling(tmp_path):
    file, plot = tmp_path / "result.json", tmp_path / "plot.png"
    options = ["--verify", "64", "--json", str(file), "--plot", str(plot), "--markdown"]
    job = run([sys.executable, "benchmarks/scaling.py", *options])
    assert job.status == 0, job.output
    assert "| gtopk |" in job.output
    assert plot.stat().st_size > 10_000
    bits, *results = json.loads(file.read_text())
    counted = {row["name"]: row["facts"] for row in bits["rows"]}
    assert counted["shard_topk"]["P = 64: counted"] < 1.5
    assert counted["allgather"]["P = 64: counted"] > 5 * counted["shard_topk"]["P = 64: counted"]
    networks = [(r["settings"]["on_a_node"], r["settings"]["gigabits"]) for r in results]
    assert networks == [(nodes, rate) for nodes in (1, 8) for rate in (0.1, 1, 10, 100)]
    assert bits["verified"]
    assert all(r["verified"] for r in results)
    assert all(value > 0 for r in results for row in r["rows"] for value in row["facts"].values())
