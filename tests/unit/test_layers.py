"""The imports allowed between folders of hvd_sparse/, as docs/architecture.md orders them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hvd_sparse"
# These re-export names from lower layers: sparse_allreduce, and the command.
HAND_ON = {PACKAGE / "__init__.py", PACKAGE / "__main__.py"}


def layers(top="hvd_sparse"):
    """The folders below `top` in the order of the page's table; "" is `top` itself."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(rf"^\| `{top}/(.*?)` \|", page, re.MULTILINE)
    return [row.rstrip("/") for row in rows]


def folder_of(name):
    """Returns the folder of a module, given its full name; "" for the package itself."""
    folder = name.split(".")[1] if "." in name else ""
    return folder if (PACKAGE / folder).is_dir() else ""


def imported_folders(source):
    """Returns the folders of hvd_sparse/ that a source imports from, with the lines."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: an import names its module in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        ours = [name for name in names if name.split(".")[0] == "hvd_sparse"]
        found |= {(folder_of(name), node.lineno) for name in ours}
    return found


@pytest.mark.parametrize(
    ("source", "folders"),
    [
        ("from hvd_sparse import _core, errors", {""}),
        ("from hvd_sparse import planning, errors", {"", "planning"}),
        ("from hvd_sparse.planning import plan", {"planning"}),
        ("def later():\n    import hvd_sparse.planning.plan", {"planning"}),
        ("import hvd_sparse, numpy", {""}),
        ("from numpy import linalg", set()),
    ],
)
def test_imports_are_found_wherever_they_stand(source, folders):
    assert {folder for folder, _ in imported_folders(source)} == folders


def test_the_table_of_layers_has_every_folder_once():
    there = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert sorted(layers()) == sorted(there | {""})


@pytest.mark.parametrize("layer", layers())
def test_a_folder_imports_those_above_it_in_the_table_alone(layer):
    allowed = set(layers()[: layers().index(layer) + 1])
    folder = PACKAGE / layer
    files = set(folder.rglob("*.py") if layer else folder.glob("*.py")) - HAND_ON
    assert files
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports of {imported}/"
        for file in sorted(files)
        for imported, line in sorted(imported_folders(file.read_text()))
        if imported not in allowed
    ]
    assert wrong == []


# ---- C++ -----------------------------------------------------------------------------------------

# Folders that alone may include an outside library, by how its headers' names begin.
OUTSIDE = {
    "cuda": "csrc/cuda",
    "nccl": "csrc/cuda",
    "mpi.h": "csrc/comm",
    "pybind11/": "csrc/bindings",
    "tensorflow/": "csrc/bindings",
}


def sources(folder):
    """The C++ and CUDA files of a folder, without its subfolders."""
    return [file for file in folder.iterdir() if file.suffix in (".h", ".cc", ".cu", ".cuh")]


def test_the_table_of_layers_has_every_folder_of_csrc_once():
    folders = {file.parent for file in (ROOT / "csrc").rglob("*.h")}
    there = sorted(str(folder.relative_to(ROOT / "csrc")) for folder in folders)
    assert sorted(layers("csrc")) == there


@pytest.mark.parametrize("layer", layers("csrc"))
def test_a_folder_of_csrc_includes_those_above_it_in_the_table_alone(layer):
    allowed = layers("csrc")[: layers("csrc").index(layer) + 1]
    wrong = []
    for file in sorted(sources(ROOT / "csrc" / layer)):
        for bracket, header in re.findall(r'^#include ([<"])(.*?)[>"]', file.read_text(), re.M):
            ours = bracket == '"' and header.startswith("csrc/")
            if ours and str(Path(header).parent.relative_to("csrc")) not in allowed:
                wrong.append(f"{file.relative_to(ROOT)} includes {header}")
            home = next((home for name, home in OUTSIDE.items() if header.startswith(name)), None)
            if home is not None and not file.is_relative_to(ROOT / home):
                wrong.append(f"{file.relative_to(ROOT)} includes {header}")
    assert wrong == []


# ---- Formats -------------------------------------------------------------------------------------

# Modules that run code found in their input.
RUN_CODE = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


@pytest.mark.parametrize(
    "file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT))
)
def test_no_module_reads_a_format_that_can_run_code(file):
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        assert RUN_CODE.isdisjoint(name.split(".")[0] for name in names)
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False
        if isinstance(node, ast.Call):
            assert getattr(node.func, "id", None) not in ("eval", "exec")


# Horovod is another library that runs ranks; all else works with any that does.
WITH_HOROVOD = ("cli/bench_ranks.py", "tensorflow/", "torch/")


def imports_horovod(source):
    """Returns true if a source imports Horovod, at its top or later."""
    modules = [
        name
        for node in ast.walk(ast.parse(source))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    return any(module.split(".")[0] == "horovod" for module in modules)


def test_horovod_is_imported_where_it_runs_the_ranks_alone():
    users = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if imports_horovod(file.read_text())
    }
    assert [user for user in sorted(users) if not user.startswith(WITH_HOROVOD)] == []
    for place in WITH_HOROVOD:
        assert any(user.startswith(place) for user in users), place
