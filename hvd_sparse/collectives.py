"""Collectives: how the selected entries of all ranks become one sum. See csrc/collectives."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Guarantees of one collective.

    Attributes:
        name: Name in a compression, and in the core.
        lossless: True if every selected entry of every rank is part of the sum. Otherwise an entry
            that was left out stays in the residual of its rank.
        exact: True if every entry of the result is the sum over all ranks that selected it, and no
            larger sum was left out.
        reference: The publication.
    """

    name: str
    lossless: bool
    exact: bool
    reference: str


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective(
            name="allgather",
            lossless=True,
            exact=True,
            reference="Shi et al., Understanding Top-k Sparsification in Distributed Deep "
            "Learning, https://arxiv.org/abs/1911.08772",
        ),
        Collective(
            name="gtopk",
            lossless=False,
            exact=False,
            reference="Shi et al., A Distributed Synchronous SGD Algorithm with Global Top-k "
            "Sparsification, https://arxiv.org/abs/1901.04359",
        ),
        Collective(
            name="hierarchical",
            lossless=False,
            exact=False,
            reference="Dense inside a node, gtopk between nodes: docs/algorithms.md",
        ),
        Collective(
            name="recursive_doubling",
            lossless=True,
            exact=True,
            reference="Renggli et al., SparCML: High-Performance Sparse Communication for Machine "
            "Learning, https://arxiv.org/abs/1802.08021",
        ),
        Collective(
            name="split_allgather",
            lossless=False,
            exact=True,
            reference="Li and Hoefler, Near-Optimal Sparse Allreduce for Distributed Deep "
            "Learning, https://arxiv.org/abs/2201.07598",
        ),
    )
}


def find_collective(name: object) -> Collective:
    """Returns the collective of that name.

    Raises:
        InvalidArgumentError: There is none; the message lists all names.
    """
    if isinstance(name, str) and name in COLLECTIVES:
        return COLLECTIVES[name]
    raise InvalidArgumentError(f"collective must be one of {sorted(COLLECTIVES)}, got {name!r}")
