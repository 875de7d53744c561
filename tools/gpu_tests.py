"""Tests and times the GPU code on a machine with a GPU: `make gputest`.

Runs stages like run_tests.py, one after another, each with a time limit; a failing stage does not
stop the others. The stages form four parts, any of which can be selected. A summary comes last:
what failed or was skipped, and why; what was timed, beside its aims. The folder of reports receives
all output, gputest.log, and all timings, as JSON.

The exit status is 0 if all stages ran on the GPU and none failed, 1 if one failed, 2 if none failed
but some did not run, for example because there is no GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import run_tests
from run_tests import REPORTS, ROOT, Cores, Outcome, Stage, ddp_stage, pytest_stage
from sanitize_cuda import TOOLS

PARTS = ("build", "tests", "sanitizers", "benchmark")
BUILD_SECONDS, TEST_SECONDS, SANITIZER_SECONDS, BENCHMARK_SECONDS = 400.0, 300.0, 100.0, 150.0
TAKE_HOROVOD = ("tests/unit", "tests/parallel")
TEST_PROGRAM = "build/cuda/cuda_tests"
HOROVOD_STAGE = "horovod on a GPU"
ON_GPU = "HVD_SPARSE_TEST_DEVICE=cuda"
# Variables of the environment of DDP's ranks, which share the GPUs, by the stage's name.
DDP_STAGES = {
    "ddp on a GPU": (ON_GPU,),
    "ddp over NCCL": (
        ON_GPU,
        "HVD_SPARSE_TEST_BACKEND=cpu:gloo,cuda:nccl",
        "HVD_SPARSE_NCCL=1",
        "CUDA_MODULE_LOADING=EAGER",
    ),
}
FAILURE_LINES, REASON_LINES, FIGURE_LINES = 48, 8, 16  # of the summary
WIDTH = 140


@dataclass(frozen=True)
class Device:
    """The GPU that CUDA numbers 0.

    Attributes:
        architecture: CMake's name for its architecture: "90".
        missing: Reason why there is no GPU; empty if there is one.
    """

    architecture: str = ""
    missing: str = ""

    @classmethod
    def found(cls) -> Device:
        """Asks the driver, which needs no other software."""
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            return cls(missing=f"no device: {error}")
        status = driver.cuInit(0)
        if status != 0:
            return cls(missing=f"no device: cuInit says {status}")
        count, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        driver.cuDeviceGetCount(ctypes.byref(count))
        if count.value == 0:
            return cls(missing="no device: the driver sees none")
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)  # the compute capability
        driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0)
        return cls(f"{major.value}{minor.value}")


def stages(part: str, reports: Path) -> Iterator[Stage]:
    """Yields the stages of a part, the most informative ones first."""
    if part == "build":
        yield Stage("module", ["make", "build"], seconds=BUILD_SECONDS)
        yield Stage("C++ programs", ["make", "cudaprograms"], seconds=BUILD_SECONDS)
    if part == "tests":
        report = ROOT / "build" / "cuda" / "report.xml"
        yield Stage("C++", ["make", "cudatest"], report, seconds=TEST_SECONDS)
        for name, ranks in (("devices", 0), ("unit", 0), ("parallel", 2)):
            title, cores = f"{name} on a GPU", Cores.ALL
            stage = pytest_stage(title, f"tests/{name}", ranks=ranks, cores=cores, marked="gpu")
            yield replace(stage, seconds=TEST_SECONDS)
        stage = pytest_stage(
            *(HOROVOD_STAGE, "tests/parallel"),
            ranks=2,
            cores=Cores.ALL,
            marked="not gpu and not long",
            environment=ON_GPU,
        )
        yield replace(stage, seconds=TEST_SECONDS)
        for title, variables in DDP_STAGES.items():
            stage = ddp_stage(2, Cores.ALL, name=title, variables=variables)
            yield replace(stage, seconds=TEST_SECONDS)
    if part == "sanitizers":
        for tool in TOOLS:
            report = REPORTS / f"{tool}.xml"
            command = [sys.executable, "tools/sanitize_cuda.py", "--tool", tool]
            command += ["--report", str(report), "--seconds", str(SANITIZER_SECONDS)]
            yield Stage(tool, [*command, TEST_PROGRAM], report, seconds=SANITIZER_SECONDS + 15)
    if part == "benchmark":
        for name, options in (
            ("blocks", ["--no-selection", "--numel", "25600000", "--steps", "64"]),
            ("selection", ["--no-side-by-side", "--numel", "25600000", "--steps", "64"]),
            ("large blocks", ["--no-selection", "--numel", "256000000", "--steps", "16"]),
        ):
            file = reports / f"gputest_{name.replace(' ', '_')}.json"
            command = [sys.executable, "benchmarks/kernels.py", "--device", "cuda:0", *options]
            yield Stage(name, [*command, "--json", str(file)], seconds=BENCHMARK_SECONDS)


def horovod_sums_on_gpus() -> bool:
    """Returns true if Horovod was built for PyTorch's tensors on a GPU."""
    import horovod.torch as hvd

    return bool(hvd.cuda_built())


