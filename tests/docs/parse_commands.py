"""Makes scripts parse their arguments and exit: [[script, argument, ...], ...] on stdin.

Prints the output of each script that rejected its arguments. Both are JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

import typer.core

ROOT = Path(__file__).resolve().parents[2]


class Parsed(BaseException):
    """Raised when the arguments were accepted."""


def main() -> None:
    """Runs every script until its arguments are parsed."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser, args=None, namespace=None):
        parse_args(parser, args, namespace)
        raise Parsed

    def stop(*_):
        raise Parsed

    argparse.ArgumentParser.parse_args = parse_and_stop
    typer.core.TyperCommand.invoke = stop
    sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples")]
    refused = {}
    for script, *arguments in json.loads(sys.stdin.read()):
        said = io.StringIO()
        sys.argv = [script, *arguments]
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                runpy.run_path(str(ROOT / script), run_name="__main__")
            refused[" ".join(sys.argv)] = "it parses no arguments"
        except Parsed:
            pass
        except SystemExit as ended:
            refused[" ".join(sys.argv)] = said.getvalue() or f"exit status {ended.code}"
    print(json.dumps(refused))


if __name__ == "__main__":
    main()
