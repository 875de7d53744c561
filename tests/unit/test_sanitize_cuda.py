"""The verdict of a compute-sanitizer tool on each test is reported."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest
import sanitize_cuda
from sanitize_cuda import tests_in as names_in

pytestmark = pytest.mark.long  # it looks at tools alone

# A program with tests, as GoogleTest makes it, and a sanitizer that finds an error in one of them;
# its exit status says nothing about the program.
PROGRAM = """#!{python}
import sys, time
if "--gtest_list_tests" in sys.argv:
    print("CudaMerge.", "  Adds", "  Reads", "  Fails", "  Hangs", "  Crashes", sep="\\n")
    print("Sizes/CudaTake.", "  Takes/0  # GetParam() = 7", sep="\\n")
    raise SystemExit
options = dict(one.split("=", 1) for one in sys.argv[1:])
name = options["--gtest_filter"]
print("running", name, flush=True)
outcome = ""
if name == "Sizes/CudaTake.Takes/0":
    outcome = '<skipped message="no device"/>'
if name == "CudaMerge.Fails":
    outcome = '<failure message="1 is not 2"/>'
if name == "CudaMerge.Hangs":
    time.sleep(100)
if name == "CudaMerge.Crashes":
    raise SystemExit(0)
with open(options["--gtest_output"].removeprefix("xml:"), "w") as file:
    file.write(f"<testsuites><testcase>{{outcome}}</testcase></testsuites>")
"""
SANITIZER = """#!/bin/sh
while [ "$1" != "{program}" ]; do shift; done
"$@"
case "$2" in *Reads*) echo "========= Invalid __global__ read of size 4 bytes"; exit 99;; esac
exit 0
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Returns the program's path; the sanitizer is on PATH."""
    path = tmp_path / "cuda_tests"
    for file, text in (
        (path, PROGRAM.format(python=sys.executable)),
        (tmp_path / "compute-sanitizer", SANITIZER.format(program=path)),
    ):
        file.write_text(text)
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return path


def run(monkeypatch, *arguments):
    """Returns the exit status of the tool."""
    monkeypatch.setattr(sys, "argv", ["sanitize_cuda.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        sanitize_cuda.main()
    return exit_.value.code


@pytest.mark.long  # the next ones run programs, too
def test_each_test_has_the_outcome_of_its_own_process(program, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sanitize_cuda, "TEST_SECONDS", 5)
    report = tmp_path / "report.xml"
    assert run(monkeypatch, program, "--tool", "memcheck", "--report", report) == 1
    failure = "the test fails, and the tool has found nothing; exit status 0"
    messages = {
        case.get("name"): [(kind.tag, kind.get("message")) for kind in case]
        for case in ElementTree.parse(report).iter("testcase")
    }
    assert messages == {
        "CudaMerge.Adds": [],
        "CudaMerge.Reads": [("failure", "the tool has found something")],
        "CudaMerge.Fails": [("failure", failure)],
        "CudaMerge.Hangs": [("failure", "still running after 5 s")],
        "CudaMerge.Crashes": [("failure", "it has left no report; exit status 0")],
        "Sizes/CudaTake.Takes/0": [("skipped", "no device")],
    }
    said = capsys.readouterr().out
    assert "FAILED memcheck CudaMerge.Reads: the tool has found something\nrunning" in said
    assert "========= Invalid __global__ read of size 4 bytes" in said
    assert "memcheck: 1 passed, 4 failed, 1 skipped" in said


def test_what_no_time_was_left_for_is_skipped_and_says_so(program, tmp_path, monkeypatch):
    report = tmp_path / "report.xml"
    assert run(monkeypatch, program, "--tool", "racecheck", "--report", report, "--seconds", 0) == 0
    cases = list(ElementTree.parse(report).iter("skipped"))
    assert [case.get("message") for case in cases] == ["no time was left"] * 6


def test_what_was_under_way_when_no_time_was_left_has_not_failed(program, tmp_path, monkeypatch):
    report = tmp_path / "report.xml"
    run(monkeypatch, program, "--tool", "racecheck", "--report", report, "--seconds", 3)
    (case,) = ElementTree.parse(report).iterfind("testcase[@name='CudaMerge.Hangs']")
    assert [(kind.tag, kind.get("message")) for kind in case] == [("skipped", "no time was left")]


def test_all_tools_run_where_none_is_named(program, monkeypatch, capsys):
    assert run(monkeypatch, program, "--seconds", 0) == 0
    said = capsys.readouterr().out
    for tool in sanitize_cuda.TOOLS:
        assert f"{tool}: 0 passed, 0 failed, 6 skipped" in said


def test_a_report_is_of_one_tool(program, tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, program, "--report", tmp_path / "report.xml") == 2
    assert "name it with --tool" in capsys.readouterr().err


def test_without_the_sanitizer_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    code = run(monkeypatch, tmp_path / "cuda_tests", "--tool", "memcheck")
    assert code == "error: there is no compute-sanitizer on PATH"


def test_parameters_of_tests_are_no_part_of_their_names():
    listing = "A.\n  One\nB/C.  # TypeParam = int\n  Two/0  # GetParam() = 3\n"
    assert list(names_in(listing)) == ["A.One", "B/C.Two/0"]
