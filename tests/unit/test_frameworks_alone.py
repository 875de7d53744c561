"""Each framework's module works if the other framework cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

PROGRAM = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "{absent}":
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Absent())
import hvd_sparse.{present} as hvd

hvd.init()
assert hvd.LAGS is not None and hvd.size() == 1
assert "{absent}" not in sys.modules
"""


# tools/try_torch_alone.py installs PyTorch alone.
@pytest.mark.parametrize(
    ("present", "absent"),
    [
        pytest.param("torch", "tensorflow", marks=pytest.mark.long),
        ("tensorflow", "torch"),
    ],
)
def test_a_framework_works_without_the_other(present, absent):
    if find_spec(present) is None:
        pytest.skip(f"there is no {present} here")
    program = PROGRAM.format(present=present, absent=absent)
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
