"""A lid on the house: no folder grows without a decision, which stands in its commit."""

from __future__ import annotations

import io
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".h", ".cc", ".cu", ".cuh"}

# The most lines of code, without blanks, comments, docstrings and what a header begins and ends
# with. Who raises a number says in the commit what that buys; who deletes code lowers it.
MOST = {
    "csrc/base": 418,
    "csrc/bindings": 1662,
    "csrc/collectives": 2076,
    "csrc/comm": 3005,
    "csrc/cuda": 4448,
    "csrc/devices": 175,
    "csrc/exchange": 3383,
    "csrc/kernels": 1719,
    "csrc/sparsifiers": 793,
    "csrc/wire": 1552,
    "hvd_sparse": 179,
    "hvd_sparse/arrays": 301,
    "hvd_sparse/bench": 337,
    "hvd_sparse/cli": 1268,
    "hvd_sparse/compression": 867,
    "hvd_sparse/ddp": 997,
    "hvd_sparse/exchange": 980,
    "hvd_sparse/fsdp": 591,
    "hvd_sparse/places": 208,
    "hvd_sparse/planning": 2125,
    "hvd_sparse/pytorch": 4424,
    "hvd_sparse/ranks": 496,
    "hvd_sparse/state": 789,
    "hvd_sparse/stats": 307,
    "hvd_sparse/tensorflow": 3763,
    "hvd_sparse/timeline": 435,
    "hvd_sparse/torch": 295,
    "hvd_sparse/tuning": 1144,
}


def python_lines(text: str) -> int:
    """Counts the lines of Python that hold code."""
    lines: set[int] = set()
    begins = True  # of a statement: a string there is a docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            begins = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            if not (begins and token.type == tokenize.STRING):
                lines.update(range(token.start[0], token.end[0] + 1))
            begins = False
    return len(lines)


def cpp_lines(text: str) -> int:
    """Counts the lines of C++ that hold code; block comments are not used."""
    left_out = ("//", "#include", "#pragma", "#ifndef HVD", "#define HVD", "#endif")
    stripped = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith(left_out) for line in stripped)


def lines_by_folder() -> dict[str, int]:
    """Counts the lines of code of the product by folder, two levels deep."""
    found: Counter[str] = Counter()
    for top in ("csrc", "hvd_sparse"):
        for file in (ROOT / top).rglob("*"):
            if file.suffix in SUFFIXES:
                folder = "/".join(file.relative_to(ROOT).parts[:-1][:2])
                count = python_lines if file.suffix == ".py" else cpp_lines
                found[folder] += count(file.read_text())
    return dict(found)


@pytest.mark.parametrize(
    ("count", "text", "lines"),
    [
        (python_lines, '"""A docstring."""\n\nx = """two\nlines"""  # and no more\n', 2),
        (python_lines, "def f():\n    '''None.'''\n    # nothing\n    return (\n        1)\n", 3),
        (cpp_lines, "// no\n#include <a>\n\nint x;  // one\n#define HVD_H_\n#if X\n#endif\n", 2),
    ],
)
def test_code_alone_is_counted(count, text, lines):
    assert count(text) == lines


def test_no_folder_grows_beyond_its_lid():
    found = lines_by_folder()
    assert found.keys() == MOST.keys()
    assert {folder: most for folder, most in found.items() if most > MOST[folder]} == {}
