"""The code of the documentation runs: every ```python and ```diff block, on two ranks.

tests/docs/pages.py describes the comments that a page's author can put before a block.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from hvd_sparse import cli
from tests.docs.pages import blocks
from tests.docs.run_blocks import PASSED
from tests.jobs.launch import mpirun

pytestmark = pytest.mark.long  # it looks at pages alone

RANKS = 2
ADVICE = (
    "What a reader need not see, such as a model to work with, goes into a comment before the "
    "block: <!-- setup: ... -->, see tests/docs/pages.py."
)

RUNNING = [block for block in blocks() if block.runs]
PRINTING = [block for block in blocks() if block.language == "console"]


@pytest.fixture(scope="module")
def played():
    """Returns, by framework, the folder of its blocks and each one's outcome on every rank."""
    with TemporaryDirectory() as parent:

        @cache
        def play(framework):
            folder = Path(parent, framework)
            folder.mkdir()
            program = ["-m", "tests.docs.run_blocks", framework, str(folder)]
            try:
                output = mpirun(RANKS, program, HVD_SPARSE_TIMEOUT_SECONDS="60").output
            except AssertionError as still_running:
                output = str(still_running)
            outcomes = [
                json.loads(file.read_text()) if file.exists() else {}
                for file in (folder / f"outcome-{rank}.json" for rank in range(RANKS))
            ]
            return folder, outcomes, output

        yield play


@pytest.mark.parametrize("block", RUNNING, ids=lambda block: block.place)
def test_a_block_runs(block, played):
    if block.skip:
        pytest.skip(block.skip)
    _, outcomes, output = played(block.framework)
    for rank, outcome in enumerate(outcomes):
        became = outcome.get(block.place, f"was not reached; the job said:\n{output[-3000:]}")
        assert became == PASSED, f"{block.place} on rank {rank}: {became}\n{ADVICE}"


@pytest.mark.parametrize("block", PRINTING, ids=lambda block: block.place)
def test_a_command_prints_what_the_page_says(block, played, monkeypatch):
    """Runs `$ hvd-sparse ...` of a console block in the folder that its page's blocks wrote to."""
    if block.skip:
        pytest.skip(block.skip)
    folder, _, _ = played("torch")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    for command, printed in sessions(block.code):
        program, *arguments = command.split()
        assert program == "hvd-sparse", f"{block.place}: only hvd-sparse is run, got {program}"
        result = CliRunner().invoke(cli.app, arguments)
        assert trimmed(result.output) == trimmed(printed), f"{block.place}: $ {command}"


def sessions(code):
    """Yields the commands of a console block, each with its documented output."""
    for part in f"\n{code}".split("\n$ ")[1:]:
        command, _, printed = part.replace("\\\n", "").partition("\n")
        yield command, printed


def trimmed(text):
    return [line.rstrip() for line in text.strip().splitlines()]
