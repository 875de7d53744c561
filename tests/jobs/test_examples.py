"""Every example runs as documented, and reports its results."""

from __future__ import annotations

import json
import math
import re
import sys

import pytest

from tests.jobs.launch import horovodrun, run

TINY = {
    "pytorch_digits.py": ["--epochs", "2", "--batch-size", "64"],
    "pytorch_char_lm.py": ["--epochs", "1", "--max-characters", "40000", "--hidden", "64"],
    "tensorflow2_digits.py": ["--epochs", "2", "--batch-size", "64"],
}


# The demo runs the digits with PyTorch, and reads their reports; the blocks of the documentation
# train with TensorFlow (test_docs.py).
@pytest.mark.long
@pytest.mark.parametrize("example", TINY)
@pytest.mark.parametrize("compression", ["none", "lags"])
def test_an_example_trains_and_accounts_for_it(example, compression, tmp_path):
    account = tmp_path / "account.json"
    arguments = [*TINY[example], "--compression", compression, "--json", str(account)]
    job = horovodrun(2, [f"examples/{example}", *arguments])
    assert job.status == 0, job.output
    assert f"{compression}: " in job.output

    told = json.loads(account.read_text())
    losses, sent = told["steps"]["loss"], told["steps"]["bytes_sent"]
    assert len(losses) == len(sent) > 0
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]
    assert told["ranks"] == 2
    dense_bytes = 4 * told["parameters"]  # for a ring of two
    if compression == "none":
        assert told["bytes_sent_per_rank_and_step"] == dense_bytes
    else:
        assert 0 < told["bytes_sent_per_rank_and_step"] < dense_bytes
        assert 0 < told["density_reached"] < 0.3


@pytest.mark.long
@pytest.mark.parametrize("compression", ["fp16", "topk", "gtopk", "gaussiank"])
def test_digits_takes_every_compression(compression):
    arguments = ["--epochs", "1", "--compression", compression, "--density", "0.05"]
    job = horovodrun(2, ["examples/pytorch_digits.py", *arguments])
    assert job.status == 0, job.output
    assert f"{compression}: test accuracy" in job.output


@pytest.mark.long
def test_a_run_that_was_interrupted_ends_like_one_that_was_not(tmp_path):
    def digits(epochs, name, *options):
        arguments = ["--epochs", str(epochs), "--json", str(tmp_path / name), *options]
        job = horovodrun(2, ["examples/pytorch_digits.py", *arguments])
        assert job.status == 0, job.output
        return job.output

    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"))
    # The schedule depends on the number of epochs, so the first run is one of three, cut short.
    digits(3, "whole")
    digits(3, "first", *checkpoint, "--stop-after", "1")
    output = digits(3, "rest", *checkpoint)
    assert "epoch 2/3" in output
    assert "epoch 1/3" not in output
    whole, rest = (json.loads((tmp_path / name).read_text()) for name in ("whole", "rest"))
    assert rest["steps"]["loss"] == whole["steps"]["loss"][-len(rest["steps"]["loss"]) :]
    assert rest["value"] == whole["value"]
    assert "nothing to do" in digits(3, "none", *checkpoint)


# tests/parallel_tensorflow/test_keras.py trains on two ranks, too.
@pytest.mark.long
@pytest.mark.parametrize("compression", ["none", "lags"])
def test_keras_trains(compression):
    arguments = ["--epochs", "1", "--batch-size", "64", "--compression", compression]
    job = horovodrun(2, ["examples/tensorflow2_keras_digits.py", *arguments])
    assert job.status == 0, job.output
    assert f"{compression}: test accuracy" in job.output


@pytest.mark.long
def test_the_char_lm_takes_a_text_of_the_user_and_clips(tmp_path):
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 400)
    arguments = ["--text", str(text), "--epochs", "1", "--clip", "0.25", "--hidden", "32"]
    job = horovodrun(2, ["examples/pytorch_char_lm.py", *arguments])
    assert job.status == 0, job.output
    assert "perplexity per character" in job.output


@pytest.mark.long  # make longtest runs make demo
def test_the_demo_prints_a_table_and_draws_a_picture(tmp_path):
    picture = tmp_path / "demo.png"
    job = run(
        [sys.executable, "examples/demo.py", "--ranks", "2", "--epochs", "1",
         "--picture", str(picture)],
    )  # fmt: skip
    assert job.status == 0, job.output
    for column in ("test accuracy", "bytes sent", "density", "seconds"):
        assert column in job.output
    assert int(re.search(r"LAGS sent (\d+) times fewer bytes", job.output)[1]) > 3, job.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_the_demo_shows_the_output_of_a_run_that_fails():
    options = ["--ranks", "2", "--epochs", "1", "--density", "7"]
    job = run([sys.executable, "examples/demo.py", *options])
    assert job.status != 0
    assert "density must lie in (0, 1], got 7.0" in job.output


@pytest.mark.long
def test_convergence_writes_its_verdict_and_fails_if_a_goal_is_missed(tmp_path):
    document = tmp_path / "convergence.md"
    job = run(
        [sys.executable, "examples/convergence.py", "--ranks", "2", "--seeds", "1", "--only",
         "digits", "--method", "lags", "--epochs", "1", "--document", str(document)],
    )  # fmt: skip
    text = document.read_text()
    assert "| dense |" in text
    assert "| LAGS |" in text
    assert "GTopK" not in text
    missed = "| missed |" in text
    assert missed != ("| met |" in text)
    assert (job.status != 0) == missed == ("behind the goal: LAGS" in job.output), job.output
