"""The documentation matches the code: commands, options, variables, links, public names."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer.main

import hvd_sparse
from hvd_sparse import cli
from hvd_sparse.compression import LAGS, SBC, Dense, GaussianK, GTopK, ThreeLC, TopK
from tests.docs.pages import ROOT, commands_in, named_commands, pages, parse, shell_commands

pytestmark = pytest.mark.long  # it looks at pages alone

PAGES = [pytest.param(page, id=page.name) for page in pages()]
PRESETS = {
    preset.__name__: preset for preset in (LAGS, GTopK, GaussianK, TopK, SBC, Dense, ThreeLC)
}
SCRIPTS = ("benchmarks/", "examples/", "tools/")
VARIABLE = re.compile(r"\bHVD_SPARSE_[A-Z_]*[A-Z]\b")


# ---- Reading a page ------------------------------------------------------------------------------


def test_a_block_has_its_line_language_setup_and_code():
    page = parse("x.md", "one\n\n<!-- setup:\na = 1\n-->\n\n```python\nb = a\n```\nend\n")
    (block,) = page.blocks
    assert (block.place, block.language) == ("x.md:8", "python")
    assert (block.setup.strip(), block.code) == ("a = 1", "b = a\n")
    assert page.prose.split() == ["one", "end"]


def test_of_a_diff_what_it_leads_to_is_run():
    (block,) = parse("x.md", "```diff\n a = 1\n-b = 1\n+b = 2\n```\n").blocks
    assert block.program == "a = 1\nb = 2\n"


def test_a_block_in_a_list_loses_its_indentation():
    (block,) = parse("x.md", "* one\n\n  ```python\n  if a:\n      b\n  ```\n").blocks
    assert block.code == "if a:\n    b\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- setup: a = 1 -->\n\nprose\n", "x.md:3: a block must follow"),
        ("<!-- skip: slow -->\n", "x.md: a block must follow"),
        ("<!-- skip: -->\n```python\n```\n", "x.md:1: this skip says nothing"),
        ("```python\na = 1\n", "x.md:1: this block is not closed"),
    ],
)
def test_what_would_silently_be_forgotten_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse("x.md", text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sudo .venv/bin/python examples/a.py -b 2  # why", ["python", "examples/a.py", "-b", "2"]),
        ("A=1 horovodrun -np 4 hvd-sparse bench", ["hvd-sparse", "bench"]),
        ("python -m hvd_sparse doctor | head", ["hvd-sparse", "doctor"]),
        ("mpirun -np 2 python a.py \\\n  --b -- python c.py", ["python", "a.py", "--b"]),
    ],
)  # fmt: skip
def test_a_command_is_found_behind_what_stands_around_it(text, words):
    assert list(commands_in(text)) == [words]


def test_a_sentence_is_no_command():
    assert list(commands_in("rank 3 doesn't\nmake\nloss 0.3")) == []


# ---- Commands ------------------------------------------------------------------------------------


def command_of(name):
    """Returns the typer command of that name."""
    return typer.main.get_command(cli.app).commands[name]


@pytest.mark.parametrize("page", PAGES)
def test_the_options_of_hvd_sparse_exist(page):
    for words in shell_commands(page):
        if words[0] == "hvd-sparse":
            command_of(words[1]).make_context(words[1], words[2:])  # parses only
    for words in named_commands(page):
        if words[0] == "hvd-sparse" and not words[1].startswith("-"):
            known = {name for option in command_of(words[1]).params for name in option.opts}
            assert {word for word in words[2:] if word.startswith("-")} <= known, words


@pytest.mark.parametrize("page", PAGES)
def test_the_targets_of_make_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    for words in [*shell_commands(page), *named_commands(page)]:
        if words[0] == "make":
            for word in words[1:]:
                name, is_variable, _ = word.partition("=")
                if is_variable:
                    assert f"$({name})" in makefile, words
                else:
                    assert name in targets, words


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="some scripts import TensorFlow")
def test_scripts_take_the_arguments_that_pages_give_them():
    commands = [
        words[1:]
        for page in pages()
        for words in [*shell_commands(page), *named_commands(page)]
        if words[0] == "python" and words[1].startswith(SCRIPTS)
    ]
    assert commands
    for script in {words[0] for words in commands}:
        assert (ROOT / script).is_file(), script
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.parse_commands"],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}


# ---- Variables of the environment ----------------------------------------------------------------


def variables_of_the_sources():
    """Returns the environment variables that csrc/, hvd_sparse/ and setup.py read."""
    files = [ROOT / "setup.py", *(ROOT / "hvd_sparse").rglob("*.py")]
    files += [file for file in (ROOT / "csrc").rglob("*") if file.suffix in (".cc", ".h", ".cu")]
    found = set()
    for file in files:
        found |= set(re.findall(r"[\"'](HVD_SPARSE_[A-Z_]*[A-Z])[\"']", file.read_text()))
    return found | {f"HVD_SPARSE_WITH_{part}" for part in optional_parts()}


def optional_parts():
    """Returns PARTS of setup.py."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "PARTS":
            return ast.literal_eval(node.value)
    raise LookupError("setup.py has no PARTS")


