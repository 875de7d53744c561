"""The benchmark of DDP's hooks: every method is verified, has its row, and is measured once."""

from __future__ import annotations

import json
import sys

import pytest
from paper_models import MODELS

from tests.jobs.launch import free_port, mpirun, run

pytestmark = pytest.mark.long  # it looks at benchmarks alone

MODES = [
    "compute",
    "DDP",
    'DDP(hook="fp16")',
    'DDP(hook="powersgd", matrix_rank=1)',
    'DDP(hook="powersgd", matrix_rank=4)',
    "LAGS(adaptive=False, warmup=None)",
]
TITLES = [
    "computing alone", "DDP", "DDP, fp16", "DDP, PowerSGD 1", "DDP, PowerSGD 4", "LAGS by hook",
    "Horovod, dense", "LAGS by Horovod",
]  # fmt: skip


def replayed(file, *, ranks=2, modes=MODES):
    options = ["--dilation=0.1", "--steps=2", "--turns=1", "--untimed=1", "--bucket-mb=1"]
    options += [f"--ddp=127.0.0.1:{free_port()}", "--interface=lo", f"--json={file}"]
    program = ["benchmarks/replay.py", *options, *(f"--mode={mode}" for mode in modes)]
    return mpirun(ranks, program)


@pytest.mark.long
def test_a_replay_under_ddp_verifies_every_hook(tmp_path):
    file = tmp_path / "result.json"
    job = replayed(file)
    assert job.status == 0, job.output
    result = json.loads(file.read_text())
    assert result["transport"] == "DDP"
    assert [mode["mode"] for mode in result["modes"]] == MODES
    assert all(mode["verified"] for mode in result["modes"]), job.output
    assert all(len(mode["seconds"]) == 2 for mode in result["modes"][3:])
    # What both ranks send passes the one interface of this machine.
    compute, dense, half, first, fourth, lags = (
        mode["bytes_on_wire"] / 2 for mode in result["modes"]
    )
    whole = 4 * MODELS["ResNet-20"].numel
    assert compute < 0.01 * whole
    assert dense == pytest.approx(whole, rel=0.1)
    assert half == pytest.approx(whole / 2, rel=0.1)
    assert first < fourth < 0.2 * whole
    assert lags < 0.1 * whole


@pytest.mark.long
def test_a_number_of_ranks_whose_averages_are_not_exact_is_refused(tmp_path):
    job = replayed(tmp_path / "result.json", ranks=3, modes=["DDP"])
    assert job.status != 0
    assert "ranks under DDP must be a power of two, got 3" in job.output


def test_a_model_of_the_benchmark_has_its_published_size():
    """Zagoruyko and Komodakis give 2.8 million parameters for a width of 4 at 16 layers."""
    assert MODELS["WRN-16-4"].numel == 2_748_890


@pytest.mark.long
def test_the_table_has_every_row_and_is_not_measured_again(tmp_path):
    command = [
        sys.executable, "benchmarks/ddp_hooks.py", "table", "--local", "--hosts=2", "--rate=1e9",
        "--model=ResNet-20", "--dilation=0.1", "--steps=2", "--turns=1", f"--folder={tmp_path}",
        "--markdown",
    ]  # fmt: skip
    job = run(command)
    assert job.status == 0, job.output
    lines = job.output.splitlines()
    for title in TITLES:
        (row,) = [line for line in lines if line.startswith(f"| {title} |")]
        seconds = float(row.split("|")[2])
        assert seconds > 0
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    written = {file: file.stat().st_mtime_ns for file in files}
    again = run(command)
    assert again.status == 0, again.output
    assert "ranks of ResNet-20 need" not in again.output
    assert {file: file.stat().st_mtime_ns for file in files} == written
    assert again.output.endswith(job.output[job.output.index("| computing alone |") :])


@pytest.mark.long
def test_the_overhead_of_the_hook_is_paired(tmp_path):
    file = tmp_path / "result.json"
    options = ["--model=ResNet-20", "--forward=0.01", "--backward=0.02", "--steps=5", "--turns=2"]
    program = [sys.executable, "benchmarks/ddp_hooks.py", "overhead", *options]
    job = run([*program, f"--json={file}"])
    assert job.status == 0, job.output
    result = json.loads(file.read_text())
    assert result["verified"]
    rows = {row["name"]: row for row in result["rows"]}
    assert [rows[title]["timing"]["repetitions"] for title in rows] == [2, 2, 4]
    assert all(row["timing"]["median"] >= 30 for row in rows.values())  # ms of computing
    facts = rows["LAGS by hook"]["facts"]
    assert facts["least (%)"] <= facts["more than Horovod, of a step (%)"] <= facts["most (%)"]
