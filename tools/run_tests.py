"""Runs every check and test, stage by stage, and adds up the reported results.

Left out are slow tests whose subject other tests cover in part, most cases of tests with several
parameters, and what looks at tools, pages or benchmarks alone; --long runs all of those. Stages
that leave cores free run beside each other. A failing stage does not stop the others. Each stage
writes a report to build/reports, from which the last line is counted; failures are repeated at the
very end, which is the part that continuous integration shows.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from process_groups import end_group

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "build" / "reports"
STAGE_SECONDS = 3600  # limit of one stage; every single test has its own, shorter limit
TORCH_ALONE_SECONDS = 900  # compiling is most of it, where nothing is compiled yet
# Beginnings of lines that say why a stage failed: from pytest, a rank that ended
# (tests/rank_guard.py) or crashed, ctest, GoogleTest, compute-sanitizer, compilers and linters.
TELLING = re.compile(
    r"E  |FAILED|rank \d+: |Timeout \(|Fatal Python|  File .* in test_|.*\*\*\*(Failed|Timeout)"
    r"|.*: Failure$|C\+\+ exception|=========\s+(Invalid|Uninit|Barrier|Divergent|Error|at )"
    r"|.*\berror\b"
)
TELLING_LINES = 10
# Milliseconds. Horovod holds a lock during its cycles, which are slow if ranks share cores. Without
# a pause between them an operation of TensorFlow may wait for the lock for many seconds.
UNHURRIED = "HOROVOD_CYCLE_TIME=5"
# Jobs that fail on purpose; a stage of their own, so that they run beside other jobs.
FAULTS = ("tests/jobs/test_faults.py", "tests/jobs/test_op_memory.py")
# Jobs of torchrun; likewise.
DDP_JOBS = tuple(
    f"tests/jobs/test_{part}.py" for part in ("ddp", "ddp_adapters", "ddp_hooks", "fsdp")
)
# Parts of the tests, as options of tests/shares.py. The frameworks share the cases of their laws;
# what one rank can test as well as several is dealt out to both.
PART, FRAMEWORKS_PART = "--every=4", "--every=8"
FSDP_PART = "--every=16 --laws=1/8"  # its steps are those of the others
TORCH_PART, DDP_PART, TENSORFLOW_PART = (f"{FRAMEWORKS_PART} --laws={one}/3" for one in (1, 2, 3))
ALONE, TOGETHER = " --share=1/2", " --share=2/2"
# C++ tests that compute for seconds, and repeat what others show: of the same kernels with fewer
# lengths or other types, of the same steps with other options.
LONG_CPP = (
    "DenseWorkOnDevice.CodesHaveTheBitsOfTheCpu",
    "DeviceOutOfMemory.InAnyAllocationOfAStepLosesNothing/Devices_gaussian",
    "FeedbackOfType.TakingEqualsOneAfterTheOther.*<(double|hvd_sparse::.*)>",
    "FollowThreshold.TheCountStaysLawfulWhenTheGradientJumps/(sampled|sidco)",
    "FollowThreshold.TheMeanCountIsK",
    "LargeBucket.EntriesBeyondTwoToThe31BytesAreExchanged",
    "OnePass.AndNoSampleInTheSteadyState/top_k",
    "On/OutOfMemory.InAnyAllocationOfAStepLosesNothing/ItsOwnThread",
    "ScatterInto.EqualsThePlainLoopWhere.*<(double|hvd_sparse::.*)>",
)
# Folders and files of one framework alone; pages are of none.
OWN_PATHS = {
    "torch": (
        "hvd_sparse/pytorch/",
        "hvd_sparse/torch/",
        "hvd_sparse/ddp/",
        "hvd_sparse/fsdp/",
        "tests/parallel/",
    ),
    "tensorflow": (
        "hvd_sparse/tensorflow/",
        "tests/parallel_tensorflow/",
        "csrc/bindings/tensorflow",
    ),
}
COLOR = re.compile(r"\x1b\[[0-9;]*m")


class Cores(Enum):
    """Number of the machine's cores that a stage keeps busy."""

    ONE = "one"
    SOME = "some"  # many processes, which are often idle
    ALL = "all"


# Number of stages at a time, in this order: C++ builds what the emulated GPU needs.
AT_A_TIME = {Cores.ONE: len(os.sched_getaffinity(0)), Cores.ALL: 1, Cores.SOME: 2}


@dataclass(frozen=True)
class Stage:
    """A command that checks something.

    Attributes:
        report: File to which it writes its results as JUnit XML, if it does.
        cores: Number of cores that it keeps busy.
        seconds: Time limit, after which the command is ended with all processes that it started;
            None: STAGE_SECONDS, and only the command itself is ended.
    """

    name: str
    command: list[str]
    report: Path | None = None
    cores: Cores = Cores.ALL
    seconds: float | None = None


