"""How `make test` counts what its stages report."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "run_tests.py"
REPORT = "<suite><testcase/><testcase><skipped/></testcase>{}</suite>"


@pytest.fixture(scope="module")
def tool():
    """tools/run_tests.py as a module."""
    spec = importlib.util.spec_from_file_location("run_tests", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_stage_without_a_report_is_one_test(tool):
    stage = tool.Stage("lint", ["make", "lint"])
    assert tool.count_of(stage, 0) == tool.Count(passed=1)
    assert tool.count_of(stage, 2) == tool.Count(failed=1)


def test_a_report_is_counted_and_a_status_that_it_does_not_explain_is_a_failure(tool, tmp_path):
    stage = tool.Stage("unit", ["pytest"], tmp_path / "unit.xml")
    stage.report.write_text(REPORT.format(""))
    assert tool.count_of(stage, 0) == tool.Count(passed=1, skipped=1)
    assert tool.count_of(stage, 1) == tool.Count(passed=1, failed=1, skipped=1)
    stage.report.write_text(REPORT.format("<testcase><failure/></testcase>"))
    assert tool.count_of(stage, 1) == tool.Count(passed=1, failed=1, skipped=1)


@pytest.mark.parametrize("status", [0, 1])
def test_a_report_that_is_missing_is_a_failure_whatever_the_status(tool, tmp_path, status):
    stage = tool.Stage("unit", ["pytest"], tmp_path / "unit.xml")
    assert tool.count_of(stage, status) == tool.Count(failed=1)


def test_a_stage_that_ends_early_with_status_0_says_why_it_failed(tool, tmp_path):
    stage = tool.Stage("early", [sys.executable, "-c", "print('done')"], tmp_path / "early.xml")
    outcome = tool.run(stage)
    assert outcome.count == tool.Count(failed=1)
    why = f"error: early has left no report in {tmp_path / 'early.xml'}"
    assert outcome.output == ["done", why]
    assert tool.gist(outcome.output) == [why[:140]]
