"""An elastic job on this machine, whose hosts a test changes while it runs."""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.jobs.launch import JOB_SECONDS, ROOT, environment

# Three names of this machine: Horovod takes them for three hosts, none of which needs ssh.
HOSTS = ("localhost", "127.0.0.1", socket.gethostname())


class ElasticJob:
    """`horovodrun` with a host discovery script; one rank on each host.

    Args:
        folder: Folder for the script, and the list of hosts that it reads.
        program: The program and its arguments.
        hosts: The initial hosts.
        min_ranks: Number of ranks that the job needs to continue.
    """

    def __init__(
        self,
        folder: Path,
        program: Sequence[str],
        *,
        hosts: Sequence[str],
        min_ranks: int = 2,
    ) -> None:
        self.lines: list[str] = []
        self._hosts = folder / "hosts"
        self._end = time.monotonic() + JOB_SECONDS
        self._coming: queue.Queue[str | None] = queue.Queue()
        self.set_hosts(hosts)
        script = folder / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat '{self._hosts}'\n")
        script.chmod(0o755)
        command = [
            "horovodrun", "--gloo", "--network-interface", "lo", "-np", str(len(hosts)),
            "--min-np", str(min_ranks), "--max-np", "3", "--host-discovery-script", str(script),
            sys.executable, *program,
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            # After a kill, some attempts wait this long for Horovod's background loop to end.
            env=environment(HOROVOD_ELASTIC_TIMEOUT="60", HOROVOD_GLOO_TIMEOUT_SECONDS="15"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
        for pid in self._pids():  # horovodrun starts its ranks in process groups of their own
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)

    @property
    def output(self) -> str:
        """The output so far."""
        return "".join(self.lines)

    def set_hosts(self, hosts: Sequence[str]) -> None:
        """Sets the hosts that the script finds from now on."""
        new = self._hosts.with_suffix(".new")
        new.write_text("".join(f"{host}:1\n" for host in hosts))
        new.rename(self._hosts)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Returns the match in the next matching line; raises AssertionError if none comes."""
        while (line := self._next()) is not None:
            found = re.search(pattern, line)
            if found:
                return found
        status = self._process.wait()
        raise AssertionError(f"ended with status {status}, without {pattern!r}\n{self.output}")

    def kill(self, rank: int) -> None:
        """Sends SIGKILL to the process that last had that rank."""
        pids = re.findall(rf"pid (\d+) at \S+ is rank {rank} of", self.output)
        os.kill(int(pids[-1]), signal.SIGKILL)

    def finish(self) -> int:
        """Waits for the end; returns the exit status."""
        while self._next() is not None:
            pass
        return self._process.wait()

    def _pids(self) -> set[int]:
        return {int(pid) for pid in re.findall(r"pid (\d+) at \S+ is rank", self.output)}

    def _next(self) -> str | None:
        try:
            line = self._coming.get(timeout=max(0.0, self._end - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"took too long\n{self.output}") from None
        if line is not None:
            self.lines.append(line)
        return line

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._coming.put(line)
        self._coming.put(None)
