"""Runs every check and test, one stage after another, and adds up what they report.

Tests marked as long are left out; `make longtest` has them. A stage that fails does not keep the
others from running. Each one leaves a report in build/reports, which the closing line is counted
from; what failed is said once more at the very end, which is what continuous integration shows.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "build" / "reports"
STAGE_SECONDS = 1200  # of patience with one stage; every single test has its own, shorter limit
# How lines begin that say why a stage failed: pytest's, those of a rank that ended
# (tests/rank_guard.py) or crashed, of ctest, compilers and linters.
TELLING = re.compile(
    r"E  |FAILED|rank \d+: |Timeout \(|Fatal Python|  File .* in test_|.*\*\*\*Failed|.*\berror\b"
)
TELLING_LINES = 10
COLOR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Stage:
    """One command; `report` is where it writes its results as JUnit XML, if it does."""

    name: str
    command: list[str]
    report: Path | None = None


@dataclass(frozen=True)
class Count:
    """How many tests had which outcome."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def pytest_stage(name: str, folder: str, *, ranks: int = 0) -> Stage:
    """pytest on tests/`folder`: alone, or on `ranks` processes, the first of which reports."""
    report = REPORTS / f"{name.replace(' ', '-')}.xml"
    color = "yes" if sys.stdout.isatty() else "no"  # mpirun always pretends to be a terminal
    options = ["-q", "-p", "no:cacheprovider", f"--color={color}", "-m", "not long"]
    silent = [sys.executable, "-m", "pytest", *options, f"tests/{folder}"]
    reporting = [*silent, f"--junit-xml={report}"]
    if ranks == 0:
        return Stage(name, reporting, report)
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "1", *reporting]
    if ranks > 1:
        command += [":", "-np", str(ranks - 1), *silent]
    return Stage(name, command, report)


def stages(framework: str) -> Iterator[Stage]:
    """All stages, or those of one framework."""
    yield Stage("lint", ["make", "lint"])
    yield Stage("C++", ["make", "cpptest"], ROOT / "build" / "tests" / "report.xml")
    if shutil.which("nvcc"):  # compiles for GPUs, and needs none
        yield Stage("CUDA", ["make", "cuda"])
    yield Stage("doctor", [sys.executable, "-m", "hvd_sparse", "doctor"])
    if framework in ("all", "tensorflow"):
        for ranks in (1, 3):
            yield pytest_stage(f"tensorflow on {ranks}", "parallel_tensorflow", ranks=ranks)
    if framework in ("all", "torch"):
        yield pytest_stage("unit", "unit")
        for ranks in (1, 2, 3, 4):
            yield pytest_stage(f"parallel on {ranks}", "parallel", ranks=ranks)
        yield pytest_stage("jobs", "jobs")


def count(report: Path) -> Count:
    """Counts the test cases in a report of pytest or ctest."""
    total = Count()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            total += Count(failed=1)
        elif case.find("skipped") is not None:
            total += Count(skipped=1)
        else:
            total += Count(passed=1)
    return total


def gist(output: list[str]) -> list[str]:
    """The few lines of a failed stage that say why."""
    telling = [line for line in output if TELLING.match(line)] or output
    return [line[:140] for line in telling[:TELLING_LINES]]


def run(stage: Stage) -> tuple[Count, list[str]]:
    """Runs a stage: its count, where one without a report is a single test; and what it printed."""
    if stage.report is not None:
        stage.report.unlink(missing_ok=True)
    print(f"\n==== {stage.name} ====", flush=True)
    process = subprocess.Popen(
        stage.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
    )
    output: list[str] = []

    def pass_on() -> None:
        for line in process.stdout or ():
            output.append(COLOR.sub("", line.rstrip("\n")))
            print(line, end="", flush=True)

    reader = threading.Thread(target=pass_on, daemon=True)
    reader.start()
    try:
        status = process.wait(STAGE_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{stage.name}: still running after {STAGE_SECONDS} s", flush=True)
        process.terminate()  # not kill: mpirun ends its ranks when it is asked to end
        status = process.wait() or 1
    reader.join(10)  # not for ever: a process that it left behind may still hold the pipe
    if stage.report is None or not stage.report.exists():
        return Count(passed=int(status == 0), failed=int(status != 0)), output
    result = count(stage.report)
    if status != 0 and result.failed == 0:
        result += Count(failed=1)
    return result, output


def main() -> None:
    """Runs the stages; the exit status tells whether all of them passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=("all", "torch", "tensorflow"), default="all")
    args = parser.parse_args()
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)

    total = Count()
    lines = []
    failures = []
    for stage in stages(args.framework):
        start = time.monotonic()
        result, output = run(stage)
        total += result
        if result.failed:
            failures += [f"-- {stage.name}:", *gist(output)]
        lines.append(f"{stage.name:15} {time.monotonic() - start:5.0f} s  {result}")
    print("\n==== summary ====", *lines, sep="\n")
    print(total, *failures, sep="\n")
    sys.exit(total.failed != 0)


if __name__ == "__main__":
    main()
