"""A virtual cluster shapes its links, places its ranks and removes all its resources."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cluster_check
import cluster_network
import pytest
import virtual_cluster
from cluster_network import ClusterError, Shape
from virtual_cluster import VirtualCluster

from tests.jobs.launch import ROOT

pytestmark = [pytest.mark.timed, pytest.mark.long]  # a tool of benchmarks
REASON = virtual_cluster.why_not()
builds = pytest.mark.skipif(REASON is not None, reason=str(REASON))
FOLDERS = (cluster_network.NETNS, cluster_network.SHARED_MEMORY, Path(tempfile.gettempdir()))


def test_without_root_a_program_begins_again_as_root_of_a_user_namespace(monkeypatch):
    begun = []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "execvp", lambda file, command: begun.append(command))
    virtual_cluster.enter_user_namespace()
    if not begun:
        pytest.skip("this kernel allows no user namespaces")
    (command,) = begun
    itself = [sys.executable, *sys.argv]
    assert command[-len(itself) :] == itself
    program = "import os; print(os.geteuid(), os.listdir('/run'))"
    inside = [*command[: -len(itself)], sys.executable, "-c", program]
    assert subprocess.run(inside, capture_output=True, text=True).stdout == "0 []\n"


def left_by(pid: int) -> list[str]:
    """Returns the resources of a process's clusters."""
    return [str(p) for folder in FOLDERS for p in folder.glob(f"virtual-cluster-{pid}-*")]


