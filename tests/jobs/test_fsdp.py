"""Jobs of sharded models: a rank that dies or errs ends all others of the mesh, in seconds."""

from __future__ import annotations

import re

import pytest

from tests.jobs.launch import ROOT, free_port, ranks_alone, run
from tests.jobs.test_ddp import torchrun
from tests.jobs.test_ddp_adapters import packages
from tests.marks import long

__all__ = ["packages"]

PROGRAM = "tests/jobs/fsdp_ranks.py"
RANKS = 4


@pytest.mark.parametrize(
    "phase",
    [long("forward"), long("backward"), "commit", long("between"), long("meeting"), "error"],
)
def test_a_rank_that_dies_or_errs_ends_all_others(phase):
    *others, (status, last) = ranks_alone(RANKS, [PROGRAM, phase])
    assert status == (1 if phase == "error" else -9), last
    for rank, (status, output) in enumerate(others):
        assert status == 1, output
        told = re.search(rf"rank {rank} after ([\d.]+) s: ", output)
        assert told, output
        assert float(told[1]) < 10
    told = "\n".join([*(output for _, output in others), last])
    if phase == "error":
        assert "ended the exchange: unhandled RuntimeError: a fault of the program" in told
    else:
        name = (
            r"rank 1 of 2 has died .* in exchange '[a-z0-9 ]*optimizer 1 \(ranks [12], 3 of the job"
        )
        assert re.search(name, told), told


@pytest.mark.long  # tests/parallel_fsdp trains, saves and loads
def test_the_example_trains_and_goes_on_from_its_checkpoint(tmp_path):
    example = ["examples/fsdp_digits.py", "--checkpoint", str(tmp_path / "last"), "--epochs"]
    first = torchrun(4, [*example, "2"])
    assert first.status == 0, first.output
    assert "epoch 1: loss" in first.output
    again = torchrun(4, [*example, "3"])
    assert again.status == 0, again.output
    assert "epoch 1: loss" not in again.output
    shares = re.findall(r"([\d.]+)% of the test images", first.output + again.output)
    assert len(shares) == 3
    assert float(shares[-1]) > 80


@pytest.mark.long
def test_lightning_trains_a_sharded_model(packages):
    launch = ["torchrun", "--nproc-per-node", "4", "--master-port", str(free_port())]
    job = run([*launch, "examples/fsdp_lightning.py"], PYTHONPATH=f"{packages}:{ROOT}")
    assert job.status == 0, job.output
    assert re.search(r"92 steps, 92 of them sparse", job.output)
    assert float(re.search(r"test accuracy ([\d.]+) %", job.output)[1]) > 80
