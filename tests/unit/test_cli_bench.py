"""The command hvd-sparse bench: its options, its tables and its verdict; no job is started."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hvd_sparse import cli
from hvd_sparse.bench import bench
from hvd_sparse.bench.results import Results, Row, Settings, Timing, winners
from hvd_sparse.cli import bench_ranks
from hvd_sparse.cli.bench import show, verdict
from hvd_sparse.cli.bench_ranks import Library, library_of
from hvd_sparse.cli.console import wide_console
from hvd_sparse.compression import LAGS
from hvd_sparse.errors import UnavailableError
from hvd_sparse.planning.cluster import Cluster
from hvd_sparse.ranks.world import World
from tests.profiles import MACHINE, gigabits
from tests.unit.test_cli_plan import said


def row(numel, collective, milliseconds, dense):
    timing = Timing(median=milliseconds / 1e3, low=0.9e-3 * milliseconds, high=2e-3 * milliseconds)
    return Row(
        numel=numel,
        k=numel if collective in ("dense", "shard_sum") else numel // 100,
        collective=collective,
        wire="plain",
        values="int8" if collective == "shard_sum" else "float32",
        exchange=timing,
        total=timing,
        predicted_exchange=milliseconds / 2e3,
        predicted_total=milliseconds / 4e3,
        speedup=dense / milliseconds,
    )


def results(**milliseconds):
    """Returns results for sizes given as n100=(dense, gtopk, allgather), in milliseconds."""
    rows = []
    for name, (dense, gtopk, allgather) in milliseconds.items():
        numel = int(name[1:])
        rows += [
            row(numel, "dense", dense, dense),
            row(numel, "gtopk", gtopk, dense),
            row(numel, "allgather", allgather, dense),
        ]
    return Results(
        settings=Settings(numels=tuple(int(name[1:]) for name in milliseconds), density=0.01),
        library="Horovod",
        transport="tcp",
        cluster=Cluster(network=gigabits(1, 4), machine=MACHINE),
        rows=tuple(rows),
    )


MIXED = results(n1000=(1.0, 2.0, 1.0), n2000=(2.0, 1.0, 1.5), n4000=(9.0, 3.0, 4.5))


class FakeRanks:
    """Rank 0 of four ranks, without a job."""

    size = 4

    def __init__(self):
        self.world = World(0, self.size)
        object.__setattr__(self.world, "allgather_object", lambda thing, kind: [thing] * self.size)

    def connect(self):
        return None

    def measure(self, exchange):
        return MIXED.cluster


@pytest.fixture
def run(monkeypatch):
    """Returns a function that runs the command as rank 0 with the results MIXED."""
    asked = []

    def fake(settings, ranks, exchange, measured):
        asked.append(settings)
        return replace(MIXED, cluster=measured)

    def fake_ranks(library):
        invoke.libraries.append(library)
        return nullcontext(FakeRanks())

    monkeypatch.setattr(bench_ranks, "ranks_of", fake_ranks)
    monkeypatch.setattr(bench, "run", fake)

    def invoke(*arguments):
        return CliRunner().invoke(cli.app, ["bench", *arguments])

    invoke.asked = asked
    invoke.libraries = []
    return invoke


def test_options_say_what_is_timed(run):
    assert (
        run("--numel", "7", "--numel", "9", "--density", ".5", "--repetitions", "3").exit_code == 0
    )
    assert run.asked == [Settings(numels=(7, 9), density=0.5, repetitions=3)]
    assert run().exit_code == 0
    assert run.asked[1] == Settings(density=LAGS().density)


def test_json_holds_every_row_and_the_verdict(run, tmp_path):
    printed = run("--json", "-")
    found = json.loads(printed.output)
    file = tmp_path / "bench.json"
    assert "gtopk" in run("--json", str(file)).output
    assert json.loads(file.read_text()) == found
    assert len(found["rows"]) == len(MIXED.rows)
    assert found["library"] == "Horovod"
    assert found["transport"] == "tcp"
    assert found["rows"][1]["total"]["median"] == MIXED.rows[1].total.median
    assert found["sparse_wins_at"] == [2000, 4000]
    assert Cluster.from_json(json.dumps(found["cluster"])) == MIXED.cluster


def test_the_saved_cluster_is_what_was_measured(run, tmp_path):
    file = tmp_path / "cluster.json"
    assert run("--save", str(file)).exit_code == 0
    assert Cluster.load(file) == MIXED.cluster


def test_the_plot_is_drawn(run, tmp_path):
    file = tmp_path / "bench.png"
    assert run("--plot", str(file)).exit_code == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_the_tables_hold_network_times_ratios_and_speedups():
    console = Console(width=120, record=True, highlight=False)
    show(MIXED, console)
    text = console.export_text()
    assert "1 Gb/s" in text
    assert "4 ranks, 1 on a node, over TCP" in text
    assert "messages to rank r ^ 2" in text
    assert "dense allreduce of Horovod" in text
    lines = [line.split() for line in text.splitlines()]
    (line,) = (line for line in lines if line[:1] == ["gtopk"] and line[-1] == "3")
    assert line[1:3] == ["3", "ms"]
    assert line.count("2.00") == 1  # measured / predicted
    assert line.count("4.00") == 1  # with selection


def test_the_verdict_names_the_size_from_which_sparse_wins():
    assert winners(MIXED) == (2000, 4000)
    assert "wins here at density 0.01 from 2,000 entries on: gtopk is 3 times" in verdict(MIXED)
    # gtopk drops entries, so LAGS does not take it by itself
    assert verdict(MIXED).endswith("Of those that LAGS chooses from, allgather is 2 times as fast.")
    always = results(n1000=(2.0, 1.0, 1.0), n2000=(2.0, 2.0, 1.0))
    assert "at every size from 1,000 on: allgather is 2 times" in verdict(always)
    assert "LAGS" not in verdict(always)
    once = results(n1000=(2.0, 1.0, 1.0), n2000=(2.0, 2.0, 2.0))
    assert "for 1,000 entries, not for others" in verdict(once)


def test_it_is_said_plainly_when_compression_does_not_help():
    never = results(n1000=(1.0, 2.0, 1.6), n2000=(1.0, 1.25, 4.0))
    assert winners(never) == ()
    assert verdict(never).startswith("Compression will not help here: at density 0.01")
    assert "gtopk of 2,000 entries, 0.8 times as fast" in verdict(never)
    within_noise = results(n1000=(1.04, 1.0, 2.0))
    assert winners(within_noise) == ()
    said = "no sparse exchange was 5 % faster than dense at any size. The best was gtopk of 1,000"
    assert f"{said} entries, 1.04 times as fast" in verdict(within_noise)


@pytest.mark.parametrize("sparse_wins", [True, False])
def test_a_dense_sum_that_wins_is_named_beside_sparse_exchange(sparse_wins):
    found = MIXED if sparse_wins else results(n1000=(1.0, 2.0, 1.6), n2000=(1.0, 1.25, 4.0))
    own = row(2000, "shard_sum", 0.5, 2.0)
    both = replace(found, rows=(*found.rows, own))
    named = "chooses from, shard_sum, int8 is 4 times as fast as dense at 2,000 entries."
    assert winners(both) == winners(found)
    assert verdict(both).endswith(named)
    assert verdict(both).startswith("Sparse exchange wins" if sparse_wins else "At density 0.01 no")
    slow = row(2000, "shard_sum", 2.0, 2.0)
    for other in (slow, replace(own, values="int4")):  # models learn less with int4
        assert verdict(replace(found, rows=(*found.rows, other))) == verdict(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--density", "0"), "density must lie in (0, 1], got 0.0"),
        (("--density", ""), "'--density': must be a number, got ''"),
        (("--numel", "0"), "numel must lie in [1, 2147483647], got 0"),
        (("--numel", "100", "--numel", "1k"), "'--numel': must be a whole number, got '1k'"),
        (("--repetitions", "9.5"), "'--repetitions': must be a whole number, got '9.5'"),
        (("--repetitions", "1"), "repetitions must be at least 2, got 1"),
        (("--save", "/nowhere/at/all.json"), "got /nowhere/at/all.json: there is no folder"),
        (("--json", "/"), "--json must name a file that can be written, got /: that is a folder"),
        (("--plot", "/nowhere/at/all.png"), "--plot must name a file that can be written"),
        (("--plot", "bench.xyz"), "--plot must end in .png, .pdf, .svg, got bench.xyz"),
    ],
)
def test_a_wrong_option_is_explained_before_anything_is_timed(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in said(result)
    assert run.asked == []


@pytest.mark.parametrize("option", ["--save", "--json", "--plot"])
def test_a_fifo_is_refused_since_all_ranks_would_wait_for_its_reader(run, tmp_path, option):
    os.mkfifo(tmp_path / "bench.png")
    result = run(option, str(tmp_path / "bench.png"))
    assert result.exit_code == 2
    assert f"{option} must name a file that can be written" in said(result)
    assert "that is a FIFO" in said(result)
    assert run.asked == []


def test_a_plot_without_matplotlib_is_refused_before_anything_is_timed(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--plot", str(tmp_path / "bench.png"))
    assert result.exit_code == 2
    assert "pip install matplotlib" in said(result)
    assert run.asked == []


def test_a_job_of_one_rank_is_told_what_to_run(run, monkeypatch):
    monkeypatch.setattr(FakeRanks, "size", 1)
    result = run()
    assert result.exit_code == 2
    assert "horovodrun -np 4 hvd-sparse bench" in said(result)
    assert "torchrun --nproc-per-node 4 -m hvd_sparse bench" in said(result)


def test_a_wrong_sum_ends_with_status_1(run, monkeypatch):
    def wrong(*_):
        raise bench.VerificationError("gtopk came to a wrong sum")

    monkeypatch.setattr(bench, "run", wrong)
    result = run()
    assert result.exit_code == 1
    assert "gtopk came to a wrong sum" in result.output


@pytest.mark.parametrize("missing", ["torch", "horovod.torch"])
def test_without_horovod_and_torch_it_is_said_what_is_missing(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UnavailableError, match=r"takes Horovod with PyTorch .*hvd-sparse doctor"):
        bench_ranks.ranks_of(Library.HOROVOD).__enter__()


def test_under_torchrun_it_is_said_that_torch_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnavailableError, match=r"under torchrun takes PyTorch .*hvd-sparse doctor"):
        bench_ranks.ranks_of(Library.TORCH).__enter__()


def test_a_job_that_torch_cannot_connect_says_why(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UnavailableError, match=r"torch.distributed cannot connect .*RANK"):
        bench_ranks.ranks_of(Library.TORCH).__enter__()


def test_the_group_of_torchrun_ends_with_the_bench(monkeypatch):
    import torch.distributed as dist

    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with bench_ranks.ranks_of(Library.TORCH) as ranks:
        assert ranks.world.size == 1
        assert dist.is_initialized()
    assert not dist.is_initialized()


BY_HAND = dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "1")


@pytest.mark.parametrize(
    ("environment", "library"),
    [
        ({}, Library.HOROVOD),
        ({"HOROVOD_RANK": "0"}, Library.HOROVOD),
        ({"OMPI_COMM_WORLD_RANK": "0"}, Library.HOROVOD),
        ({**BY_HAND, "TORCHELASTIC_RUN_ID": "none"}, Library.TORCH),
        (BY_HAND, Library.TORCH),
        ({**BY_HAND, "TORCHELASTIC_RUN_ID": "none", "PMIX_RANK": "0"}, Library.TORCH),
        ({**BY_HAND, "OMPI_COMM_WORLD_RANK": "0"}, Library.HOROVOD),
        ({**BY_HAND, "TORCHELASTIC_RUN_ID": "none", "HOROVOD_RANK": "0"}, Library.HOROVOD),
        ({"RANK": "0", "WORLD_SIZE": "2"}, Library.HOROVOD),
    ],
)
def test_the_launcher_says_which_library_runs_the_ranks(environment, library):
    assert library_of(environment) is library


def test_an_option_names_the_library_and_else_the_launcher_does(run, monkeypatch):
    monkeypatch.setattr(bench_ranks, "library_of", lambda environment: Library.TORCH)
    assert run("--library", "horovod").exit_code == 0
    assert run().exit_code == 0
    assert run.libraries == [Library.HOROVOD, Library.TORCH]
    wrong = run("--library", "mpi")
    assert wrong.exit_code == 2
    assert "'mpi' is not one of 'horovod', 'torch'" in said(wrong)


class Terminal(io.StringIO):
    """A stand-in for the output that mpirun gives a rank."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environment", "styled"),
    [
        ({}, True),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "4", "FORCE_COLOR": "1"}, True),
    ],
)
def test_a_rank_under_mpirun_prints_escape_codes_only_where_asked_to(
    monkeypatch, environment, styled
):
    for name in ("OMPI_COMM_WORLD_SIZE", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    wide_console().print("[bold]best[/]")
    assert ("\x1b[" in sys.stdout.getvalue()) == styled
