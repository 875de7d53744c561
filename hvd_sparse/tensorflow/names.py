"""Names of variables, in messages between the ranks and in saved state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hvd_sparse.tensorflow import compat


def unique_names(variables: Iterable[Any]) -> list[str]:
    """Returns the variables' names, the same on all ranks; numbered where two share one."""
    return _unique(compat.name_of(variable).removesuffix(":0") for variable in variables)


def saved_names(names: Sequence[str]) -> dict[str, str]:
    """Returns the name under which a variable's state is saved, by variable name.

    Keras keeps counting layers when a process makes a model again, and a resumed run may have made
    fewer models.
    """
    return dict(zip(names, unnumbered_names(names), strict=True))


def unnumbered_names(names: Iterable[str]) -> list[str]:
    """Returns the names without the numbers by which Keras tells apart layers of a process."""
    return _unique(re.sub(r"_\d+(?=/|$)", "", name) for name in names)


def _unique(names: Iterable[str]) -> list[str]:
    unique: list[str] = []
    seen: set[str] = set()
    for number, name in enumerate(names):
        chosen = f"{name}.{number}" if name in seen else name
        seen.add(chosen)
        unique.append(chosen)
    return unique
