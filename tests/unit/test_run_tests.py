"""`make test` counts the results that its stages report."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
from run_tests import (
    LONG_CPP,
    ROOT,
    Cores,
    Count,
    Stage,
    count_of,
    framework_of,
    gist,
    long_stages,
    run,
    run_all,
    stages,
)

pytestmark = pytest.mark.long  # it looks at tools alone

REPORT = "<suite><testcase/><testcase><skipped/></testcase>{}</suite>"


def test_a_stage_without_a_report_is_one_test():
    stage = Stage("lint", ["make", "lint"])
    assert count_of(stage, 0) == Count(passed=1)
    assert count_of(stage, 2) == Count(failed=1)


def test_a_report_is_counted_and_a_status_that_it_does_not_explain_is_a_failure(tmp_path):
    stage = Stage("unit", ["pytest"], tmp_path / "unit.xml")
    stage.report.write_text(REPORT.format(""))
    assert count_of(stage, 0) == Count(passed=1, skipped=1)
    assert count_of(stage, 1) == Count(passed=1, failed=1, skipped=1)
    stage.report.write_text(REPORT.format("<testcase><failure/></testcase>"))
    assert count_of(stage, 1) == Count(passed=1, failed=1, skipped=1)


@pytest.mark.parametrize("status", [0, 1])
def test_a_report_that_is_missing_is_a_failure_whatever_the_status(tmp_path, status):
    stage = Stage("unit", ["pytest"], tmp_path / "unit.xml")
    assert count_of(stage, status) == Count(failed=1)


def test_a_stage_that_ends_early_with_status_0_says_why_it_failed(tmp_path):
    stage = Stage("early", [sys.executable, "-c", "print('done')"], tmp_path / "early.xml")
    outcome = run(stage)
    assert outcome.count == Count(failed=1)
    why = f"error: early has left no report in {tmp_path / 'early.xml'}"
    assert outcome.output == ["done", why]
    assert gist(outcome.output) == [why[:140]]


def test_a_stage_with_a_limit_is_ended_with_all_that_it_has_started(tmp_path):
    alive = tmp_path / "alive"
    child = f"while :; do touch {alive}; sleep .05; done"
    outcome = run(Stage("endless", ["sh", "-c", f"sh -c '{child}' & wait"], seconds=3))
    assert outcome.count == Count(failed=1)
    assert outcome.output == ["error: endless was still running after 3 s"]
    alive.unlink()
    time.sleep(0.5)
    assert not alive.exists()


def begins_and_ends(name: str, log: Path, cores: Cores) -> Stage:
    """Returns a stage that logs its begin and end in `log`, with time for another to begin."""
    return Stage(
        name, ["sh", "-c", f"echo +{name} >>{log}; sleep 1; echo -{name} >>{log}"], None, cores
    )


def test_stages_that_leave_cores_run_beside_each_other_and_others_alone(tmp_path):
    log = tmp_path / "log"
    kinds = {"a": Cores.ALL, "b": Cores.SOME, "c": Cores.ALL, "d": Cores.SOME}
    wanted = [begins_and_ends(name, log, cores) for name, cores in kinds.items()]
    assert [stage.name for stage, _ in run_all(wanted)] == ["a", "c", "b", "d"]
    said = log.read_text().split()
    assert said[:4] == ["+a", "-a", "+c", "-c"]
    assert {*said[4:6]} == {"+b", "+d"}
    assert {*said[6:]} == {"-b", "-d"}


def test_the_gist_of_a_stage_has_what_tests_on_a_gpu_print_when_they_fail():
    said = [
        "12/90 Test #12: CudaMerge.AddsUp ......***Failed    0.31 sec",
        "/a/merge_test.cc:30: Failure",
        'C++ exception with description "cuda:0: illegal memory access" thrown in the test body.',
        "FAILED memcheck CudaMerge.AddsUp: the tool has found something",
        "========= Invalid __global__ read of size 4 bytes",
        "=========     at Merge(int)+0x10 in merge.cu:20",
    ]
    assert gist(["Start 12", *said, "========= COMPUTE-SANITIZER", "done"]) == said
    assert gist(said, 2) == said[:2]


@pytest.mark.parametrize(
    ("paths", "framework"),
    [
        (["README.md", "docs/ddp.md"], "none"),
        (["docs/ddp.md", "hvd_sparse/ddp/host.py"], "torch"),
        (["tests/parallel_tensorflow/turns.py"], "tensorflow"),
        (["hvd_sparse/ddp/host.py", "hvd_sparse/tensorflow/host.py"], "all"),
        (["csrc/comm/nodes.cc"], "all"),
    ],
)
def test_a_change_concerns_a_framework_none_or_all(paths, framework):
    assert framework_of(paths) == framework


@pytest.mark.parametrize("pattern", LONG_CPP)
def test_cpp_tests_that_are_left_out_exist(pattern):
    suite, test = re.match(r"(?:\w+/)?(\w+)\.(\w+)", pattern).groups()
    defined = re.compile(rf"TEST\w*\({suite},\s+{test}")
    assert any(defined.search(file.read_text()) for file in (ROOT / "tests" / "csrc").rglob("*.cc"))


@pytest.mark.parametrize("framework", ["all", "torch", "tensorflow"])
def test_each_folder_of_which_a_part_runs_is_run_as_a_whole_by_the_long_tests(framework):
    def folders(stages_, chosen):
        found = set()
        for stage in stages_:
            command = " ".join(stage.command)
            if chosen(command):
                found |= set(re.findall(r"tests/(?!jobs)\w+\b(?=\s|$)", command))
        return found

    part = folders(stages(framework), lambda command: "--every" in command)
    assert part
    assert part <= folders(long_stages(framework), lambda command: "--every" not in command)
