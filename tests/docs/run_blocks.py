"""Runs the code of the documentation, as one rank of a job. Arguments: framework, folder.

A page stops at its first failure; the next page runs all the same.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.docs.pages import Block, blocks

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))  # as every benchmark does

PASSED = "passed"


def main() -> None:
    """Writes each block's outcome to outcome-RANK.json, before and after it runs."""
    framework, folder = sys.argv[1], Path(sys.argv[2])
    hvd = importlib.import_module(f"horovod.{framework}")
    hvd.init()
    os.chdir(folder)
    told = folder / f"outcome-{hvd.rank()}.json"
    outcome: dict[str, str] = {}

    def tell(block: Block, what: str) -> None:
        outcome[block.place] = what
        told.write_text(json.dumps(outcome))

    wanted = [one for one in blocks() if one.runs and not one.skip and one.framework == framework]
    for _, of_page in itertools.groupby(wanted, key=lambda block: block.page):
        namespace: dict[str, Any] = {"__name__": "__docs__"}
        for block in of_page:
            tell(block, "began, and did not end")
            try:
                run(block, namespace)
            except Exception:
                tell(block, traceback.format_exc())
                break
            tell(block, PASSED)
        namespace.clear()
        gc.collect()  # a live optimizer keeps its exchange open
    hvd.shutdown()


def run(block: Block, namespace: dict[str, Any]) -> None:
    """Runs setup and block; tracebacks name the line of the page."""
    exec(compile(block.setup, f"setup of {block.place}", "exec"), namespace)
    program = "\n" * (block.line - 1) + block.program
    exec(compile(program, block.page, "exec"), namespace)


if __name__ == "__main__":
    main()