def started(*arguments: str) -> subprocess.Popen[bytes]:
    """Starts the command line; returns the process once its job runs in the second host."""
    command = [sys.executable, "benchmarks/virtual_cluster.py", "--hosts", "2", *arguments]
    process = subprocess.Popen(
        [*command, "--", "sleep", "600"],
        cwd=ROOT,
        # If the tests run in the background, SIGINT is ignored, which child processes inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        second = [Path(path).name for path in left_by(process.pid) if path.endswith("-h1")]
        for pid in cluster_network.processes_in(second):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"):
                    return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError("the job does not start")


@builds
def test_links_have_the_rate_asked_for_and_it_can_change():
    with VirtualCluster(hosts=2, rate="100mbit") as cluster:
        slow = cluster_check.check(cluster, repetitions=3)
        cluster.set_rate("25mbit")
        slower = cluster_check.check(cluster, repetitions=3)
    # A quiet machine keeps 15 %, see docs/virtual_cluster.md.
    assert abs(slow.error(2_000_000)) < 0.3, str(slow)
    assert slow.goodput > 50e6, str(slow)
    ratio = slower.seconds[800_000] / slow.seconds[800_000]
    assert 3 < ratio < 5, f"{slow}\n{slower}"


@builds
@pytest.mark.long  # collectives run below, and several ranks of a host in benchmarks alone
def test_ranks_know_their_hosts_and_exchange_blocks_of_all_lengths():
    with VirtualCluster(hosts=2, rate="1gbit") as cluster:
        program = [sys.executable, str(ROOT / "tests/jobs/virtual_ranks.py"), "2", "2"]
        env = {"PYTHONPATH": str(ROOT)}
        job = cluster.run(program, ranks_per_host=2, env=env, timeout=120)
    for rank in range(4):
        assert f"rank {rank} is done" in job.output
    assert 0 < job.busy <= 1


@builds
def test_a_rank_that_is_ahead_does_not_delay_what_others_wait_for():
    with VirtualCluster(hosts=3, rate="2mbit") as cluster:
        program = [sys.executable, str(ROOT / "tests/jobs/rank_ahead.py")]
        job = cluster.run(program, env={"PYTHONPATH": str(ROOT)}, timeout=120)
    lines = [line for line in job.output.splitlines() if "got it" in line]
    first, second = (float(line.split()[-1]) for line in lines)
    # The ratio is 0.5 if messages follow each other, and 1 if they share the link.
    assert first < 0.65 * second, job.output


@builds
def test_collectives_are_right_over_links_and_none_is_faster_than_its_bytes(tmp_path):
    file = tmp_path / "result.json"
    options = ["--hosts", "4", "--k", "10000", "--rate", "100mbit", "--repetitions", "2"]
    program = [sys.executable, "benchmarks/cluster_collectives.py", *options, "--json", str(file)]
    subprocess.run(program, cwd=ROOT, check=True, timeout=240)
    (result,) = json.loads(file.read_text())
    assert result["verified"]
    rows = {row["name"].partition(": ")[2]: row["facts"] for row in result["rows"]}
    for by in ("mpi", "tcp"):
        sent = {name: rows[f"{name}, {by}"]["bytes"] for name in ("gtopk", "gtopk, packed")}
        assert sent["gtopk, packed"] < 0.7 * sent["gtopk"]
        for less, more in (("gtopk", "allgather"), ("shard_topk", "allgather")):
            assert rows[f"{less}, {by}"]["bytes"] < rows[f"{more}, {by}"]["bytes"]
    # A link lets only one frame of each message pass at once.
    ms_per_byte = 8e3 / 100e6
    exchanges = [facts for facts in rows.values() if "bytes" in facts]
    assert all(facts["fastest"] > 0.8 * ms_per_byte * facts["bytes"] for facts in exchanges)


@builds
def test_ranks_train_between_hosts_that_have_ipv6_alone():
    with VirtualCluster(hosts=2) as cluster:
        jobs = []
        for host in range(2):
            address = f"fd77::{host + 1}"
            enter = f"ip addr flush dev e0 scope global && ip addr add {address}/64 dev e0 nodad"
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
            torchrun += ["--node-rank", str(host), "--master-addr", "fd77::1"]
            program = [*torchrun, str(ROOT / "examples/ddp_digits.py"), "--epochs", "1"]
            job = cluster.popen_on(
                host, ["sh", "-c", f'{enter} && exec "$@"', "sh", *program],
                env={**os.environ, "GLOO_SOCKET_IFNAME": "e0", "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            jobs.append(job)
        outputs = [job.communicate(timeout=120)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], "\n".join(outputs)
    assert "of them sparse" in outputs[0]


@builds
@pytest.mark.parametrize("seconds", [0.02, 0.08])
def test_links_have_the_latency_asked_for_at_any_rate(seconds):
    with VirtualCluster(hosts=2, rate="100mbit", latency=seconds) as cluster:
        found = cluster_check.check(cluster, repetitions=3)
        assert found.alpha == pytest.approx(seconds / 2, rel=0.1, abs=1e-3), str(found)
        assert abs(found.error(2_000_000)) < 0.3, str(found)
        cluster.set_rate("300mbit")  # with larger frames
        faster = cluster_check.check(cluster, repetitions=3)
        assert faster.alpha == pytest.approx(seconds / 2, rel=0.1, abs=1e-3), str(faster)
        assert faster.seconds[800_000] < found.seconds[800_000]


@builds
@pytest.mark.parametrize(("latency", "asked", "made"), [(0.0, "", 1), (0.02, "", 8), (0.0, "3", 3)])
def test_ranks_make_several_connections_where_round_trips_are_long_or_if_asked_to(
    latency, asked, made
):
    with VirtualCluster(hosts=2, rate="100mbit", latency=latency) as cluster:
        program = [sys.executable, str(ROOT / "tests/jobs/slow_network.py")]
        env = {"PYTHONPATH": str(ROOT), "HVD_SPARSE_CONNECTIONS": asked}
        job = cluster.run(program, env=env, timeout=120)
    assert f"connections: {made}\n" in job.output


@builds
def test_a_job_that_fails_or_hangs_raises_with_its_output_and_nothing_is_left():
    with VirtualCluster(hosts=2) as cluster:
        with pytest.raises(ClusterError, match=r"status 3 of[\s\S]*no such thing"):
            cluster.run(["sh", "-c", "echo no such thing; exit 3"], timeout=60)
        with pytest.raises(ClusterError, match=r"still running after 2 s[\s\S]*asleep"):
            cluster.run(["sh", "-c", "echo asleep; sleep 600"], timeout=2)
        assert left_by(os.getpid())
        assert len(cluster.addresses) == 2
    assert left_by(os.getpid()) == []


@builds
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_cluster_leaves_nothing(number):
    process = started()
    namespaces = [Path(path).name for path in left_by(process.pid)]
    process.send_signal(number)
    assert process.wait(30) != 0
    assert left_by(process.pid) == []
    assert cluster_network.processes_in(namespaces) == []


@builds
def test_what_a_killed_cluster_left_goes_with_the_next_one_and_a_living_one_stays():
    killed, living = started(), started("--rate", "10mbit")
    try:
        killed.kill()
        killed.wait()
        assert left_by(killed.pid)
        with VirtualCluster(hosts=1):
            assert left_by(killed.pid) == []
            assert len(left_by(living.pid)) == 5  # two hosts, a bridge and two folders
        assert living.poll() is None
    finally:
        living.send_signal(signal.SIGTERM)
        assert living.wait(30) == 128 + signal.SIGTERM


def test_what_cannot_be_built_is_refused_by_name(monkeypatch):
    with pytest.raises(ClusterError, match=r"hosts must lie in \[1, 200\], got 0"):
        VirtualCluster(hosts=0)
    with pytest.raises(ClusterError, match=r"rate must lie between .* got 'fast'"):
        VirtualCluster(rate="fast")
    with pytest.raises(ClusterError, match=r"latency must lie in \[0, 2\] s, got -1"):
        VirtualCluster(latency=-1)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="needs root"), VirtualCluster():
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ClusterError, match="needs `ip`: install iproute2"), VirtualCluster():
        pass


@pytest.mark.parametrize(
    ("text", "bits"),
    [("100mbit", 1e8), ("1gbit", 1e9), ("2.5Gbit", 2.5e9), (2e7, 2e7), ("300kbit", 3e5)],
)
def test_rates_are_read_as_tc_reads_them(text, bits):
    shape = Shape.of(text)
    assert shape.rate == bits
    assert shape.burst > shape.mtu  # otherwise tbf would drop every full frame


@builds
@pytest.mark.long  # the collectives above have links of the same kind
@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_dense_sums_are_right_over_links_and_none_is_faster_than_its_bytes(
    tmp_path, ranks_per_host
):
    file = tmp_path / "result.json"
    options = ["--hosts", "2", "--numel", "250000", "--rate", "50mbit", "--repetitions", "2"]
    options += ["--ranks-per-host", str(ranks_per_host)]
    program = [sys.executable, "benchmarks/dense_sums.py", *options, "--json", str(file)]
    subprocess.run(program, cwd=ROOT, check=True, timeout=240)
    (result,) = json.loads(file.read_text())
    assert result["verified"]
    facts = {row["name"].partition(": ")[2]: row["facts"] for row in result["rows"]}
    assert len(facts) == (8 if ranks_per_host == 1 else 6)
    narrow = {name: one for name, one in facts.items() if not name.endswith("ternary")}
    assert all(one["x ring"] > 0.9 for one in narrow.values())
    assert facts["ours, int4"]["x dense"] < facts["ours, float32"]["x dense"] / 2
