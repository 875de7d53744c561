"""The documentation as tests see it: pages, their code blocks, and the commands that they name.

tests/jobs/test_docs.py runs every ```python and every ```diff block of README.md and docs/, in the
order of the page, on two ranks; of a diff, the resulting code. Names bound in one block are known
in the next ones of the page. A comment before the block holds code that a reader need not see:

  <!-- setup:
  from tests.docs.torch_stage import trained
  model, optimizer = trained(steps=2)
  -->

  <!-- skip: needs root; tests/jobs/test_virtual_cluster.py runs the same -->

A ```console block holds commands after "$ ", each followed by its output.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[^\s`]*)")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_PROGRAMS = ("hvd-sparse", "make", "python")
_LAUNCHERS = ("horovodrun", "mpirun", "torchrun")
_TENSORFLOW = {"tensorflow", "tensorflow_stage", "tf", "keras"}
_ENDS = {"|", ">", "&&", ";", "--"}


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: Path of the page, relative to the repository's root.
        line: Line of the first line of code, counted from 1.
        language: The language named after the fence.
        code: The block's text.
        setup: Python code to run before the block.
        skip: The reason not to run it; empty: it runs.
    """

    page: str
    line: int
    language: str
    code: str
    setup: str = ""
    skip: str = ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        """True if the block is Python."""
        return self.language in ("python", "diff")

    @property
    def program(self) -> str:
        """The Python to run; for a diff, the resulting code."""
        if self.language != "diff":
            return self.code
        lines = [line for line in self.code.splitlines() if not line.startswith("-")]
        return "\n".join(line[1:] for line in lines) + "\n"

    @property
    def framework(self) -> str:
        """The block's framework, "torch" or "tensorflow"."""
        words = set(re.findall(r"\w+", self.setup + self.program))
        return "tensorflow" if words & _TENSORFLOW else "torch"


@dataclass
class Page:
    """A page: its blocks, and the prose around them."""

    name: str
    blocks: list[Block] = field(default_factory=list)
    prose: str = ""


@cache
def pages() -> tuple[Page, ...]:
    """Returns README.md and all of docs/, ordered by name."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return tuple(parse(file.relative_to(ROOT).as_posix(), file.read_text()) for file in files)


def blocks() -> list[Block]:
    """Returns the blocks of all pages."""
    return [block for page in pages() for block in page.blocks]


def parse(name: str, text: str) -> Page:
    """Reads one page.

    Raises:
        ValueError: A block is not closed, or a setup or skip is empty or has no block after it.
    """
    page = Page(name)
    lines = list(enumerate(text.splitlines(), start=1))
    pending: dict[str, str] = {}
    prose = []
    while lines:
        number, line = lines.pop(0)
        fence = _FENCE.match(line)
        if fence:
            code = []
            while lines and not _closes(lines[0][1], fence["ticks"]):
                code.append(lines.pop(0)[1])
            if not lines:
                raise ValueError(f"{name}:{number}: this block is not closed")
            lines.pop(0)
            body = "".join(f"{one}\n" for one in code)
            body = textwrap.dedent(body) if fence["indent"] else body
            page.blocks.append(Block(name, number + 1, fence["language"], body, **pending))
            pending = {}
        elif line.startswith("<!--"):
            comment = [line]
            while "-->" not in comment[-1] and lines:
                comment.append(lines.pop(0)[1])
            found = "\n".join(comment).removeprefix("<!--").split("-->")[0].strip()
            kind, colon, content = found.partition(":")
            if kind in ("setup", "skip") and colon:
                if not content.strip():
                    raise ValueError(f"{name}:{number}: this {kind} says nothing")
                pending[kind] = textwrap.dedent(content.strip(" ").lstrip("\n"))
        else:
            if line.strip() and pending:
                raise ValueError(f"{name}:{number}: a block must follow its setup or skip")
            prose.append(line)
    if pending:
        raise ValueError(f"{name}: a block must follow its setup or skip")
    page.prose = "\n".join(prose)
    return page


def _closes(line: str, ticks: str) -> bool:
    return line.strip().startswith(ticks) and not line.strip(" `~")


def shell_commands(page: Page) -> Iterator[list[str]]:
    """Yields the commands of this project in a page's shell blocks, as words."""
    for block in page.blocks:
        if block.language in ("", "bash", "sh", "console"):
            yield from commands_in(block.code)
    indented = (line for line in page.prose.splitlines() if line.startswith("    "))
    yield from commands_in("\n".join(indented))


def named_commands(page: Page) -> Iterator[list[str]]:
    """Yields the commands of this project that a page's prose names, as words."""
    for span in _SPAN.findall(page.prose):
        yield from commands_in(" ".join(span.split()))


def commands_in(text: str) -> Iterator[list[str]]:
    """Yields calls of hvd-sparse, make or this project's scripts, without the surrounding words."""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        except ValueError:  # prose with an apostrophe
            continue
        while words and (words[0] == "sudo" or re.match(r"[A-Z_]+=", words[0])):
            words.pop(0)
        if words and words[0] in _LAUNCHERS:
            while words and Path(words[0]).name not in _PROGRAMS:
                words.pop(0)
        if not words:
            continue
        words[0] = Path(words[0]).name
        if words[:3] == ["python", "-m", "hvd_sparse"]:
            words[:3] = ["hvd-sparse"]
        end = next((at for at, word in enumerate(words) if word in _ENDS), len(words))
        words = _without_dots(words[:end])
        if len(words) > 1 and words[0] in _PROGRAMS:
            yield words


def _without_dots(words: list[str]) -> list[str]:
    """Returns words without "...", and without options whose value that is."""
    kept: list[str] = []
    for word in words:
        if word != "...":
            kept.append(word)
        elif kept and kept[-1].startswith("-"):
            kept.pop()
    return kept
