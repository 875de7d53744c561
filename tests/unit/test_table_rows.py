"""Rows of the papers' tables, and their division into jobs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from clusters import patient_waits, slack_seconds
from memory import GIB
from paper_figures import GTOPK_TABLE, LAGS_TABLE
from paper_tables import DILATION, SWEEP, jobs_of_papers, jobs_of_sweep, results_of
from table_files import row_of, save, saved_rows
from table_plots import plot_methods, plot_rates
from table_rows import (
    Measurement,
    envelope_row,
    overlap_limit,
    prediction_rows,
    ratios_row,
    ring_bound,
)
from table_runs import Effort, jobs_of, measure, timeline_file

from hvd_sparse.compression.collectives import COLLECTIVES
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.profile import LayerProfile, Machine, Profile

pytestmark = pytest.mark.long  # it looks at benchmarks alone

RESNET = LAGS_TABLE[0]
LAGS = "LAGS(density=0.001, warmup=None)"
EFFORT = Effort(repeat=20, steps=3, dense_steps=1, turns=2, untimed=0, memory=20 * GIB, timeout=1)


def measurement(**seconds):
    return Measurement(
        name="a row", paper=RESNET, ranks=16, rate=1e9, seconds=seconds,
        cpu=dict.fromkeys(seconds, 0.1),
    )  # fmt: skip


ROW = measurement(
    **{"compute only": 0.2, "dense, MPI": 3.0, "dense, Gloo": 2.0, "SLGS": 0.5, "LAGS": 0.25}
)


def test_the_ring_bound_is_the_bytes_of_a_ring_over_the_rate():
    ring = 2 * 15 / 16 * 4 * 25_557_032 / 125e6
    assert ring_bound(RESNET, 16, 1e9) == pytest.approx(0.09 + ring)
    assert ring_bound(RESNET, 16, 1e12) == RESNET.compute


@pytest.mark.parametrize(
    ("forward", "backward", "exchange", "limit"),
    [(0, 1, 1, 2), (1, 1, 1, 1.5), (1, 1, 0, 1), (1, 0, 1, 1)],
)
def test_overlap_gains_at_most_the_smaller_of_backward_and_exchange(
    forward, backward, exchange, limit
):
    assert overlap_limit(forward, backward, exchange) == pytest.approx(limit)


def test_ratios_are_those_of_the_times_and_stand_beside_the_published_ones():
    facts = ratios_row(ROW, "LAGS", "SLGS").facts
    expected = {
        "over dense": 8.0,  # the better of the two
        "ceiling": 10.0,
        "published": 1.45 / 0.51,
        "over SLGS": 2.0,
        "ceiling over SLGS": 2.5,
        "published over SLGS": 0.67 / 0.51,
        "efficiency (%)": 80.0,
        "published (%)": 100 * 0.21 / 0.51,
    }
    for name, value in expected.items():
        assert facts[name] == pytest.approx(value), name
    limit = (0.09 + 0.12 + 0.3) / (0.09 + 0.3)
    assert facts["overlap gain reached (%)"] == pytest.approx(100 * (2 - 1) / (limit - 1))


@pytest.mark.parametrize(
    ("lags", "dense", "best", "envelope"),
    [
        (1.04, 2.0, "LAGS, gtopk", "yes"),
        (1.06, 2.0, "LAGS, gtopk", "no"),
        (1.04, 1.01, "LAGS, gtopk", "no"),  # dense is close, too
        (0.915, 0.9, "dense, MPI", "yes"),
        (0.93, 0.9, "dense, MPI", "no"),
    ],
)
def test_the_lower_envelope_is_within_5_percent_of_any_choice_and_2_of_dense(
    lags, dense, best, envelope
):
    row = measurement(
        **{"compute only": 0.5, "dense, MPI": dense, "LAGS, gtopk": 1.0, "LAGS": lags}
    )
    facts = envelope_row(row, "LAGS").facts
    assert (facts["best pinned"], facts["within 5 and 2 %"]) == (best, envelope)


def test_the_sweep_pins_every_collective():
    (job,) = jobs_of_sweep(RESNET, 8, [1e9])
    pinned = {mode for mode in job.modes.values() if "collective=" in mode}
    assert len(pinned) == len(COLLECTIVES)
    assert all(any(f"'{name}'" in mode for mode in pinned) for name in COLLECTIVES)
    assert {"Dense, float32", "Dense, bfloat16", "Dense, int8"} <= set(job.modes)


def test_a_sweep_may_take_some_methods():
    (job,) = jobs_of_sweep(RESNET, 8, [1e9], ["LAGS", "Dense, int8"])
    assert set(job.modes) == {"LAGS", "Dense, int8"}
    with pytest.raises(typer.BadParameter, match=r"method must be one of .*, got 'nonsense'"):
        jobs_of_sweep(RESNET, 8, [1e9], ["nonsense"])


def test_the_faster_the_network_of_a_sweep_the_larger_its_dilation_may_be():
    dilations = [job.dilation for job in jobs_of_sweep(RESNET, 8, list(SWEEP))]
    assert dilations == sorted(dilations)
    (other,) = jobs_of_sweep(RESNET, 8, [2e9])
    assert other.dilation == DILATION


def test_rows_come_back_from_a_file_and_belong_to_their_jobs(tmp_path):
    file = tmp_path / "table.json"
    assert saved_rows(file) == []
    jobs = jobs_of_papers(LAGS_TABLE, [16], gtopk=False)
    row, _ = measured(jobs[0])
    save(file, results_of("lags", [row], {}), [row])
    back = saved_rows(file)
    assert [row_of(job, back) for job in jobs] == [row, None, None]
    assert row_of(replace(jobs[0], rate=1e8), back) is None
    (of_8,), (of_4,) = (jobs_of_sweep(RESNET, ranks, [1e9]) for ranks in (8, 4))
    swept, _ = measured(of_8)
    assert row_of(of_8, [swept]) == swept
    assert row_of(of_4, [swept]) is None


def test_modes_share_a_job_where_the_memory_allows():
    (job,) = jobs_of_papers(LAGS_TABLE[:1], [16], gtopk=False)
    (together, over_mpi), (dense, over_gloo) = jobs_of(job, 16, 100 * GIB)
    assert together == ["compute", "dense", *job.modes.values()]
    assert (dense, over_mpi, over_gloo) == (["dense"], False, True)
    apart = jobs_of(job, 16, GIB)
    assert [modes for modes, gloo in apart if not gloo] == [
        ["compute", "dense"],
        *(["compute", mode] for mode in job.modes.values()),
    ]


def settled(dilation):
    """Returns a tuner's findings with these waits and links, in the form of a replay."""
    network = Network.assumed(16, 125e6 / dilation, 0.0)
    machine = Machine(
        select_seconds_per_entry=0.0, select_overhead=0.0, merge_seconds_per_entry=0.0,
        code_seconds_per_entry=0.0,
    )  # fmt: skip
    layer = LayerProfile(name="only", numel=25_000_000, backward=0.12 * dilation)
    profile = Profile(layers=(layer,), forward=0.09 * dilation, network=network, machine=machine)
    return {
        "sparse": True,
        "predicted": {"sparse": 0.24 * dilation, "dense": 1.6 * dilation},
        "profile": json.loads(profile.to_json()),
    }


