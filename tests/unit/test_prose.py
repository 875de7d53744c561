"""Comments and docstrings are sentences: few open with "What", "Of", "Whether" and their kin.

"rank: Of this thread." leaves its reader to find the noun. "rank: This thread's rank." does not.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # it looks at pages alone

ROOT = Path(__file__).resolve().parents[2]
FRAGMENT = re.compile(r"(What|Of|Whether|The same|As|Likewise|Where|Who|Whose)\b")
MOST = 0.02  # of the sentences that begin a line
# The name of an argument or attribute, before its description.
ENTRY = re.compile(r"^\s*[\w*`.\[\], /|]{1,60}(?: \([^)]*\))?: +(?=\S)")
FOLDERS = ("csrc", "hvd_sparse", "benchmarks", "examples", "tools", "tests")

Block = list[tuple[int, str]]  # lines of a comment or docstring, with their numbers


def python_blocks(source: str) -> list[Block]:
    """The docstrings and comments of a Python source."""
    blocks = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                text = str(first.value.value)
                blocks.append(list(enumerate(text.split("\n"), first.lineno)))
    comments = [
        (token.start[0], token.string.lstrip("#! "))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    return blocks + joined(comments)


def cpp_blocks(source: str) -> list[Block]:
    """The comments of a C++ source."""
    found = []
    for number, line in enumerate(source.splitlines(), 1):
        match = re.search(r'(?<![:"])//+!?<?\s?(.*)$', line)
        if match and line.count('"', 0, match.start()) % 2 == 0:
            found.append((number, match.group(1)))
    return joined(found)


def joined(comments: Block) -> list[Block]:
    """Comments of neighbouring lines, each run of them as one block."""
    blocks: list[Block] = []
    for number, text in comments:
        if blocks and blocks[-1][-1][0] == number - 1:
            blocks[-1].append((number, text))
        else:
            blocks.append([(number, text)])
    return blocks


def sentences(block: Block) -> list[tuple[int, str]]:
    """The sentences that begin a line, or the description of an entry, with the line's number."""
    found = []
    ended = True
    for number, line in block:
        text = line.strip()
        entry = ENTRY.match(line)
        listed = re.match(r"[-*] ", text)
        if text and (ended or entry or listed):
            start = entry.end() if entry else line.index(text) + (2 if listed else 0)
            if entry and FRAGMENT.match(text):  # no name of an argument, but "What is sent: ..."
                start = line.index(text)
            if line[start : start + 1].isupper():
                found.append((number, line[start:]))
        ended = not text or text[-1] in ".:!?"
    return found


def of_folder(folder: str) -> list[tuple[str, str]]:
    """All sentences of a folder's sources, each with its file and line."""
    kinds = {".py": python_blocks, ".pyi": python_blocks}
    kinds |= dict.fromkeys((".cc", ".h", ".cu", ".cuh"), cpp_blocks)
    return [
        (f"{file.relative_to(ROOT)}:{number}", sentence)
        for file in sorted((ROOT / folder).rglob("*"))
        if file.suffix in kinds
        for block in kinds[file.suffix](file.read_text())
        for number, sentence in sentences(block)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_few_sentences_are_fragments(folder):
    found = of_folder(folder)
    assert len(found) > 50
    fragments = [f"{where}: {sentence}" for where, sentence in found if FRAGMENT.match(sentence)]
    assert len(fragments) <= MOST * len(found), "\n".join(fragments)


def test_a_fragment_is_found_wherever_it_stands():
    source = '"""Sends.\n\nArgs:\n    rank: Of this thread.\n"""\nx = 1  # What is sent.\n'
    found = [text for block in python_blocks(source) for _, text in sentences(block)]
    assert [text for text in found if FRAGMENT.match(text)] == ["Of this thread.", "What is sent."]
    found = [
        text
        for block in python_blocks('"""What is sent: entries."""')
        for _, text in sentences(block)
    ]
    assert FRAGMENT.match(found[0])
    source = 'auto a = "http://x";  // Whose end it is.\n/// Sends all.\n/// Where it went.\n'
    found = [text for block in cpp_blocks(source) for _, text in sentences(block)]
    assert [bool(FRAGMENT.match(text)) for text in found] == [True, False, True]
