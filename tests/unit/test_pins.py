"""Each tool has one pin: .pre-commit-config.yaml takes the versions of tools/requirements.txt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.long  # it looks at tools alone

ROOT = Path(__file__).resolve().parents[2]


def test_hooks_take_the_pinned_versions():
    pinned = dict(
        line.split("==", 1)
        for line in (ROOT / "tools" / "requirements.txt").read_text().splitlines()
        if re.fullmatch(r"[\w-]+==[\w.]+", line)
    )
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repository,) = config["repos"]
    taken = [each for hook in repository["hooks"] for each in hook["additional_dependencies"]]
    shared = [each for each in taken if each.split("==")[0] in pinned]
    assert {each.split("==")[0] for each in shared} == {"ruff", "clang-format"}
    for each in taken:
        name, version = each.split("==")
        assert pinned.get(name, version) == version, name
