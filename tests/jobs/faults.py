"""Faults of one rank or link, their times, and the required reactions of the other ranks.

`python -m tests.jobs.faults` (make chaos) starts a job for each, breaks it, and prints a table; the
tests cover those that end quickly.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import virtual_cluster
from virtual_cluster import VirtualCluster

from tests.jobs.launch import JOB_SECONDS, ROOT, TELL_STATUS, Job, mpirun, mpirun_without_help

FAULTY = "tests/jobs/faulty.py"
RANKS = 3
LAST_STEP = "step 3 done"


@dataclass(frozen=True)
class Fault:
    """One way to break a job of three ranks.

    Attributes:
        name: Fault that faulty.py's last rank causes in its third step.
        phase: Phase of a step in which it happens.
        what: Description of the fault.
        says: Number of times that each message, a regular expression, must occur; none if empty.
        seconds: Limit, from the fault, for all ranks to end or continue.
        recovers: True if the job then succeeds.
        mpirun_ends_survivors: True if mpirun ends the survivors; otherwise they must end by
            themselves.
        env: Environment variables of all ranks.
        shm: Size of /dev/shm in mount's notation; empty: that of this machine.
        slow: True if it takes too long for a regular test.
        survivors: Ranks that are not broken.
    """

    name: str
    phase: str
    what: str
    says: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 15.0
    recovers: bool = False
    mpirun_ends_survivors: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    shm: str = ""
    slow: bool = False
    survivors: Sequence[int] = range(RANKS - 1)


DEAD = {"PeerLostError: rank 2 of 3 has died": 2}
ENDED = {"(?:ExchangeFailed|PeerLeft)Error: ": 2}
DISAGREE = "RanksDisagreeError: .*the ranks disagree: .*'batch [23]'; rank . .*'batch [23]'"
OUT_OF_MEMORY = "OutOfMemoryError: .*rank 2 ran out of memory in bucket '"
BUG = "ExchangeFailedError: rank 2 ended the exchange: unhandled RuntimeError: a bug in the user"

FAULTS = (
    Fault("kill in construction", "construction", "kill -9", mpirun_ends_survivors=True),
    Fault(
        "kill while connecting", "construction", "kill -9, while ranks connect",
        {"PeerLostError: rank ": 2, "PeerLostError: rank 2 of 3 .* has died while the ranks": 1},
    ),
    Fault(
        "kill rank 0 while connecting", "construction", "kill -9 of rank 0, while ranks connect",
        {"PeerLostError: rank .*rank 0": 1, "PeerLostError: ": 2}, survivors=(1, 2),
    ),
    Fault("kill", "between steps", "kill -9", DEAD),
    Fault(
        "exit", "between steps", "sys.exit(7)",
        {"PeerLeftError: .*rank 2 of 3 left exchange": 2}, seconds=10,
    ),
    Fault("kill in backward", "backward", "kill -9", DEAD),
    Fault("kill while others compute", "backward", "kill -9, while the others compute", DEAD),
    Fault("kill in exchange", "exchange", "kill -9", DEAD),
    Fault("kill in wait", "wait", "kill -9", DEAD),
    Fault("exception", "between steps", "an exception in the user's code", {BUG: 2}),
    Fault("nan", "backward", "a gradient with a NaN", {"NonFiniteGradientError: ": 3}),
    Fault("skip", "between steps", "a rank skips a step", ENDED),
    Fault(
        "skip", "between steps", "a rank skips a step, with HVD_SPARSE_CHECK=1",
        {DISAGREE: 3},
        env={"HVD_SPARSE_CHECK": "1"},
    ),
    Fault(
        "skip and stay", "between steps", "a rank skips a step, then takes no other",
        {r"ExchangeTimeoutError: .*gave up waiting for rank \d after 2 s": 2},
        env={"HVD_SPARSE_TIMEOUT_SECONDS": "2"},
    ),
    Fault(
        "leave", "backward", "a rank ends a step early, while the others compute",
        {"PeerLeftError: .*rank 2 of 3 left exchange.*waiting for rank": 2},
    ),
    Fault("memory", "backward", "no memory is left for scratch", {OUT_OF_MEMORY: 3}),
    Fault("model", "construction", "a rank has another model", {"InvalidArgumentError: ": 3}),
    Fault("density", "construction", "a rank has other options", {"InvalidArgumentError: ": 3}),
    Fault(
        "slow", "between steps", "a rank computes for longer than HVD_SPARSE_TIMEOUT_SECONDS",
        {r"ExchangeTimeoutError: .*gave up waiting for rank \d after 2 s": 2},
        env={"HVD_SPARSE_TIMEOUT_SECONDS": "2"},
    ),
    Fault(
        "late", "after the last step", "a rank stays 4 s longer than the others, to save say",
        recovers=True,
    ),
    Fault(
        "hold", "wait", "in the last step, a rank looks for messages 3 s later than the others",
        recovers=True,
    ),
    Fault("stop for 3 s", "between steps", "SIGSTOP for 3 s, then SIGCONT", recovers=True),
    Fault(
        "stop for 30 s", "between steps", "SIGSTOP for 30 s, then SIGCONT",
        recovers=True, seconds=45, slow=True,
    ),
)  # fmt: skip

# These run in a mount namespace of their own, as root.
SHM_FAULTS = (
    Fault(
        "small shm", "start", "/dev/shm is full (64 KiB)", shm="64k",
        recovers=True, seconds=60, slow=True,
    ),
    Fault(
        "fill shm", "backward", "/dev/shm fills up, over MPI", shm="64m",
        mpirun_ends_survivors=True, slow=True,
    ),
    Fault(
        "fill shm", "backward", "/dev/shm fills up, over TCP", shm="64m",
        recovers=True, env={"HVD_SPARSE_TRANSPORT": "tcp"}, seconds=60, slow=True,
    ),
)  # fmt: skip

LINK_FAULTS = (
    Fault("cut", "any", "a link is cut for 10 s", recovers=True, seconds=60, slow=True),
    Fault("crawl", "any", "all links at 1 % for 10 s", recovers=True, seconds=60, slow=True),
    Fault(
        "vanish", "any", "a link is cut for good, as if its machine had lost power",
        {"PeerLostError: ": 2}, seconds=45, slow=True,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job.

    Attributes:
        seconds: Seconds from the fault to the end of all ranks.
        text: Description of the outcome.
        problems: Deviations from the required outcome.
        output: Output of all ranks.
    """

    seconds: float
    text: str
    problems: tuple[str, ...]
    output: str