class Pretended:
    """Hosts on which a step takes the time that a function returns; they run nothing."""

    interface = "e0"
    frame = 0

    def __init__(self, number, rate, seconds, cpu=0.3, stretch=1.0):
        self.number, self.rate = number, rate
        self.seconds, self.cpu, self.stretch = seconds, cpu, stretch

    def address(self):
        return "10.0.0.1:29500"

    def run(self, program, *, env, timeout):
        options = [option.removeprefix("--").partition("=") for option in program[1:]]
        file = Path(next(value for name, _, value in options if name == "json"))
        if program[0].endswith("messages.py"):
            sizes = (8_000, 2_000_000)
            messages = [
                {"bytes": size, "seconds": 1e-4 + self.stretch * 8 * size / self.rate}
                for size in sizes
            ]
            file.write_text(json.dumps(messages))
            return
        dilation = float(next(value for name, _, value in options if name == "dilation"))
        assert env["HOROVOD_CYCLE_TIME"] == f"{dilation:g}"
        gloo = any(name == "gloo" for name, _, _ in options)
        modes = [
            {"mode": value, "seconds": [self.seconds(value, dilation)] * 3,
             "cpu_share": self.cpu, "verified": True,
             "settling": settled(dilation) if value == LAGS else None}
            for name, _, value in options if name == "mode"
        ]  # fmt: skip
        file.write_text(json.dumps({"transport": "Gloo" if gloo else "MPI", "modes": modes}))


