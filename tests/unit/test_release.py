"""The files of a release: changelog, citation, GitHub's forms and workflows, the reference."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

import hvd_sparse

pytestmark = pytest.mark.long  # it looks at pages and workflows alone

ROOT = Path(__file__).resolve().parents[2]
GITHUB = [
    pytest.param(file, id=file.relative_to(ROOT).as_posix())
    for file in sorted((ROOT / ".github").rglob("*.yml"))
]
WORKFLOWS = [one for one in GITHUB if one.values[0].parent.name == "workflows"]


@pytest.mark.parametrize("file", GITHUB)
def test_what_github_reads_is_yaml(file):
    assert isinstance(yaml.safe_load(file.read_text()), dict)


@pytest.mark.parametrize("file", WORKFLOWS)
def test_a_workflow_may_read_alone_unless_a_job_asks_for_more(file):
    assert yaml.safe_load(file.read_text())["permissions"] == {"contents": "read"}


def test_the_citation_names_no_other_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["cff-version"], citation["title"]) == ("1.2.0", "hvd_sparse")
    assert citation.get("version", hvd_sparse.__version__) == hvd_sparse.__version__


def test_the_newest_changes_are_those_of_this_version():
    changes = (ROOT / "CHANGELOG.md").read_text()
    (base,) = re.findall(r"^[0-9]+\.[0-9]+\.[0-9]+", hvd_sparse.__version__)
    newest = re.search(r"^## (\S+)", changes, re.MULTILINE)[1]
    assert newest == base


def exported(package):
    """Returns the names that a package lists in `__all__`, without importing it."""
    source = ROOT.joinpath(*package.split("."), "__init__.py").read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise LookupError(f"{package} has no __all__")


def test_the_reference_has_every_part_of_a_compression():
    text = (ROOT / "docs" / "api.md").read_text()
    documented = set(re.findall(r"auto\w+:: hvd_sparse[\w.]*\.(\w+)", text))
    classes = {name for name in exported("hvd_sparse.compression") if name[0].isupper()}
    assert classes <= documented
