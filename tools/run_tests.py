"""Runs every check and test, stage by stage, and adds up what they report.

What takes long and shows what others show in part is left out; --long runs it alone. Stages that
leave cores to others run beside each other. A stage that fails does not keep the others from
running. Each one leaves a report in build/reports, which the closing line is counted from; what
failed is said once more at the very end, which is what continuous integration shows.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from process_groups import end_group

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "build" / "reports"
STAGE_SECONDS = 3600  # of patience with one stage; every single test has its own, shorter limit
# How lines begin that say why a stage failed: pytest's, those of a rank that ended
# (tests/rank_guard.py) or crashed, of ctest, GoogleTest, compute-sanitizer, compilers and linters.
TELLING = re.compile(
    r"E  |FAILED|rank \d+: |Timeout \(|Fatal Python|  File .* in test_|.*\*\*\*(Failed|Timeout)"
    r"|.*: Failure$|C\+\+ exception|=========\s+(Invalid|Uninit|Barrier|Divergent|Error|at )"
    r"|.*\berror\b"
)
TELLING_LINES = 10
# Milliseconds. Horovod holds a lock in its rounds, which are slow where ranks share cores. Without
# a pause between them an operation of TensorFlow may wait for the lock for many seconds.
UNHURRIED = "HOROVOD_CYCLE_TIME=5"
# Jobs that break; a stage of their own, so that they run beside other jobs.
FAULTS = ("tests/jobs/test_faults.py", "tests/jobs/test_op_memory.py")
COLOR = re.compile(r"\x1b\[[0-9;]*m")


class Cores(Enum):
    """How many of the machine's cores a stage keeps busy."""

    ONE = "one"
    SOME = "some"  # it has many processes, which wait much of the time
    ALL = "all"


# How many of such stages run at a time, and in which order: C++ builds what the emulated GPU takes.
AT_A_TIME = {Cores.ONE: len(os.sched_getaffinity(0)), Cores.ALL: 1, Cores.SOME: 2}


@dataclass(frozen=True)
class Stage:
    """One command.

    Attributes:
        report: Where it writes its results as JUnit XML, if it does.
        cores: How many it keeps busy.
        seconds: After so many it is ended, with all that it has started; None: STAGE_SECONDS, for
            the command alone.
    """

    name: str
    command: list[str]
    report: Path | None = None
    cores: Cores = Cores.ALL
    seconds: float | None = None


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


@dataclass(frozen=True)
class Outcome:
    """What became of a stage."""

    count: Count
    output: list[str]
    seconds: float


def pytest_stage(
    name: str,
    *what: str,
    ranks: int = 0,
    cores: Cores = Cores.ONE,
    marked: str = "not long",
    environment: str = "",
    plugin: str = "",
) -> Stage:
    """pytest on `what`, alone or on `ranks` processes, the first of which reports.

    `what` are paths and further options. Several processes are given a variable, as in
    `environment="NAME=value"`. pytest loads `plugin`.
    """
    report = REPORTS / f"{name.replace(' ', '-')}.xml"
    color = "yes" if sys.stdout.isatty() else "no"  # mpirun always pretends to be a terminal
    options = ["-q", "-p", "no:cacheprovider", f"--color={color}", "-m", marked]
    options += ["-p", plugin] if plugin else []
    silent = [sys.executable, "-m", "pytest", *options, *what]
    reporting = [*silent, f"--junit-xml={report}"]
    if ranks == 0:
        return Stage(name, reporting, report, cores)
    exported = ["-x", environment] if environment else []
    command = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    command += [*exported, "-np", "1", *reporting]
    if ranks > 1:
        command += [":", *exported, "-np", str(ranks - 1), *silent]
    return Stage(name, command, report, cores)


def stages(framework: str) -> Iterator[Stage]:
    """All stages, or those of one framework.

    With an odd number of ranks, and with powers of two. What they exchange is the same for both
    frameworks, so that they take turns.
    """
    # Those of one core, the longest first: it would be left alone in the end.
    if framework in ("all", "torch"):
        yield pytest_stage("unit", "tests/unit")
        yield pytest_stage("devices", "tests/devices", marked="not gpu and not long")
        yield pytest_stage("parallel on 1", "tests/parallel", ranks=1)
    if framework in ("all", "tensorflow"):
        yield pytest_stage("tensorflow on 1", "tests/parallel_tensorflow", ranks=1)
    yield Stage("lint", ["make", "lint"], cores=Cores.ONE)
    yield Stage("doctor", [sys.executable, "-m", "hvd_sparse", "doctor"], cores=Cores.ONE)

    # Those that wait, the longest first, too.
    if framework in ("all", "torch"):
        others = [f"--ignore={path}" for path in FAULTS]
        marked = "not long and not timed"
        yield pytest_stage("jobs", "tests/jobs", *others, cores=Cores.SOME, marked=marked)
    if framework in ("all", "tensorflow"):
        yield pytest_stage(
            "tensorflow on 2",
            "tests/parallel_tensorflow",
            ranks=2,
            cores=Cores.SOME,
            environment=UNHURRIED,
        )
    if framework in ("all", "torch"):
        yield pytest_stage("faults", *FAULTS, cores=Cores.SOME)
        yield pytest_stage(
            "emulated GPU",
            "tests/devices",
            "--one-in=3",
            cores=Cores.SOME,
            marked="gpu",
            plugin="tests.emulated_core",
        )
        yield pytest_stage(
            "emulated GPU on 2",
            "tests/parallel",
            ranks=2,
            cores=Cores.SOME,
            marked="gpu",
            plugin="tests.emulated_core",
        )

    cpptest = ["make", "-o", "build", "cpptest"]  # the module is built: what runs this saw to it
    yield Stage("C++", cpptest, ROOT / "build" / "tests" / "report.xml")
    if shutil.which("nvcc"):  # compiles for GPUs, and needs none
        yield Stage("CUDA", ["make", "cuda"])
    if framework in ("all", "torch"):
        yield pytest_stage("parallel on 3", "tests/parallel", ranks=3, cores=Cores.ALL)
        yield pytest_stage("parallel on 4", "tests/parallel", ranks=4, cores=Cores.ALL)
        yield pytest_stage("timed jobs", "tests/jobs", cores=Cores.ALL, marked="not long and timed")


