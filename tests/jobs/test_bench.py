"""hvd-sparse bench as a job: rank 0 reports, a plan accepts its file, errors end all ranks."""

from __future__ import annotations

import json
import sys

import pytest

from hvd_sparse.compression.collectives import COLLECTIVES
from hvd_sparse.planning.cluster import Cluster
from tests.jobs.launch import mpirun, run
from tests.profiles import deep_profile


def bench(ranks, *options):
    return mpirun(ranks, ["-m", "hvd_sparse", "bench", *options])


def bench_under_torchrun(ranks, *options):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return run([sys.executable, *launcher, "-m", "hvd_sparse", "bench", *options])


@pytest.mark.long  # tools/try_torch_alone.py runs it without Horovod
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_bench_times_every_collective_and_saves_what_a_plan_takes(tmp_path, ranks):
    result, saved, model = (
        tmp_path / name for name in ("bench.json", "cluster.json", "model.json")
    )
    options = ["--numel", "2000", "--numel", "50000", "--density", "0.01", "--repetitions", "2"]
    job = bench(ranks, *options, "--json", str(result), "--save", str(saved))
    assert job.status == 0, job.output
    assert job.output.count(f"{ranks} ranks") == 1  # on rank 0 only
    assert "dense allreduce of Horovod" in job.output
    assert "than dense" in job.output or "as fast as dense" in job.output
    found = json.loads(result.read_text())
    for numel in (2000, 50000):
        named = {row["collective"] for row in found["rows"] if row["numel"] == numel}
        assert named == {"dense", "shard_sum", *COLLECTIVES}
    measured = Cluster.load(saved)
    assert measured.network.size == ranks
    assert measured.network.dense.seconds(1 << 20) > 0
    assert measured.network.dense16.seconds(1 << 20) > 0
    assert measured.machine.exchange_overhead > 0

    deep_profile(5).save(model)
    options = ["plan", "--profile", str(model), "--network", str(saved), "--json"]
    plan = run(["hvd-sparse", *options])
    assert plan.status == 0, plan.output
    assert json.loads(plan.output)["ranks"] == ranks


@pytest.mark.long  # tools/try_torch_alone.py runs it, and the test above reads its results
def test_a_bench_under_torchrun_compares_with_torch_distributed(tmp_path):
    result, saved = tmp_path / "bench.json", tmp_path / "cluster.json"
    options = ["--numel", "50000", "--repetitions", "2", "--json", str(result)]
    job = bench_under_torchrun(2, *options, "--save", str(saved))
    assert job.status == 0, job.output
    assert job.output.count("2 ranks, 2 on a node, over TCP") == 1  # on rank 0 only
    assert "dense allreduce of torch.distributed" in job.output
    assert "Horovod" not in job.output
    found = json.loads(result.read_text())
    assert (found["library"], found["transport"]) == ("torch.distributed", "tcp")
    named = {row["collective"] for row in found["rows"]}
    assert named == {"dense", "shard_sum", *COLLECTIVES}
    network = Cluster.load(saved).network
    assert network.dense.seconds(1 << 20) > 0
    assert network.dense16.seconds(1 << 20) > 0


@pytest.mark.long  # the next test shows it under mpirun
def test_a_wrong_option_under_torchrun_is_explained(tmp_path):
    job = bench_under_torchrun(2, "--save", str(tmp_path / "missing" / "cluster.json"))
    assert job.status != 0
    assert "there is no folder" in job.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--density", "3"), "density must lie in"),
        pytest.param(
            ("--save", "/nowhere/at/all.json"),
            "there is no folder /nowhere/at",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_wrong_option_ends_all_ranks_with_status_2(options, message):
    job = bench(2, *options)
    assert job.status == 2, job.output
    assert message in job.output


@pytest.mark.long  # tests/unit/test_cli_bench.py covers it without Horovod
def test_one_rank_alone_is_told_what_to_run():
    job = bench(1)
    assert job.status == 2, job.output
    assert "horovodrun -np 4 hvd-sparse" in job.output
