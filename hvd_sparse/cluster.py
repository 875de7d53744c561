"""The cluster: what was measured of the ranks, their network and their work, without a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hvd_sparse import records
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.network import Network
from hvd_sparse.profile import Machine, Profile

__all__ = ["Cluster", "load"]

KIND = "hvd_sparse cluster"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where a model can run.

    Attributes:
        network: Between the ranks.
        machine: Each rank.
    """

    network: Network
    machine: Machine

    def with_model_of(self, profile: Profile) -> Profile:
        """The layers and times of a profile, here. Computing takes as long as it took there."""
        return replace(profile, network=self.network, machine=self.machine)

    def to_json(self) -> str:
        """As JSON that reads back bit for bit."""
        return records.to_json(self, kind=KIND, version=VERSION)

    @classmethod
    def from_json(cls, text: str) -> Cluster:
        """The cluster that `to_json` wrote.

        Raises:
            InvalidArgumentError: The text is none; the message names what is wrong.
        """
        return records.from_json(cls, text, kind=KIND, version=VERSION)

    def save(self, path: Path | str) -> None:
        """Writes it to a file."""
        Path(path).write_text(self.to_json() + "\n")


def load(path: Path | str) -> Cluster:
    """The cluster that `Cluster.save` wrote.

    Raises:
        InvalidArgumentError: There is no such file, or it holds no cluster.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"cannot read a cluster from {path}: {error}") from None
    return Cluster.from_json(text)
