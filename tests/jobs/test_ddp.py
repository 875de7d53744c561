"""Jobs of torchrun: they train, end when a rank dies, and go on after a restart, bit for bit."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.jobs.launch import free_port, ranks_alone, run
from tests.marks import long

PROGRAM = "tests/jobs/ddp_ranks.py"
STEPS = 14

# Rank 1 stays away from an exchange for longer than its process group's timeout.
ABSENT = """
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from hvd_sparse.ddp import sparse_allreduce

dist.init_process_group("gloo", timeout=timedelta(seconds=3))
ones, residual = torch.ones(2000), torch.zeros(2000)
sparse_allreduce(ones, residual)
time.sleep(60 * dist.get_rank())
sparse_allreduce(ones, residual)
"""


def torchrun(ranks, program, *, options=()):
    """Runs `torchrun --nproc-per-node RANKS PROGRAM...`."""
    launch = ["torchrun", "--nproc-per-node", str(ranks), "--master-port", str(free_port())]
    return run([*launch, *options, *program])


def results(folder, name, ranks):
    return [dict(np.load(folder / f"{name}-{rank}.npz")) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, long(3)])
def test_a_restarted_job_ends_like_one_that_was_not_interrupted(ranks, tmp_path):
    whole = torchrun(ranks, [PROGRAM, str(tmp_path), "whole", str(STEPS)])
    assert whole.status == 0, whole.output
    killed = [PROGRAM, str(tmp_path), "killed", str(STEPS), "--die", str(ranks - 1)]
    restarted = torchrun(ranks, killed, options=["--max-restarts", "1"])
    assert restarted.status == 0, restarted.output
    assert "failed (exitcode: " in restarted.output  # of the one that torchrun saw first
    for ours, theirs in zip(
        results(tmp_path, "whole", ranks), results(tmp_path, "killed", ranks), strict=True
    ):
        assert ours.keys() == theirs.keys()
        assert any(key.startswith("residuals") and part.any() for key, part in ours.items())
        for key, part in ours.items():
            if ranks == 2:
                assert part.tobytes() == theirs[key].tobytes(), key
            else:  # DDP begins with other buckets, which sum three ranks in another order
                np.testing.assert_allclose(part, theirs[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("call", ["step", "save", long("allreduce")])
def test_a_killed_rank_ends_any_call_on_all_others_with_its_number(tmp_path, call):
    ranks = 4 if call == "step" else 3
    program = [PROGRAM, str(tmp_path), "killed", str(STEPS), "--die", "2"]
    program += [] if call == "step" else ["--in", call]
    for rank, (status, output) in enumerate(ranks_alone(ranks, program)):
        if rank == 2:
            assert status == -9
            continue
        assert status == 1, output
        told = re.search(rf"rank {rank} after ([\d.]+) s: PeerLostError: .*rank 2", output)
        assert told, output
        assert float(told[1]) < 10


def test_a_rank_that_stays_away_is_given_up_after_the_timeout_of_its_group(tmp_path):
    (tmp_path / "absent.py").write_text(ABSENT)
    job = torchrun(2, [str(tmp_path / "absent.py")])
    assert job.status == 1
    gave_up = r"gave up waiting for rank 1 after 3 s \(the timeout of the process group\)"
    assert re.search(f"ExchangeTimeoutError: .*{gave_up}", job.output)


@pytest.mark.long  # a restarted job goes on above, and test_ddp_adapters.py trains and resumes
def test_the_example_trains_and_goes_on_from_its_checkpoint(tmp_path):
    example = ["examples/ddp_digits.py", "--checkpoint", str(tmp_path / "last"), "--epochs"]
    first = torchrun(2, [*example, "2"])
    assert first.status == 0, first.output
    assert "epoch 1: loss" in first.output
    again = torchrun(2, [*example, "3"])
    assert again.status == 0, again.output
    assert "epoch 1: loss" not in again.output
    shares = re.findall(r"([\d.]+)% of the test images", first.output + again.output)
    assert len(shares) == 3
    assert float(shares[-1]) > 80
    assert re.search(r"\d+ steps, .* of them sparse", again.output)


@pytest.mark.long  # tests/framework_laws/dropback.py trains few weights on two ranks, too
def test_the_example_of_dropback_sends_fewer_bytes_once_weights_are_frozen():
    options = "--models cnn --factors 1 10 --momenta 0 --seeds 0 --epochs 4 --freeze-epochs 1"
    job = torchrun(2, ["examples/ddp_dropback.py", *options.split()])
    assert job.status == 0, job.output
    rows = re.findall(r"\| cnn \| 0.* \| ([\d.]+) \| ([\d,]+) to ([\d,]+) \|", job.output)
    (whole, first, last), (few, before, after) = [
        (float(share), *(int(one.replace(",", "")) for one in sent)) for share, *sent in rows
    ]
    assert min(whole, few) > 70
    assert first == last == before
    assert after < 0.11 * before
