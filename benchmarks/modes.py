"""Modes of a replay by name: `LAGS`, or `TopK(density=0.001, layer_wise=False)`."""

from __future__ import annotations

import ast

from hvd_sparse import compression
from hvd_sparse.compression import Compression


def compression_of(mode: str) -> Compression:
    """The compression that a mode names; its options are literals.

    Raises:
        ValueError: It names none.
        InvalidArgumentError: One of its options lies outside its limits.
    """
    wrong = ValueError(
        "a mode is compute, dense, or a compression with literal options such as "
        f"'LAGS(density=0.01)', got {mode!r}"
    )
    try:
        tree = ast.parse(mode, mode="eval").body
        if isinstance(tree, ast.Name):
            tree = ast.Call(tree, [], [])
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
            raise wrong
        options = {str(option.arg): ast.literal_eval(option.value) for option in tree.keywords}
    except (SyntaxError, ValueError):
        raise wrong from None
    kind = getattr(compression, tree.func.id, None)
    if not isinstance(kind, type) or not issubclass(kind, Compression):
        raise wrong
    return kind(**options)