@dataclass(frozen=True)
class Count:
    """Number of tests by outcome."""

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
    """Result of a stage."""

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
    part: str = "",
) -> Stage:
    """Returns a stage that runs pytest alone, or on `ranks` processes, the first of which reports.

    `what` are paths and further options. `environment`, as in "NAME=value", is a variable for
    several processes. pytest runs the `part` of the tests that options of tests/shares.py tell: as
    in "--every=4 --share=1/2".
    """
    report = REPORTS / f"{name.replace(' ', '-')}.xml"
    color = "yes" if sys.stdout.isatty() else "no"  # mpirun always pretends to be a terminal
    options = ["-q", "-p", "no:cacheprovider", f"--color={color}", "-m", marked]
    options += ["-p", "tests.shares", *part.split()] if part else []
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


def ddp_stage(
    ranks: int,
    cores: Cores,
    *,
    name: str = "",
    folder: str = "ddp",
    marked: str = "not long",
    part: str = "",
    variables: Sequence[str] = (),
) -> Stage:
    """Returns a stage that runs the tests of hvd_sparse.ddp, or .fsdp, on ranks of torchrun.

    `variables`, each as in "NAME=value", are those of the ranks' environment.
    """
    name = name or f"{folder} on {ranks}"
    alone = pytest_stage(name, f"tests/parallel_{folder}", cores=cores, marked=marked, part=part)
    launch = ["torchrun", "--standalone", "--nproc-per-node", str(ranks), "--no-python"]
    return replace(alone, command=["env", *variables, *launch, *alone.command])


def cpp_stage(choice: str) -> Stage:
    """Returns a stage that runs those C++ tests that an option of ctest chooses among LONG_CPP."""
    options = f"CTEST_OPTIONS={choice} '{'|'.join(LONG_CPP)}'"
    cpptest = ["make", "-o", "build", "cpptest", options]  # make has built the module
    return Stage("C++", cpptest, ROOT / "build" / "tests" / "report.xml")


def stages(framework: str) -> Iterator[Stage]:
    """Yields all stages, or those of one framework.

    Numbers of ranks are odd ones and powers of two. The frameworks take turns in them, since they
    exchange the same things.
    """
    # Stages of one core, the longest first, so that it does not run alone in the end.
    if framework in ("all", "torch"):
        yield pytest_stage("unit", "tests/unit", part=PART)
        marked = "not gpu and not long"
        yield pytest_stage("devices", "tests/devices", marked=marked, part=PART)
    if framework in ("all", "tensorflow"):
        part = TENSORFLOW_PART + ALONE
        yield pytest_stage("tensorflow on 1", "tests/parallel_tensorflow", ranks=1, part=part)
    if framework in ("all", "torch"):
        yield pytest_stage("parallel on 1", "tests/parallel", ranks=1, part=TORCH_PART + ALONE)
        yield ddp_stage(1, Cores.ONE, part=DDP_PART + ALONE)
    yield Stage("lint", ["make", "lint"], cores=Cores.ONE)
    yield Stage("doctor", [sys.executable, "-m", "hvd_sparse", "doctor"], cores=Cores.ONE)

    # Stages that are often idle, also the longest first.
    if framework in ("all", "torch"):
        others = [f"--ignore={path}" for path in (*FAULTS, *DDP_JOBS)]
        marked = "not long and not timed"
        yield pytest_stage("jobs", "tests/jobs", *others, cores=Cores.SOME, marked=marked)
        yield pytest_stage("ddp jobs", *DDP_JOBS, cores=Cores.SOME)
        yield pytest_stage("faults", *FAULTS, cores=Cores.SOME)

    yield cpp_stage("--exclude-regex")
    if framework in ("all", "torch"):
        part = TORCH_PART + TOGETHER
        yield pytest_stage("parallel on 3", "tests/parallel", ranks=3, cores=Cores.ALL, part=part)
        yield ddp_stage(4, Cores.ALL, part=DDP_PART + TOGETHER)
        yield ddp_stage(4, Cores.ALL, folder="fsdp", part=FSDP_PART)
        yield pytest_stage("timed jobs", "tests/jobs", cores=Cores.ALL, marked="not long and timed")
    if framework in ("all", "tensorflow"):
        # Alone: an operation of Horovod takes seconds instead of milliseconds where another stage
        # has the cores.
        yield pytest_stage(
            "tensorflow on 2",
            "tests/parallel_tensorflow",
            ranks=2,
            cores=Cores.ALL,
            environment=UNHURRIED,
            part=TENSORFLOW_PART + TOGETHER,
        )