def missing_for(stage: Stage, part: str, device: Device) -> str:
    """Returns the reason why a stage cannot run here; empty if it can."""
    if part == "build":
        return ""
    if device.missing:
        return device.missing
    takes_horovod = any(folder in stage.command for folder in TAKE_HOROVOD)
    if takes_horovod and importlib.util.find_spec("horovod") is None:
        return "no Horovod"
    if stage.name == HOROVOD_STAGE and not horovod_sums_on_gpus():
        return "this Horovod was built for the CPU"
    if part == "sanitizers" and shutil.which("compute-sanitizer") is None:
        return "no compute-sanitizer on PATH"
    if shutil.which(stage.command[0]) is None:
        return f"no {stage.command[0]} on PATH"
    return ""


def reasons(report: Path | None) -> Counter[str]:
    """Counts a report's skipped tests by reason."""
    found: Counter[str] = Counter()
    if report is None or not report.exists():
        return found
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            printed = (case.findtext("system-out") or "").split("Skipped\n")[1:]  # by GoogleTest
            reason = printed[0] if printed else skipped.get("message", "")
            found[reason.strip().partition("\n")[0][:120]] += 1
    return found


def figures(file: Path) -> Iterator[str]:
    """Yields a line for each result of a benchmark that has an aim, and for each that is wrong."""
    for result in json.loads(file.read_text()):
        if not result["verified"]:
            yield f"error: NOT VERIFIED: {result['title']}"
        for row in result["rows"]:
            facts = {name: fact for name, fact in row["facts"].items() if fact != ""}
            if any(name.startswith("aim") for name in facts):
                shown = (
                    f"{name} {fact:.4g}" if isinstance(fact, float) else f"{name} {fact}"
                    for name, fact in facts.items()
                )
                yield f"{row['name']} ({result['title']}): {', '.join(shown)}"


class Summary:
    """Collects the outcomes of the stages."""

    def __init__(self) -> None:
        self.failed = self.not_run = False
        self._lines: list[str] = []
        self._failures: dict[str, list[str]] = {}
        self._reasons: Counter[str] = Counter()

    def add_skipped(self, stage: Stage, why: str) -> None:
        """Adds a stage that could not run."""
        self.not_run = True
        self._lines.append(f"{stage.name:18} skipped: {why}")

    def add(self, stage: Stage, outcome: Outcome) -> None:
        """Adds a stage that has run."""
        count = outcome.count
        said = str(count)
        if count.failed:
            self.failed = True
            self._failures[stage.name] = run_tests.gist(outcome.output, FAILURE_LINES)
        elif count.skipped >= count.passed:  # some never need the GPU
            self.not_run = True
            said = f"skipped: {count.skipped} tests, {count.passed} passed"
        self._lines.append(f"{stage.name:18} {outcome.seconds:4.0f} s  {said}")
        self._reasons += reasons(stage.report)

    def show(self, found: list[str]) -> None:
        """Prints the summary, with the figures found."""
        print("\n==== summary ====", *self._lines, sep="\n")
        for reason, many in self._reasons.most_common(REASON_LINES):
            print(f"{many} skipped: {reason}"[:WIDTH])
        for name, gist in self._failures.items():
            print(f"-- {name}:", *gist[: FAILURE_LINES // len(self._failures)], sep="\n")
        for line in found[:FIGURE_LINES]:
            print(line[:WIDTH])
        if self.failed:
            print("something failed")
        elif self.not_run:
            print("nothing failed, but not everything ran: this says nothing about what did not")
        else:
            print("all passed")


def run_parts(parts: list[str], device: Device, reports: Path) -> Summary:
    """Runs the stages of these parts; their figures are left in the folder of reports."""
    summary = Summary()
    for file in reports.glob("gputest_*.json"):  # from an earlier run
        file.unlink()
    with (reports / "gputest.log").open("w") as log:
        for part in parts:
            for stage in stages(part, reports):
                why = missing_for(stage, part, device)
                if why:
                    summary.add_skipped(stage, why)
                    continue
                outcome = run_tests.run(stage)
                print(f"\n==== {stage.name} ====", *outcome.output, sep="\n", file=log, flush=True)
                summary.add(stage, outcome)
    return summary


def main() -> None:
    """Parses the arguments and runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=" ".join(PARTS))
    parser.add_argument("--reports", type=Path, default=REPORTS, help="the folder to write to")
    args = parser.parse_args()
    parts = args.parts or list(PARTS)
    for part in parts:
        if part not in PARTS:
            parser.error(f"a part is one of {', '.join(PARTS)}, got {part!r}")
    REPORTS.mkdir(parents=True, exist_ok=True)
    reports = args.reports.resolve()
    reports.mkdir(parents=True, exist_ok=True)

    device = Device.found()
    print(device.missing or f"cuda:0 is a GPU of sm_{device.architecture}", flush=True)
    os.environ["HVD_SPARSE_WITH_CUDA"] = "1"
    if device.architecture:  # compiling for other architectures takes several times as long
        os.environ.setdefault("CUDAARCHS", device.architecture)
    os.environ.setdefault("PYTEST_TIMEOUT", "60")  # seconds per test: shows where one hangs
    summary = run_parts(parts, device, reports)
    files = sorted(reports.glob("gputest_*.json"))
    summary.show([line for file in files for line in figures(file)])
    sys.exit(1 if summary.failed else 2 if summary.not_run else 0)


if __name__ == "__main__":
    main()
