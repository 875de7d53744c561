"""Elastic jobs: ranks join, leave and are killed; residuals follow the policy.

The program itself checks each time that residuals add up and replicas are equal.
"""

from __future__ import annotations

import pytest

from tests.jobs.elastic_job import HOSTS, ElasticJob
from tests.marks import long

PROGRAM = "tests/jobs/elastic_ranks.py"
TENSORFLOW = "tests/jobs/elastic_tensorflow_ranks.py"

# Tests on two ranks cover the differences: test_elastic.py and test_elastic_keras.py in
# tests/parallel_tensorflow.
interfaces = pytest.mark.parametrize(
    "interface",
    [[PROGRAM], long([TENSORFLOW]), long([TENSORFLOW, "--keras"])],
    ids=["torch", "tape", "keras"],
)


@pytest.mark.parametrize("compression", ["lags", long("ternary"), long("local")])
@interfaces
def test_a_rank_that_joins_starts_from_its_share_and_a_killed_one_takes_only_its_own(
    interface, compression, tmp_path
):
    if compression == "local" and interface == [TENSORFLOW]:
        pytest.skip("a tape takes no steps, so it has no local ones")
    program = [*interface, "3", "2", "--compression", compression]
    with ElasticJob(tmp_path, program, hosts=HOSTS[:2]) as job:
        job.wait_for("three steps as 2")
        job.set_hosts(HOSTS)
        joined = job.wait_for(r"reasons \['new', 'update'\] size 3 total (\d+) shares \[(.*)\]")
        job.wait_for("reached 3")
        job.kill(1)
        left = job.wait_for(r"reasons \['failure'\] size 2 total (\d+) shares \[(.*)\]")
        assert job.finish() == 0, job.output
    for found in (joined, left):
        shares = [int(share) for share in found[2].split(",")]
        assert int(found[1]) > 0
        assert min(shares) > 0, job.output
        assert max(shares) < 2 * min(shares), job.output
    assert "the residuals of 1 of 3 ranks are lost with them" in job.output
    assert "done after" in job.output


@pytest.mark.long
@interfaces
def test_ranks_keep_their_own_when_all_are_back_and_one_that_is_taken_out_hands_over(
    interface, tmp_path
):
    program = [*interface, "3", "2", "--compression", "adaptive", "--fails"]
    with ElasticJob(tmp_path, program, hosts=HOSTS) as job:
        job.wait_for(r"reasons \['failure'\] size 3")
        job.wait_for("reached 3")
        job.set_hosts(HOSTS[:2])
        job.wait_for(r"reasons \['update'\] size 2")
        assert job.finish() == 0, job.output
    assert "are lost" not in job.output
    assert "done after" in job.output


@pytest.mark.long
@interfaces
def test_ranks_go_on_from_zero_where_that_is_asked_for_when_rank_0_has_died_in_a_step(
    interface, tmp_path
):
    program = [*interface, "2", "--policy", "reset", "--compression", "gtopk", "--dies", "0"]
    with ElasticJob(tmp_path, program, hosts=HOSTS) as job:
        job.wait_for("met (PeerLost|HorovodInternal)Error")
        job.wait_for(r"reasons \['failure'\] size 2 total 0")
        assert job.finish() == 0, job.output
    assert "what was kept is reset" in job.output
    assert "done after" in job.output


@pytest.mark.long
@interfaces
def test_a_rank_that_is_left_alone_keeps_what_it_holds_for_the_next_to_join(interface, tmp_path):
    program = [*interface, "2", "1", "2"]
    with ElasticJob(tmp_path, program, hosts=HOSTS[:2], min_ranks=1) as job:
        job.wait_for("reached 2")
        job.kill(1)
        alone = job.wait_for(r"reasons \['failure'\] size 1 total (\d+)")
        job.wait_for("reached 1")
        job.set_hosts(HOSTS)
        joined = job.wait_for(r"reasons \['new', 'update'\] size 2 total (\d+)")
        assert job.finish() == 0, job.output
    assert int(alone[1]) == int(joined[1]) > 0
    assert "the residuals of 1 of 2 ranks are lost with them" in job.output


@pytest.mark.long
@pytest.mark.parametrize("example", ["pytorch_digits_elastic.py", "tensorflow2_digits_elastic.py"])
def test_the_example_goes_on_with_a_rank_more_and_with_one_less(example, tmp_path):
    program = [f"examples/{example}", "--epochs", "500"]
    with ElasticJob(tmp_path, program, hosts=HOSTS[:2]) as job:
        job.wait_for("epoch 2/500 with 2 ranks")
        job.set_hosts(HOSTS)
        found = job.wait_for(r"with 3 ranks: test accuracy (\d+\.\d+) %")
        job.set_hosts(HOSTS[:2])
        job.wait_for("with 2 ranks: test accuracy")
    assert float(found[1]) > 60, job.output
