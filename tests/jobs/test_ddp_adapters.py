"""The examples with Lightning, Accelerate and the Trainer train sparsely, save, and resume exactly.

  torchrun ... test_ddp_adapters.py EXAMPLE RUNS

is a rank of all jobs below. RUNS is JSON: a list of runs of the example, each with its arguments,
a port, and the local steps that its ranks take. Imports take most of the time; so a rank imports
the example once, and makes each run in a fork of itself, which knows nothing of the others.
"""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.jobs.launch import BIN, ROOT, SITE, environment, free_port, run

pytestmark = pytest.mark.long  # three frameworks are installed

STEPS = 23  # of an epoch, on two ranks
EPOCHS = 4
# The names of what is saved after an epoch, and of the folder with the ranks' residuals.
SAVED = {
    "accelerate": (lambda epoch: f"epoch-{epoch}", "{}/hvd_sparse"),
    "lightning": (lambda epoch: f"epoch={epoch - 1}.ckpt", "{}.hvd_sparse"),
    "trainer": (lambda epoch: f"checkpoint-{epoch * STEPS}", "{}/hvd_sparse"),
}


@pytest.fixture(scope="module")
def packages():
    """Returns the folder of the frameworks; make installs them if need be."""
    made = subprocess.run(
        ["make", "--silent", "adapters"], cwd=ROOT, env=environment(), capture_output=True,
        text=True, timeout=280,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout.split()[-1]


def job(packages, ranks, framework, *runs):
    """Makes runs of an example; returns the job, and the status of every run on every rank.

    Each run is a list of arguments; a number before them is one of local steps.
    """
    told = []
    for one in runs:
        local = one[0] if isinstance(one[0], int) else 1
        arguments = ["--epochs", EPOCHS, *one[local > 1 :]]
        told.append({"arguments": list(map(str, arguments)), "port": free_port(), "local": local})
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks)]
    done = run(
        [*torchrun, __file__, f"ddp_{framework}", json.dumps(told)],
        PYTHONPATH=os.pathsep.join([str(SITE), str(ROOT), str(ROOT / "examples"), packages]),
    )
    statuses = [
        re.findall(rf"^run {number} ended with status (\d+)$", done.output, re.MULTILINE)
        for number in range(len(runs))
    ]
    assert all(len(found) == ranks for found in statuses), done.output
    return done, [set(map(int, found)) for found in statuses]


def residuals_in(folder, framework, *, ranks=2, epochs=EPOCHS):
    """Returns what each rank has saved of its own after the last epoch."""
    name, pattern = SAVED[framework]
    place = Path(pattern.format(folder / name(epochs)))
    files = [place / f"rank-{rank}-of-{ranks}.pt" for rank in range(ranks)]
    return [torch.load(file, weights_only=True) for file in files]


def shared_in(folder, framework):
    """Returns what rank 0 has saved for all after the last epoch: weights, and optimizer's state.

    The weights are in a form that can be compared.
    """
    saved = folder / SAVED[framework][0](EPOCHS)
    if framework == "lightning":
        whole = torch.load(saved, weights_only=True)
        weights = {name: part.tolist() for name, part in whole["state_dict"].items()}
        return weights, whole["optimizer_states"][0]
    (optimizer,) = saved.glob("optimizer.*")
    weights = (saved / "model.safetensors").read_bytes()
    return weights, torch.load(optimizer, weights_only=True)