def break_job(fault: Fault, *options: str) -> Outcome:
    """Runs a job that breaks itself; returns its outcome. The options are those of faulty.py."""
    start = mpirun if fault.mpirun_ends_survivors or fault.recovers else mpirun_without_help
    inside = _with_shm(fault.shm) if fault.shm else []
    command = [FAULTY, fault.name, *options]
    try:
        job = start(RANKS, command, inside=inside, **fault.env)
    except AssertionError as error:
        return Outcome(JOB_SECONDS, "hangs", ("did not end",), str(error))
    return _judge(fault, job, time.time())


def why_no_shm() -> str | None:
    """Returns why no job can have a /dev/shm of its own here; None if it can."""
    if os.geteuid() != 0:
        return "a /dev/shm of a job's own takes root"
    tried = subprocess.run([*_with_shm("64k"), "true"], capture_output=True, text=True)
    return tried.stderr.strip() or None


def _with_shm(size: str) -> list[str]:
    mount = f'mount -t tmpfs -o size={size} none /dev/shm && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh"]


def break_link(fault: Fault) -> Outcome:
    """Starts a job on hosts of a virtual cluster, spoils the network, and returns the outcome."""
    with VirtualCluster(hosts=RANKS, rate="100mbit") as cluster:
        program = [sys.executable, str(ROOT / FAULTY), "none", "--steps", "60", "--pause", "0.25"]
        process = cluster.popen(
            program if fault.recovers else ["sh", "-c", TELL_STATUS, "sh", *program],
            env={"PYTHONPATH": str(ROOT)},
            mpirun=[] if fault.recovers else ["--enable-recovery"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        output = ""
        spoil = {
            "cut": lambda up: _set_link(cluster, up),
            "crawl": lambda up: cluster.set_rate("100mbit" if up else "1mbit"),
            "vanish": lambda up: None if up else _set_link(cluster, False),
        }[fault.name]
        patience = threading.Timer(fault.seconds + 60, process.kill)
        patience.start()
        for line in process.stdout:
            output += line
            if "step 10 done" in line:
                output += f"fault at {time.time()}\n"
                spoil(False)
                time.sleep(10)
                spoil(True)
            # mpirun waits for the unreachable machine.
            if not fault.recovers and all(end in output for end in _ends_of(fault.survivors)):
                process.kill()
                break
        end = time.time()
        patience.cancel()
        job = Job(process.wait(), output, 0.0)
        return _judge(fault, job, end, last_step="step 59 done")


def _set_link(cluster: VirtualCluster, up: bool) -> None:
    cluster.popen_on(RANKS - 1, ["ip", "link", "set", "e0", "up" if up else "down"]).wait()


def _ends_of(ranks: Sequence[int]) -> list[str]:
    return [f"rank {rank} ended with status 1" for rank in ranks]


def _judge(fault: Fault, job: Job, end: float, *, last_step: str = LAST_STEP) -> Outcome:
    problems = []
    begun = re.search(r"fault at ([0-9.]+)", job.output)
    seconds = end - float(begun[1]) if begun else float("nan")
    if not seconds <= fault.seconds:
        problems.append(f"took {seconds:.1f} s, and the limit is {fault.seconds:g}")
    if fault.recovers != (job.status == 0 and last_step in job.output):
        problems.append("should have recovered" if fault.recovers else "should have ended early")
    alone = not fault.recovers and not fault.mpirun_ends_survivors
    problems += [
        f"missing: {end}" for end in _ends_of(fault.survivors) if alone and end not in job.output
    ]
    for pattern, least in fault.says.items():
        found = len(re.findall(pattern, job.output))
        if found < least:
            problems.append(f"says {pattern!r} {found} times, not {least}")
    said = sorted({match[1] for match in re.finditer(r"(\w+Error): ", job.output)})
    text = "goes on" if fault.recovers else " and ".join(said) or "mpirun ends all ranks"
    return Outcome(seconds, text, tuple(problems), job.output)


def main(arguments: Sequence[str]) -> int:
    """Runs all faults, or those named, and prints a table in Markdown; returns the exit status."""
    faults = [(fault, break_job) for fault in FAULTS]
    for more, act, reason in (
        (SHM_FAULTS, break_job, why_no_shm()),
        (LINK_FAULTS, break_link, virtual_cluster.why_not()),
    ):
        if reason is None:
            faults += [(fault, act) for fault in more]
        else:
            print(f"without '{more[0].what}' and the like: {reason}", file=sys.stderr)
    failed = False
    print("| phase | fault | outcome on the other ranks | seconds |\n|---|---|---|--:|")
    for fault, act in faults:
        if arguments and fault.name not in arguments:
            continue
        outcome = act(fault)
        print(
            f"| {fault.phase} | {fault.what} | {outcome.text} | {outcome.seconds:.1f} |", flush=True
        )
        for problem in outcome.problems:
            failed = True
            print(f"{fault.name}: {problem}\n{outcome.output}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
