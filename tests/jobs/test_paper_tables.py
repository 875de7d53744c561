"""The papers' tables, small and unshaped: everything runs, is verified, and is marked void."""

from __future__ import annotations

import json
import statistics
import sys

import pytest
from paper_models import MODELS

from tests.jobs.launch import free_port, mpirun, run

pytestmark = pytest.mark.long

QUICK = ["--dilation", "0.1", "--steps", "2", "--turns", "1", "--untimed", "1"]


def test_a_replay_takes_as_long_as_its_compute_and_verifies_every_mode(tmp_path):
    file = tmp_path / "result.json"
    modes = [
        "compute",
        "dense",
        "LAGS(density=0.01, adaptive=False, warmup=None)",
        "TopK(layers=Layers(layer_wise=False))",
        "GTopK",
    ]
    job = mpirun(
        3,
        ["benchmarks/replay.py", "--forward", "0.05", "--backward", "0.1", "--dilation", "2",
         "--steps", "2", "--turns", "2", "--interface", "lo", "--json", str(file),
         *(f"--mode={mode}" for mode in modes)],
    )  # fmt: skip
    assert job.status == 0, job.output
    result = json.loads(file.read_text())
    by_mode = {mode["mode"]: mode for mode in result["modes"]}
    assert list(by_mode) == modes
    assert all(mode["verified"] for mode in by_mode.values())
    for mode in by_mode.values():
        assert len(mode["seconds"]) == 4
        assert min(mode["seconds"]) >= 2 * 0.15
        assert mode["forward"] + mode["backward"] + mode["finish"] >= 2 * 0.15
    assert statistics.median(by_mode["compute"]["seconds"]) < 2 * 0.15 * 1.5
    ring = 2 * 2 / 3 * 4 * 269_722
    assert by_mode["compute"]["bytes_sent"] == 0
    assert by_mode["dense"]["bytes_sent"] == pytest.approx(ring, rel=1e-6)
    for mode in modes[2:]:
        assert 0 < by_mode[mode]["bytes_sent"] < ring / 5


def test_an_adaptive_mode_settles_first_and_tells_its_plan(tmp_path):
    file = tmp_path / "result.json"
    forward, backward, dilation = 0.03, 0.15, 2
    job = mpirun(
        2,
        ["benchmarks/replay.py", "--forward", str(forward), "--backward", str(backward),
         "--dilation", str(dilation), "--steps", "2", "--turns", "1", "--json", str(file),
         "--tuning-skipped", "1", "--tuning-timed", "3", "--mode=compute", "--mode=LAGS"],
    )  # fmt: skip
    assert job.status == 0, job.output
    compute, lags = json.loads(file.read_text())["modes"]
    assert compute["settling"] is None
    settling = lags["settling"]
    assert settling["steps"] == (1 + 3 + 2) * (1 if settling["measured"]["sparse"] is None else 2)
    assert sum(bucket["numel"] for bucket in settling["buckets"]) == 267_264
    layers = {layer["name"]: layer for layer in settling["profile"]["layers"]}
    model = MODELS["ResNet-20"]
    replayed, seen, told = 0.0, 0.0, 0
    spread = list(zip(model.layers, model.spread(backward), strict=True))
    for layer, seconds in reversed(spread[:-1]):  # the tuner's forward has the last
        weight = layers.get(layer.tensors[0].name)
        replayed += dilation * seconds
        if weight is not None:
            seen += weight["backward"]
            assert seen == pytest.approx(replayed, rel=0.1, abs=0.01)
            told += 1
    assert told > 15
    predicted = settling["predicted"]
    assert dilation * (forward + backward) * 0.9 < predicted["compute"] <= predicted["sparse"]


def test_a_replay_over_gloo_runs_dense(tmp_path):
    file = tmp_path / "result.json"
    job = mpirun(
        2,
        ["benchmarks/replay.py", f"--gloo=127.0.0.1:{free_port()}", "--mode=compute",
         "--mode=dense", "--steps=2", "--turns=1", "--json", str(file)],
    )  # fmt: skip
    assert job.status == 0, job.output
    result = json.loads(file.read_text())
    assert result["transport"] == "Gloo"
    assert all(mode["verified"] for mode in result["modes"])


def test_a_replay_that_would_not_fit_into_memory_is_refused():
    options = ["--model=ResNet-50", "--mode=LAGS", "--memory-limit=0.5"]
    job = mpirun(2, ["benchmarks/replay.py", *options])
    assert job.status != 0
    assert "memory_limit is 0.5 GiB and 2 ranks need" in job.output


def test_messages_are_timed_by_size(tmp_path):
    file = tmp_path / "messages.json"
    address = f"127.0.0.1:{free_port()}"
    program = ["benchmarks/messages.py", "--address", address, "--json", str(file)]
    job = mpirun(3, program)
    assert job.status == 0, job.output
    messages = json.loads(file.read_text())
    assert [message["bytes"] for message in messages] == [8000, 32000, 128000, 512000, 2000000]
    assert all(0 < message["seconds"] < 1 for message in messages)


@pytest.mark.parametrize(
    ("table", "methods"),
    [
        ("gtopk", ["compute only", "dense, MPI", "dense, Gloo", "SLGS", "LAGS", "gTop-k"]),
        ("sweep", ["compute only", "dense, MPI", "dense, Gloo", "LAGS", "LAGS, gtopk"]),
    ],
)
def test_a_table_runs_from_end_to_end_and_is_void_without_shaped_links(table, methods, tmp_path):
    file, plot = tmp_path / "table.json", tmp_path / "table.png"
    command = [
        sys.executable, "benchmarks/paper_tables.py", table, "--local", "--hosts", "2",
        "--only", "ResNet-20", "--rate", "1e9", "--repeat", "0", *QUICK,
        "--json", str(file), "--plot", str(plot), "--markdown",
    ]  # fmt: skip
    job = run(command)
    assert job.status == 0, job.output
    told = json.loads(file.read_text())
    assert all(result["verified"] for result in told["results"])
    (row,) = told["rows"]
    assert set(methods) <= set(row["seconds"])
    assert all(seconds > 0 for seconds in row["seconds"].values())
    assert "links are not shaped" in row["problems"]
    assert "not repeated at another dilation" in row["problems"]
    assert "void, links are not shaped" in job.output
    assert plot.stat().st_size > 10_000
    again = run([*command, "--resume"])
    assert again.status == 0, again.output
    assert json.loads(file.read_text()) == told
    assert "verified" in again.output
    measuring = "2 ranks of ResNet-20 need"
    assert measuring in job.output
    assert measuring not in again.output