def equal(one, other):
    """Returns true if two saved objects are equal, tensors bit by bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


@pytest.fixture(scope="module")
def played(packages, tmp_path_factory):
    """Returns a function that trains as a whole, and in part again, once for each framework."""

    @cache
    def play(framework):
        whole, rest = (tmp_path_factory.mktemp(framework) / name for name in ("whole", "rest"))
        resumed = ["--folder", rest, "--resume", whole / SAVED[framework][0](EPOCHS - 1)]
        local = [4, "--epochs", 2, "--folder"]  # an epoch ends amid an interval
        local_rest = ["--resume", whole / "local" / SAVED[framework][0](1)]
        done, statuses = job(
            packages,
            2,
            framework,
            ["--folder", whole],
            resumed,
            [*local, whole / "local"],
            [*local, rest / "local", *local_rest],
        )
        assert statuses == [{0}, {0}, {0}, {0}], done.output
        return done.output, whole, rest

    return play


# The Trainer saves through Accelerate, too.
@pytest.mark.parametrize("framework", SAVED)
def test_an_example_trains_sparsely_and_resumes_bit_for_bit(framework, played):
    output, whole, rest = played(framework)

    # Both runs: all steps were sparse, sent less, and left equal weights that recognise digits.
    lines = re.findall(r"(\d+) steps, (\d+) of them sparse: .* ([\d.]+) times fewer", output)
    assert [line[:2] for line in lines[:2]] == [
        (str(EPOCHS * STEPS),) * 2,
        (str(STEPS),) * 2,
    ]
    assert all(float(line[2]) > 2 for line in lines[:2])
    found = re.findall(r"test accuracy ([\d.]+) %; weights equal on all ranks: (\w+)", output)
    assert [one[1] for one in found[:2]] == ["True", "True"]
    assert float(found[0][0]) > 80
    assert found[1] == found[0]

    expected = residuals_in(whole, framework)
    assert expected[0]["step"] == EPOCHS * STEPS
    assert all(part.any() for one in expected for part in one["residuals"].values())
    assert not equal(expected[0]["residuals"], expected[1]["residuals"])
    assert equal(residuals_in(rest, framework), expected)
    weights, optimizer = shared_in(whole, framework)
    assert optimizer["hvd_sparse"]["residuals"] == {}
    assert shared_in(rest, framework)[0] == weights
    if framework != "accelerate":  # the others delete old checkpoints: those of residuals, too
        assert sorted(whole.glob("[ce]*/**/rank-1-of-2.pt")) == sorted(
            Path(SAVED[framework][1].format(whole / SAVED[framework][0](epoch)), "rank-1-of-2.pt")
            for epoch in (EPOCHS - 1, EPOCHS)
        )


@pytest.mark.parametrize("framework", SAVED)
def test_ranks_resume_amid_an_interval_with_weights_and_moments_of_their_own(framework, played):
    _, whole, rest = played(framework)
    expected, found = (
        residuals_in(folder / "local", framework, epochs=2) for folder in (whole, rest)
    )
    for one in (*expected, *found):
        assert one["local"]["amid"]
        assert one["local"].pop("interval")["taken"] == 2 * STEPS % 4  # beside seconds
    parts = [one["model and optimizer"] for one in expected]
    assert not equal(parts[0]["model"], parts[1]["model"])
    assert not equal(parts[0]["optimizer"], parts[1]["optimizer"])
    assert equal(found, expected)


def test_other_ranks_resume_only_without_residuals(packages, played, tmp_path):
    saved = played("accelerate")[1] / SAVED["accelerate"][0](EPOCHS - 1)
    done, statuses = job(
        packages,
        3,
        "accelerate",
        ["--folder", tmp_path / "refused", "--resume", saved],
        ["--folder", tmp_path / "three", "--resume", saved, "--residuals", "reset"],
    )
    assert statuses == [{1}, {0}], done.output
    message = (
        'hvd_sparse was saved by 2 ranks and there are 3 now. Pass residuals="reset" to go on with '
        "the rest of the state"
    )
    assert done.output.count(message) == 3, done.output
    assert "weights equal on all ranks: True" in done.output
    assert len(residuals_in(tmp_path / "three", "accelerate", ranks=3)) == 3


def make_runs(example, runs):
    """Makes all runs of one rank."""
    module = importlib.import_module(example)

    def make(number, arguments, port, local):
        if local > 1:
            module.LAGS = functools.partial(module.LAGS, local_steps=local, warmup=None)
        if number > 0:  # the store of torchrun's agent knows the first job's ranks
            os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": str(port)}
        sys.argv = [example, *arguments]
        module.main()

    for number, one in enumerate(runs):
        process = multiprocessing.get_context("fork").Process(
            target=make, args=(number, one["arguments"], one["port"], one["local"])
        )
        process.start()
        process.join()
        sys.stdout.write(f"run {number} ended with status {process.exitcode}\n")  # in one piece


if __name__ == "__main__":
    make_runs(sys.argv[1], json.loads(sys.argv[2]))