class Launcher:
    """Records the hosts that it was asked for."""

    def __init__(self, **options):
        self.options = options
        self.asked = []

    @contextmanager
    def hosts(self, number, rate):
        self.asked.append((number, rate))
        yield Pretended(number, rate, **self.options)


def in_proportion(mode, dilation):
    return dilation * {"compute": 0.21, "dense": 1.5}.get(mode, 0.3)


def measured(job=None, **options):
    launcher = Launcher(**{"seconds": in_proportion, **options})
    job = job or jobs_of_papers(LAGS_TABLE[:1], [16], gtopk=False)[0]
    return measure(launcher, job, EFFORT), launcher


def test_a_row_that_keeps_the_rules_counts_and_its_times_are_undilated():
    row, launcher = measured()
    assert row.problems == []
    assert row.verified
    assert row.seconds == pytest.approx(
        {"compute only": 0.21, "dense, MPI": 1.5, "dense, Gloo": 1.5, "SLGS": 0.3, "LAGS": 0.3}
    )
    assert launcher.asked == [(16, 1e8), (16, 5e7)]  # rate / dilation
    ring = 2 * 15 / 16 * 4 * 25_000_000 / 125e6
    gathered = 0.21 + 15 * (32 + 8 * 25_000) / 125e6
    assert row.predicted == pytest.approx(
        {"LAGS": 0.24, "SLGS": gathered, "dense, MPI": 0.21 + ring}
    )
    assert row.raw[1]["modes"]
    assert "dilation 10, emulates 1000 Mb/s with 10 us" in row.notes


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cpu": 0.8}, "the machine is busy"),
        ({"stretch": 0.5}, "8000 bytes take"),
        ({"seconds": lambda mode, dilation: dilation + 2}, "at the other dilation"),
    ],
)
def test_a_row_that_breaks_a_rule_is_void_and_says_why(options, problem):
    row, _ = measured(**options)
    assert row.verdict == "void"
    assert any(problem in remark for remark in row.remarks()), row.remarks()


def test_predictions_stand_beside_measured_times_and_end_with_the_median_error():
    row = replace(ROW, predicted={"SLGS": 0.6, "LAGS": 0.225, "dense, MPI": 3.3})
    *rows, median = prediction_rows([row])
    assert [shown.facts["error (%)"] for shown in rows] == pytest.approx([20, -10, 10])
    assert median.facts["error (%)"] == pytest.approx(15)
    assert median.facts["verdict"] == "20 % reached: yes"
    worse = replace(ROW, predicted={"SLGS": 0.61, "LAGS": 0.19})
    assert prediction_rows([worse])[-1].facts["verdict"] == "20 % reached: no"