def long_stages(framework: str) -> Iterator[Stage]:
    """What takes long: other numbers of ranks, and tests that are marked."""
    if framework in ("all", "tensorflow"):
        yield pytest_stage("tensorflow on 3", "tests/parallel_tensorflow", ranks=3, cores=Cores.ALL)
    if framework in ("all", "torch"):
        yield pytest_stage("parallel on 2", "tests/parallel", ranks=2, cores=Cores.ALL)
        yield pytest_stage("long jobs", "tests/jobs", cores=Cores.ALL, marked="long")
        yield Stage("emulated GPU", ["make", "-o", "build", "emulated"])


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


def gist(output: list[str], lines: int = TELLING_LINES) -> list[str]:
    """The few lines of a failed stage that say why."""
    telling = [line for line in output if TELLING.match(line)] or output
    return [line[:140] for line in telling[:lines]]


def run(stage: Stage) -> Outcome:
    """Runs a stage, and prints what it does: as it comes, or in the end where it is not alone."""
    if stage.report is not None:
        stage.report.unlink(missing_ok=True)
    output = [f"\n==== {stage.name} ===="]

    def pass_on() -> None:
        for line in process.stdout or ():
            output.append(line.rstrip("\n"))
            if stage.cores is Cores.ALL:
                print(output[-1], flush=True)

    if stage.cores is Cores.ALL:
        print(output[0], flush=True)
    start = time.monotonic()
    process = subprocess.Popen(
        stage.command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
        start_new_session=stage.seconds is not None,
    )
    reader = threading.Thread(target=pass_on, daemon=True)
    reader.start()
    limit = stage.seconds or STAGE_SECONDS
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        output.append(f"error: {stage.name} was still running after {limit:.0f} s")
        print(output[-1], flush=True)
        process.terminate()  # not kill: mpirun ends its ranks when it is asked to end
        status = 1
    finally:
        if stage.seconds is not None:
            end_group(process)
    process.wait()
    reader.join(10)  # not for ever: a process that it left behind may still hold the pipe
    if stage.report is not None and not stage.report.exists():
        output.append(f"error: {stage.name} has left no report in {stage.report}")
    if stage.cores is not Cores.ALL:  # others print, too
        print("\n".join(output), flush=True)
    plain = [COLOR.sub("", line) for line in output[1:]]
    return Outcome(count_of(stage, status), plain, time.monotonic() - start)


def count_of(stage: Stage, status: int) -> Count:
    """Of a stage that has ended; one that writes no report is a single test."""
    if stage.report is None:
        return Count(passed=int(status == 0), failed=int(status != 0))
    if not stage.report.exists():
        return Count(failed=1)
    result = count(stage.report)
    if status != 0 and result.failed == 0:
        result += Count(failed=1)
    return result


def run_all(wanted: list[Stage]) -> Iterator[tuple[Stage, Outcome]]:
    """Runs stages, as many at a time as AT_A_TIME says."""
    for cores, many in AT_A_TIME.items():
        group = [stage for stage in wanted if stage.cores is cores]
        if group and cores is not Cores.ALL:
            print("\nside by side:", ", ".join(stage.name for stage in group), flush=True)
        with ThreadPoolExecutor(many) as threads:
            yield from zip(group, threads.map(run, group), strict=True)


def main() -> None:
    """Runs the stages; the exit status tells whether all of them passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=("all", "torch", "tensorflow"), default="all")
    parser.add_argument("--long", action="store_true", help="what is left out otherwise, alone")
    args = parser.parse_args()
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)

    total = Count()
    lines = []
    failures = []
    wanted = long_stages if args.long else stages
    for stage, outcome in run_all(list(wanted(args.framework))):
        total += outcome.count
        if outcome.count.failed:
            failures += [f"-- {stage.name}:", *gist(outcome.output)]
        lines.append(f"{stage.name:15} {outcome.seconds:5.0f} s  {outcome.count}")
    print("\n==== summary ====", *lines, sep="\n")
    print(total, *failures, sep="\n")
    sys.exit(total.failed != 0)


if __name__ == "__main__":
    main()