def long_stages(framework: str) -> Iterator[Stage]:
    """Yields the slow stages: what `stages` leaves out, and other numbers of ranks."""
    if framework in ("all", "torch"):
        yield pytest_stage("unit", "tests/unit", marked="")
        yield pytest_stage("devices", "tests/devices", marked="not gpu")
        yield pytest_stage("parallel on 1", "tests/parallel", ranks=1, marked="")
        yield ddp_stage(1, Cores.ONE, marked="")
    if framework in ("all", "tensorflow"):
        yield pytest_stage("tensorflow on 1", "tests/parallel_tensorflow", ranks=1, marked="")

    if framework in ("all", "tensorflow"):
        for ranks in (2, 3):
            yield pytest_stage(
                f"tensorflow on {ranks}",
                "tests/parallel_tensorflow",
                ranks=ranks,
                cores=Cores.ALL,
                marked="",
                environment=UNHURRIED,
            )
    if framework in ("all", "torch"):
        for ranks in (2, 3, 4):
            yield pytest_stage(
                f"parallel on {ranks}", "tests/parallel", ranks=ranks, cores=Cores.ALL, marked=""
            )
            yield ddp_stage(ranks, Cores.ALL, marked="")
            yield ddp_stage(ranks, Cores.ALL, folder="fsdp", marked="")
        yield pytest_stage("long jobs", "tests/jobs", cores=Cores.ALL, marked="long")
        # After unit tests, one of which makes an sdist, too: all are made in one folder.
        alone = [sys.executable, "tools/try_torch_alone.py"]
        yield Stage("torch alone", alone, seconds=TORCH_ALONE_SECONDS)
        yield Stage("demo", ["make", "-o", "build", "demo"])
    yield cpp_stage("--tests-regex")
    if framework in ("all", "torch"):
        yield Stage("emulated GPU", ["make", "-o", "build", "emulated"])
    if shutil.which("nvcc"):
        yield Stage("CUDA", ["make", "cuda"])


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
    """Returns the few lines of a failed stage's output that say why."""
    telling = [line for line in output if TELLING.match(line)] or output
    return [line[:140] for line in telling[:lines]]


def run(stage: Stage) -> Outcome:
    """Runs a stage, and prints its output: at once, or at the end if other stages run beside it."""
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
        process.terminate()  # not kill: mpirun ends its ranks on SIGTERM
        status = 1
    finally:
        if stage.seconds is not None:
            end_group(process)
    process.wait()
    reader.join(10)  # with a limit: a process left behind may still hold the pipe
    if stage.report is not None and not stage.report.exists():
        output.append(f"error: {stage.name} has left no report in {stage.report}")
    if stage.cores is not Cores.ALL:  # other stages print, too
        print("\n".join(output), flush=True)
    plain = [COLOR.sub("", line) for line in output[1:]]
    return Outcome(count_of(stage, status), plain, time.monotonic() - start)


def count_of(stage: Stage, status: int) -> Count:
    """Counts a stage's tests; a stage without a report is a single test."""
    if stage.report is None:
        return Count(passed=int(status == 0), failed=int(status != 0))
    if not stage.report.exists():
        return Count(failed=1)
    result = count(stage.report)
    if status != 0 and result.failed == 0:
        result += Count(failed=1)
    return result


def run_all(wanted: list[Stage]) -> Iterator[tuple[Stage, Outcome]]:
    """Runs stages, AT_A_TIME of them beside each other."""
    for cores, many in AT_A_TIME.items():
        group = [stage for stage in wanted if stage.cores is cores]
        if group and cores is not Cores.ALL:
            print("\nside by side:", ", ".join(stage.name for stage in group), flush=True)
        with ThreadPoolExecutor(many) as threads:
            yield from zip(group, threads.map(run, group), strict=True)


def changed_paths() -> list[str]:
    """Returns the files that were changed since the last commit, else those that it changed."""

    def said_by(*command: str) -> list[str]:
        done = subprocess.run(
            ["git", *command], cwd=ROOT, check=True, capture_output=True, text=True
        )
        return done.stdout.splitlines()

    changed = said_by("diff", "--name-only", "HEAD")
    changed += said_by("ls-files", "--others", "--exclude-standard")
    return changed or said_by("diff", "--name-only", "HEAD~1", "HEAD")


def framework_of(paths: Sequence[str]) -> str:
    """Returns the framework that a change of some files concerns: one, "all" or "none"."""
    found = set()
    for path in paths:
        owners = [name for name, own in OWN_PATHS.items() if path.startswith(own)]
        if not path.endswith(".md"):
            found |= set(owners or OWN_PATHS)
    return "all" if len(found) > 1 else next(iter(found), "none")


def main() -> None:
    """Runs the stages; the exit status is 0 if all of them passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=("all", "torch", "tensorflow"), default="all")
    parser.add_argument("--long", action="store_true", help="what is left out otherwise, alone")
    parser.add_argument("--changed", action="store_true", help="only what a change concerns")
    args = parser.parse_args()
    framework = framework_of(changed_paths()) if args.changed else args.framework
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)

    total = Count()
    lines = []
    failures = []
    wanted = long_stages if args.long else stages
    for stage, outcome in run_all(list(wanted(framework))):
        total += outcome.count
        if outcome.count.failed:
            failures += [f"-- {stage.name}:", *gist(outcome.output)]
        lines.append(f"{stage.name:15} {outcome.seconds:5.0f} s  {outcome.count}")
    print("\n==== summary ====", *lines, sep="\n")
    print(total, *failures, sep="\n")
    sys.exit(total.failed != 0)


if __name__ == "__main__":
    main()
