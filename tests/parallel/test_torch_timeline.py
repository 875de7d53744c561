"""HVD_SPARSE_TIMELINE: a training job's trace; all ranks refuse a bad file alike."""

from __future__ import annotations

import itertools
import os

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.errors import InvalidArgumentError, NonFiniteGradientError
from hvd_sparse.timeline import timeline
from hvd_sparse.torch import LAGS, Dense, GTopK, TopK
from tests.parallel.torch_ranks import CULPRIT, Toy, distribute, integer_gradients
from tests.traces import read_trace

STEPS = 4
several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")


def finish():
    """Closes this rank's trace, like the end of the process."""
    trace = timeline.from_environment(rank=hvd.rank())
    if trace is not None:
        trace.close()


@pytest.fixture
def file_of_each_rank(tmp_path, monkeypatch):
    monkeypatch.setenv(timeline.VARIABLE, str(tmp_path / "trace-{rank}.json"))
    yield tmp_path / f"trace-{hvd.rank()}.json"
    finish()


@several_ranks
@pytest.mark.parametrize("preset", [LAGS, GTopK, TopK, Dense])
def test_every_bucket_and_every_step_is_there(file_of_each_rank, preset):
    model = Toy()
    selecting = {} if preset is Dense else {"density": 0.2, "adaptive": False}
    compression = preset(layers=Layers(min_numel=64, bucket_numel=1300), **selecting)
    optimizer = distribute(model, compression)
    told = []
    for step in range(STEPS):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()
        told.append(optimizer.exchange.stats.last)
    finish()

    trace = read_trace(file_of_each_rank)
    steps, waits = [trace.of(f"STEP {i}")[0] for i in range(STEPS)], trace.of("SYNCHRONIZE")
    assert all(a.end <= b.begin for a, b in itertools.pairwise(steps))
    assert [w.parents for w in waits] == [(f"STEP {i}",) for i in range(STEPS)]
    for i, (step, last) in enumerate(zip(steps, told, strict=True)):
        assert trace.counts[i]["args"] == {
            "sent": last.bytes_sent,
            "received": last.bytes_received,
            "dense": last.dense_bytes,
        }
        dense = trace.of("DENSE")[i]
        assert dense.args == {"operations": 1, "bytes": last.dense_bytes}
        assert step.begin <= dense.begin <= dense.end <= step.end
        for bucket in last.buckets:
            process = f", bucket {bucket.bucket}"
            select = trace.of("SELECT", process)[i]
            exchange = trace.of("EXCHANGE", process)[i]
            wait = trace.of("WAIT", process)[i]
            assert step.begin <= select.begin <= select.end <= exchange.begin
            assert exchange.end <= wait.end <= waits[i].end <= step.end
            assert waits[i].begin <= wait.begin
            assert exchange.args["bytes_sent"] == bucket.bytes_sent
            assert select.args["selected"] == bucket.selected
    for name in ("SELECT", "QUEUE", "EXCHANGE", "SETTLE", "WAIT"):
        assert len(trace.of(name)) == STEPS * len(told[0].buckets)
    ready = [m for m in trace.moments if m["name"] == "READY"]
    assert len(ready) == len(trace.of("SELECT"))


@several_ranks
def test_a_refused_step_is_marked_on_every_rank(file_of_each_rank):
    model = Toy()
    optimizer = distribute(model, TopK(density=0.2, layers=Layers(min_numel=64)))
    for bad in (True, False):
        optimizer.zero_grad()
        gradients = integer_gradients(model, 0)
        if bad and hvd.rank() == CULPRIT:
            gradients["last"][0, 0] = float("nan")
        model.backward(gradients)
        if bad:
            with pytest.raises(NonFiniteGradientError):
                optimizer.step()
        else:
            optimizer.step()
    finish()
    trace = read_trace(file_of_each_rank)  # both steps end
    (refused,) = [m for m in trace.moments if m["name"] == "REFUSED"]
    assert f"gradient of rank {CULPRIT}" in refused["args"]["reason"]
    assert len(trace.of("STEP 0")) == len(trace.of("STEP 1")) == 1


def test_one_file_is_written_by_rank_0_alone(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    monkeypatch.setenv(timeline.VARIABLE, str(path))
    model = Toy()
    optimizer = distribute(model, TopK(density=0.2, layers=Layers(min_numel=64)))
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    finish()
    assert path.exists() == (hvd.rank() == 0)
    if hvd.rank() == 0 and hvd.size() > 1:
        assert len(read_trace(path).of("STEP 0")) == 1


@several_ranks
@pytest.mark.timeout(60)
def test_all_ranks_refuse_a_fifo_of_one_rank_and_go_on_without_it(tmp_path, monkeypatch):
    name = tmp_path / "trace-{rank}.json"
    if hvd.rank() == CULPRIT:
        os.mkfifo(str(name).format(rank=CULPRIT))
    monkeypatch.setenv(timeline.VARIABLE, str(name))
    model = Toy()
    with pytest.raises(InvalidArgumentError, match=f"rank {CULPRIT} can write.* it is a FIFO"):
        distribute(model, TopK(density=0.2, layers=Layers(min_numel=64)))
    if hvd.rank() != CULPRIT:
        finish()
    monkeypatch.delenv(timeline.VARIABLE)
    optimizer = distribute(model, TopK(density=1.0, layers=Layers(min_numel=64)))
    model.backward({n: torch.ones_like(p) for n, p in model.named_parameters()})
    optimizer.step()


@several_ranks
def test_all_ranks_refuse_a_file_that_one_cannot_write(tmp_path, monkeypatch):
    name = "trace-{rank}.json"
    folder = tmp_path / "nowhere" if hvd.rank() == CULPRIT else tmp_path
    monkeypatch.setenv(timeline.VARIABLE, str(folder / name))
    model = Toy()
    with pytest.raises(
        InvalidArgumentError, match=f"HVD_SPARSE_TIMELINE .* rank {CULPRIT} can write"
    ):
        distribute(model, TopK(density=0.2, layers=Layers(min_numel=64)))
    if hvd.rank() != CULPRIT:
        finish()
    monkeypatch.delenv(timeline.VARIABLE)
    optimizer = distribute(model, TopK(density=1.0, layers=Layers(min_numel=64)))
    model.backward({n: torch.ones_like(p) for n, p in model.named_parameters()})
    optimizer.step()
    assert all(torch.equal(p.grad, torch.full_like(p, hvd.size())) for p in model.parameters())
