"""Methods by name, with options: `LAGS`, or `TopK(density=0.001, local_steps=AdaComm(first=8))`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from hvd_sparse import compression
from hvd_sparse.compression import Compression
from hvd_sparse.compression.parts import Part

PARTS: dict[str, type[Part]] = {
    one.__name__: one for one in Part.__subclasses__() if one is not Compression
}

# The end of a mode whose steps do not wait: the next forward pass does.
WAITING = " waiting in forward"


def call_of(text: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the options of a call; a bare name has none.

    Raises:
        ValueError: The text is not a call with literal options.
    """
    wrong = ValueError(f"this is no name with literal options: {text!r}")
    try:
        tree = ast.parse(text.removesuffix(WAITING), mode="eval").body
        if isinstance(tree, ast.Name):
            tree = ast.Call(tree, [], [])
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
            raise wrong
        return tree.func.id, {str(one.arg): _value(one.value) for one in tree.keywords}
    except (SyntaxError, ValueError):
        raise wrong from None


def _value(node: ast.expr) -> Any:
    """Returns a literal, or an option of several parts."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PARTS:
        return PARTS[node.func.id](**{str(one.arg): _value(one.value) for one in node.keywords})
    return ast.literal_eval(node)


def compression_of(mode: str) -> Compression:
    """Returns the compression that a mode names; its options are literals.

    Raises:
        ValueError: The mode does not name a compression.
        InvalidArgumentError: One of its options lies outside its limits.
    """
    wrong = ValueError(
        "a mode is compute, dense, or a compression with literal options such as "
        f"'LAGS(density=0.01)', got {mode!r}"
    )
    try:
        name, options = call_of(mode)
    except ValueError:
        raise wrong from None
    kind = getattr(compression, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Compression):
        raise wrong
    return kind(**options)


def picked(methods: Mapping[str, Any], only: Sequence[str] | None) -> dict[str, Any]:
    """Returns those methods that are asked for, or all.

    Raises:
        typer.BadParameter: There is no such method.
    """
    unknown = sorted(set(only or ()) - set(methods))
    if unknown:
        raise typer.BadParameter(f"method must be one of {', '.join(methods)}, got {unknown[0]!r}")
    return {title: one for title, one in methods.items() if not only or title in only}