def test_the_median_leaves_out_what_was_fitted_and_rows_that_are_void():
    row = replace(ROW, predicted={"SLGS": 0.55, "LAGS": 3.9, "dense, MPI": 3.9})
    void = replace(ROW, predicted={"SLGS": 0.9}, problems=["the machine is busy"])
    *rows, median = prediction_rows([row, void])
    assert [shown.facts["in the median"] for shown in rows] == ["yes", *3 * ["no"]]
    assert median.facts["error (%)"] == pytest.approx(10)
    assert [shown.name for shown in prediction_rows([void])] == [rows[-1].name]


def test_goals_are_told_of_every_method():
    facts = ratios_row(ROW, "LAGS", "SLGS").facts
    assert (facts["90 % of the ceiling"], facts["not slower than dense"]) == ("no", "yes")
    seconds = {**ROW.seconds, "LAGS": 0.22, "dense, Gloo": 0.21}
    facts = ratios_row(replace(ROW, seconds=seconds), "LAGS", "SLGS").facts
    assert (facts["90 % of the ceiling"], facts["not slower than dense"]) == ("yes", "no")


def test_every_job_has_a_timeline_of_its_own(tmp_path):
    (job,) = jobs_of_papers(LAGS_TABLE[:1], [16], gtopk=False)
    files = {
        timeline_file(replace(EFFORT, timelines=tmp_path), replace(job, dilation=dilation), modes)
        for dilation in (10, 20)
        for modes in (["compute", "dense"], *(["compute", mode] for mode in job.modes.values()))
    }
    assert len(files) == 6
    assert all(file.parent == tmp_path for file in files)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_patient_waits_sleep_where_others_yield(tmp_path):
    library = patient_waits(tmp_path)
    program = (
        "import ctypes, resource\n"
        "libc = ctypes.CDLL(None)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw\n"
        "for _ in range(200): libc.sched_yield()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)\n"
    )

    def sleeps(**env):
        told = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **env}, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
        return int(told.stdout)

    assert sleeps() < 100
    # A wait whose time is up before the thread sleeps is none that the kernel counts.
    assert sleeps(LD_PRELOAD=str(library), PATIENT_NANOSECONDS="100000") > 150


def test_slack_is_short_on_fast_links():
    assert slack_seconds(1e9) == pytest.approx(48e-6)
    assert slack_seconds(1e7) == slack_seconds(None) == 500e-6


def test_another_row_may_be_repeated_in_place_of_one_which_then_says_so():
    (job,) = jobs_of_papers(LAGS_TABLE[:1], [16], gtopk=False)
    row, launcher = measured(replace(job, stands_in="LSTM-PTB"))
    assert row.verdict == "counts"
    assert launcher.asked == [(16, 1e8)]
    assert "at another dilation, the row of LSTM-PTB was repeated in its place" in row.notes


def test_a_row_that_does_not_fit_runs_with_fewer_ranks_and_says_so():
    row = next(row for row in GTOPK_TABLE if row.model == "AlexNet")
    result, launcher = measured(jobs_of_papers([row], [32], gtopk=True)[0])
    assert result.ranks == 16
    assert {number for number, _ in launcher.asked} == {16}
    assert "16 ranks: 32 do not fit into memory" in result.notes


def test_a_sweep_without_lags_has_its_times(tmp_path):
    row = measurement(**{"compute only": 0.5, "dense, MPI": 2.0, "Dense, int8": 0.6})
    seconds, meaning, _ = results_of("sweep", [row], {})
    assert "Dense, int8 (s)" in seconds.markdown()
    assert not meaning.rows
    meaning.show()
    plot_rates([row], tmp_path / "sweep.png")


def test_tables_and_pictures_can_be_made_of_rows(tmp_path):
    for table, plot in (("lags", plot_methods), ("sweep", plot_rates)):
        seconds, meaning, model = results_of(table, [ROW, ROW], {})
        assert len(seconds.rows) == len(meaning.rows) == 2
        assert not model.rows
        assert "LAGS (s)" in seconds.markdown()
        file = tmp_path / f"{table}.png"
        plot([ROW, ROW], file)
        assert file.read_bytes().startswith(b"\x89PNG")
