"""Sparsifiers: how a rank chooses the entries that it sends. See csrc/sparsifiers."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class Sparsifier:
    """What one sparsifier promises.

    Attributes:
        name: As it is passed to a compression, and known to the core.
        exact: Whether exactly the k entries of largest magnitude are chosen.
        reference: Where it was published.
    """

    name: str
    exact: bool
    reference: str


SPARSIFIERS = {
    sparsifier.name: sparsifier
    for sparsifier in (
        Sparsifier(
            name="top_k",
            exact=True,
            reference="Lin et al., Deep Gradient Compression, https://arxiv.org/abs/1712.01887",
        ),
        Sparsifier(
            name="gaussian",
            exact=False,
            reference="Shi et al., Understanding Top-k Sparsification in Distributed Deep "
            "Learning, https://arxiv.org/abs/1911.08772",
        ),
    )
}


def find_sparsifier(name: object) -> Sparsifier:
    """The sparsifier of that name.

    Raises:
        InvalidArgumentError: There is none; the message names those that exist.
    """
    if isinstance(name, str) and name in SPARSIFIERS:
        return SPARSIFIERS[name]
    raise InvalidArgumentError(f"sparsifier must be one of {sorted(SPARSIFIERS)}, got {name!r}")
