"""Runs the C++ tests of CUDA under all tools of compute-sanitizer, or under one.

    python tools/sanitize_cuda.py --tool racecheck build/cuda/cuda_tests

Each test runs in a process of its own: after a tool's finding, nothing else works in that process.
One test runs per core at a time. Errors returned by CUDA's calls are not reported: tests provoke
some, and the core checks all of them itself.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from process_groups import end_group

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
TEST_SECONDS = 120  # limit of one test
FOUND = 99  # exit status if the tool has found something
NO_TIME = "no time was left"
SHOWN_LINES = 40  # of a failing test's output
FIRST_PORT = 49152  # the tool's connection to its program takes one of PORTS ports from here on
PORTS = 10


@dataclass(frozen=True)
class Verdict:
    """Result of a test.

    Attributes:
        outcome: "passed", "failed" or "skipped".
        why: Reason of a failure or a skip.
        output: Output of the test.
    """

    name: str
    outcome: str
    seconds: float = 0.0
    why: str = ""
    output: str = ""


class Sanitizer:
    """Runs tests of a program under a tool, until the time is up."""

    def __init__(self, tool: str, program: Path, jobs: int, seconds: float) -> None:
        self._tool, self._program = tool, program
        self._end = time.monotonic() + seconds
        self._ports: queue.SimpleQueue[int] = queue.SimpleQueue()
        for job in range(jobs):
            self._ports.put(FIRST_PORT + PORTS * job)

    def run(self, name: str) -> Verdict:
        """Runs one test."""
        patience = min(TEST_SECONDS, self._end - time.monotonic())
        if patience < 1:
            return Verdict(name, "skipped", why=NO_TIME)
        port = self._ports.get()
        try:
            with tempfile.TemporaryDirectory() as folder:
                return self._run(name, port, Path(folder, "report.xml"), patience)
        finally:
            self._ports.put(port)

    def _run(self, name: str, port: int, report: Path, patience: float) -> Verdict:
        command = [
            "compute-sanitizer", "--tool", self._tool, "--error-exitcode", str(FOUND),
            "--check-exit-code", "no", "--require-cuda-init", "no", "--port", str(port),
            *(["--report-api-errors", "no"] if self._tool == "memcheck" else []),
            str(self._program), f"--gtest_filter={name}", f"--gtest_output=xml:{report}",
        ]  # fmt: skip
        start = time.monotonic()
        output = report.with_name("output.txt")
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                status: int | None = process.wait(patience)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end_group(process)
        outcome, why = judge(status, patience, report)
        text = output.read_text(errors="replace")
        return Verdict(name, outcome, time.monotonic() - start, why, text)


def judge(status: int | None, patience: float, report: Path) -> tuple[str, str]:
    """Returns a test's outcome and reason, by its report and exit status (None: it did not end)."""
    if status is None and patience < TEST_SECONDS:
        return "skipped", NO_TIME
    if status is None:
        return "failed", f"still running after {patience:.0f} s"
    if status == FOUND:
        return "failed", "the tool has found something"
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    if len(cases) != 1:
        return "failed", f"it has left no report; exit status {status}"
    # The tool's own exit status does not tell if the test has failed.
    if cases[0].find("failure") is not None or status != 0:
        return "failed", f"the test fails, and the tool has found nothing; exit status {status}"
    skipped = cases[0].find("skipped")
    if skipped is not None:
        return "skipped", skipped.get("message", "")
    return "passed", ""


def tests_in(listing: str) -> Iterator[str]:
    """Yields the names in the output of --gtest_list_tests."""
    suite = ""
    for line in listing.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            yield suite + name.strip()
        elif name.endswith("."):
            suite = name


def write_report(verdicts: list[Verdict], tool: str, file: Path) -> None:
    """Writes JUnit XML, like pytest and ctest."""
    suite = ElementTree.Element("testsuite", name=tool, tests=str(len(verdicts)))
    for one in verdicts:
        case = ElementTree.SubElement(suite, "testcase", name=one.name, time=f"{one.seconds:.3f}")
        if one.outcome != "passed":
            kind = "failure" if one.outcome == "failed" else "skipped"
            ElementTree.SubElement(case, kind, message=one.why)
    ElementTree.ElementTree(suite).write(file)


def show(tool: str, verdict: Verdict) -> None:
    """Prints a test that has failed."""
    print(f"FAILED {tool} {verdict.name}: {verdict.why}")
    print("\n".join(verdict.output.splitlines()[:SHOWN_LINES]), flush=True)


def sanitize(tool: str, program: Path, seconds: float) -> list[Verdict]:
    """Runs all tests under one tool, and prints its findings."""
    listing = subprocess.run(
        [program, "--gtest_list_tests"], check=True, stdout=subprocess.PIPE, text=True
    )
    jobs = len(os.sched_getaffinity(0))
    sanitizer = Sanitizer(tool, program, jobs, seconds)
    verdicts = []
    with ThreadPoolExecutor(jobs) as threads:
        for verdict in threads.map(sanitizer.run, tests_in(listing.stdout)):
            verdicts.append(verdict)
            if verdict.outcome == "failed":
                show(tool, verdict)
    count = Counter(one.outcome for one in verdicts)
    counted = ", ".join(f"{count[one]} {one}" for one in ("passed", "failed", "skipped"))
    print(f"{tool}: {counted}", flush=True)
    return verdicts


def main() -> None:
    """Runs the tests; the exit status is 0 if all passed or were skipped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--tool", choices=TOOLS, help="all of them, one after another, unless said")
    parser.add_argument("--report", type=Path, help="JUnit XML of the one tool, to be written here")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="of each tool; then the rest is skipped"
    )
    args = parser.parse_args()
    if args.report and not args.tool:
        parser.error("--report is of one tool: name it with --tool")
    if shutil.which("compute-sanitizer") is None:
        sys.exit("error: there is no compute-sanitizer on PATH")
    failed = False
    for tool in [args.tool] if args.tool else TOOLS:
        verdicts = sanitize(tool, args.program, args.seconds)
        if args.report:
            write_report(verdicts, tool, args.report)
        failed |= not verdicts or any(one.outcome == "failed" for one in verdicts)
    sys.exit(failed)


if __name__ == "__main__":
    main()