def test_the_table_of_variables_is_complete():
    text = (ROOT / "docs" / "tuning.md").read_text()
    rows = re.findall(r"^\| (`HVD_SPARSE_.*?) \|", text, re.MULTILINE)
    assert {name for row in rows for name in VARIABLE.findall(row)} == variables_of_the_sources()


@pytest.mark.parametrize("page", PAGES)
def test_every_variable_that_a_page_names_exists(page):
    cmake = "".join(file.read_text() for file in [ROOT / "CMakeLists.txt", ROOT / "Makefile"])
    known = variables_of_the_sources() | set(VARIABLE.findall(cmake))
    assert set(VARIABLE.findall((ROOT / page.name).read_text())) <= known


# ---- Links ---------------------------------------------------------------------------------------


def anchors(file):
    """Returns the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", parse(file.name, file.read_text()).prose, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    here = ROOT / page.name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.prose):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (here.parent / path).resolve() if path else here
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"


# ---- Public names --------------------------------------------------------------------------------


def public_names(framework):
    """Returns the names that a framework's module adds to Horovod's, as the reference has them."""
    source = Path(hvd_sparse.__file__).parent / framework / "__init__.py"
    tree = ast.parse(source.read_text())
    imported = {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    )
    # Names shared by both frameworks are documented once, for PyTorch.
    own = f"hvd_sparse.{framework}."
    return {f"{framework if imported[name].startswith(own) else 'torch'}.{name}" for name in names}


@pytest.mark.parametrize("framework", ["torch", "ddp", "fsdp", "tensorflow"])
def test_the_reference_has_every_public_name(framework):
    text = (ROOT / "docs" / "api.md").read_text()
    documented = set(re.findall(r"auto\w+:: hvd_sparse\.([\w.]+)", text))
    assert public_names(framework) | set(hvd_sparse.__all__) <= documented


def test_the_site_lists_every_page():
    (index,) = (page for page in pages() if page.name == "docs/index.md")
    listed = [
        line
        for block in index.blocks
        if block.language == "{toctree}"
        for line in block.code.splitlines()
        if line and not line.startswith(":")
    ]
    there = [page.name.removeprefix("docs/").removesuffix(".md") for page in pages()]
    assert sorted(listed) == sorted(set(there) - {"README", "index"})


def test_the_reference_says_in_what_the_presets_differ():
    rows = re.findall(r"^\| (.*) \|$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    names, *said = [[cell.strip(" `") for cell in row.split("|")] for row in rows]
    options = vars(hvd_sparse.compression) | vars(hvd_sparse.compression.sparsifiers)
    for name, *cells in said:
        if name in PRESETS:
            given = {
                option: eval(cell, dict(options))
                for option, cell in zip(names[1:], cells, strict=True)
                if cell
            }
            preset, usual = PRESETS[name](), TopK()
            assert PRESETS[name](**given) == preset
            differing = {
                one.name
                for one in fields(preset)
                if getattr(preset, one.name) != getattr(usual, one.name, None)
                and hasattr(usual, one.name)
            }
            assert set(given) == differing - ({"values"} if name == "Dense" else set()), name
    assert {row[0] for row in said} >= set(PRESETS)


def test_rows_of_a_table_have_as_many_cells_as_its_header():
    for page in pages():
        cells, fenced = 0, False
        for number, line in enumerate((ROOT / page.name).read_text().splitlines(), 1):
            fenced ^= line.startswith("```")
            if fenced or not line.startswith("|"):
                cells = 0
                continue
            bars = re.sub(r"`[^`]*`", "", line).replace("\\|", "").count("|")
            cells = cells or bars
            assert bars == cells, f"{page.name}:{number}: {line}"
