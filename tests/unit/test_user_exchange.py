"""What users import, and the handle that they get, are few and the same everywhere."""

from __future__ import annotations

import ast
import copy
import gc
import pickle
from pathlib import Path

import pytest
import torch

import hvd_sparse
from hvd_sparse.ddp import Exchange
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError

PACKAGE = Path(hvd_sparse.__file__).parent
MOST = 16


def sgd():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=1.0)


@pytest.mark.parametrize("front", ["ddp", "torch", "tensorflow", "tensorflow/keras"])
def test_an_interface_has_few_names(front):
    tree = ast.parse((PACKAGE / front / "__init__.py").read_text())
    names = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    )
    assert "Exchange" in names
    assert len(names) <= MOST


def members_of(path, name):
    """Returns the public methods and properties of a class, each with its parameters."""
    (kind,) = (
        node
        for node in ast.parse((PACKAGE / path).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    found = [one for one in kind.body if isinstance(one, ast.FunctionDef)]
    return {
        one.name: [arg.arg for arg in one.args.args]
        for one in found
        if not one.name.startswith("_")
    }


def test_all_frameworks_have_the_same_members():
    torch_ones = members_of("pytorch/user_exchange.py", "TorchExchange")
    tensorflow_ones = members_of("tensorflow/user_exchange.py", "Exchange")
    assert torch_ones.keys() - tensorflow_ones.keys() == {
        "watch", "reset_residual", "set_masks",
    }  # fmt: skip
    assert tensorflow_ones.keys() - torch_ones.keys() == {"residual_variables"}
    shared = torch_ones.keys() & tensorflow_ones.keys()
    assert {one: torch_ones[one] for one in shared} == {one: tensorflow_ones[one] for one in shared}


def test_the_handle_does_not_keep_its_optimizer_alive():
    optimizer = sgd()
    exchange = optimizer.exchange = Exchange(optimizer)
    del optimizer
    gc.collect()
    with pytest.raises(HvdSparseError, match="no longer exists"):
        _ = exchange.stats


def test_an_optimizer_with_a_handle_is_copied_and_pickled_without_it():
    optimizer = sgd()
    optimizer.exchange = Exchange(optimizer)
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert twin.state_dict() == optimizer.state_dict()
        assert not hasattr(twin, "exchange")


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"torch.optim.Optimizer, got builtins.list"):
        Exchange([1])
