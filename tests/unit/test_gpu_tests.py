"""The stages that `make gputest` runs, and its report of those that it could not run."""

from __future__ import annotations

import json
import sys

import gpu_tests
import pytest
from gpu_tests import PARTS, Device, Summary, figures, reasons, run_parts
from run_tests import Count, Outcome, Stage

pytestmark = pytest.mark.long  # it looks at tools alone

GPU = Device("90")
NO_GPU = Device(missing="no device: libcuda.so.1 is not there")


@pytest.fixture
def run(monkeypatch):
    """Returns a list of the names of the stages run; each of them passes."""
    names = []

    def pass_it(stage):
        names.append(stage.name)
        return Outcome(Count(passed=1), [], 1.0)

    monkeypatch.setattr(gpu_tests.run_tests, "run", pass_it)
    return names


def python(name, code, report=None):
    """Returns a stage that runs some code."""
    return Stage(name, [sys.executable, "-c", code], report, seconds=60)


def ended(monkeypatch, tmp_path, device, *stages):
    """Returns the exit status of a run with these stages."""
    monkeypatch.setattr(gpu_tests, "stages", lambda part, reports: stages)
    monkeypatch.setattr(gpu_tests.Device, "found", lambda: device)
    for name in ("HVD_SPARSE_WITH_CUDA", "CUDAARCHS", "PYTEST_TIMEOUT"):
        monkeypatch.setenv(name, "")  # restores the variables that it sets
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["gpu_tests.py", "tests", "--reports", str(tmp_path)])
    with pytest.raises(SystemExit) as exit_:
        gpu_tests.main()
    return exit_.value.code


def test_without_a_gpu_only_the_build_runs_and_the_rest_is_said_to_be_skipped(
    run, tmp_path, capsys
):
    summary = run_parts(list(PARTS), NO_GPU, tmp_path)
    assert run == ["module", "C++ programs"]
    assert (summary.failed, summary.not_run) == (False, True)
    summary.show([])
    said = capsys.readouterr().out
    assert said.count("skipped: no device: libcuda.so.1 is not there") == 14
    assert "not everything ran" in said


def test_with_a_gpu_the_parts_that_were_asked_for_run(run, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_tests.shutil, "which", lambda name: name)
    monkeypatch.setattr(gpu_tests, "horovod_sums_on_gpus", lambda: True)
    summary = run_parts(["sanitizers", "tests"], GPU, tmp_path)
    tools = ["memcheck", "racecheck", "synccheck", "initcheck"]
    folders = ("devices", "unit", "parallel", "horovod", "ddp")
    python = [f"{name} on a GPU" for name in folders]
    assert run == [*tools, "C++", *python, "ddp over NCCL"]
    assert (summary.failed, summary.not_run) == (False, False)


def test_what_is_not_installed_is_named(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_tests.shutil, "which", lambda name: None if name == "mpirun" else name)
    run_parts(["tests"], GPU, tmp_path).show([])
    said = capsys.readouterr().out
    assert "parallel on a GPU  skipped: no mpirun on PATH" in said
    assert "horovod on a GPU   skipped: this Horovod was built for the CPU" in said
    monkeypatch.setattr(gpu_tests.importlib.util, "find_spec", lambda name: None)
    del run[:]
    run_parts(["tests"], GPU, tmp_path).show([])
    assert "unit on a GPU      skipped: no Horovod" in capsys.readouterr().out
    assert "devices on a GPU" in run  # these need no Horovod


def test_a_stage_that_fails_does_not_keep_the_next_from_running(monkeypatch, tmp_path, capsys):
    wrong = python("wrong", "print('error: wrong', 'x'); raise SystemExit(3)")
    right = python("right", f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert ended(monkeypatch, tmp_path, GPU, wrong, right) == 1
    assert (tmp_path / "ran").exists()
    said = capsys.readouterr().out.partition("==== summary ====")[2]
    assert "-- wrong:\nerror: wrong x" in said
    assert "error: wrong x" in (tmp_path / "gputest.log").read_text()


@pytest.mark.parametrize(
    ("cases", "device", "status"),
    [
        ("P" * 3 + "S", GPU, 0),
        ("P" + "S" * 3, GPU, 2),  # as with an old driver: few tests need no GPU
        ("S", GPU, 2),
        ("P", NO_GPU, 2),
    ],
)
def test_the_exit_status_is_0_only_if_all_ran_on_a_gpu(
    monkeypatch, tmp_path, cases, device, status
):
    report = tmp_path / "report.xml"
    xml = {"P": "<testcase/>", "S": "<testcase><skipped message='torch sees no GPU'/></testcase>"}
    text = f"<suite>{''.join(xml[case] for case in cases)}</suite>"
    stage = python("tests", f"open({str(report)!r}, 'w').write({text!r})", report)
    assert ended(monkeypatch, tmp_path, device, stage) == status


def test_a_part_of_no_known_name_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_tests.py", "test"])
    with pytest.raises(SystemExit):
        gpu_tests.main()
    assert "one of build, tests, sanitizers, benchmark, got 'test'" in capsys.readouterr().err


def test_reasons_are_those_of_pytest_and_of_googletest(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        "<suite><testcase/>"
        "<testcase><skipped message='torch sees no GPU'/></testcase>"
        "<testcase><skipped message='SKIP_REGULAR_EXPRESSION_MATCHED'/>"
        "<system-out>[ RUN ] a\n/x.cc:7: Skipped\nranks share cuda:0\n\n[ SKIPPED ] a</system-out>"
        "</testcase></suite>"
    )
    assert reasons(report) == {"torch sees no GPU": 1, "ranks share cuda:0": 1}


def test_figures_stand_beside_their_aims(tmp_path):
    file = tmp_path / "gputest_blocks.json"
    rows = [
        {"name": "copy", "facts": {"us": 50.0}},
        {"name": "merge", "facts": {"us": 31.25, "aim, us": 25.0}},
        {"name": "torch.topk", "facts": {"us": 80.0, "aim, us": ""}},
    ]
    results = [{"title": "two blocks", "rows": rows, "verified": False}]
    file.write_text(json.dumps(results))
    assert list(figures(file)) == [
        "error: NOT VERIFIED: two blocks",
        "merge (two blocks): us 31.25, aim, us 25",
    ]


def test_the_summary_is_short_whatever_happens(capsys):
    summary = Summary()
    failed = Outcome(Count(failed=1), ["error: " + "x" * 500] * 500, 1.0)
    for number in range(12):
        summary.add(Stage(f"stage {number}", ["true"]), failed)
    summary.show(["a figure"] * 500)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 140
