"""The ranks that hold the shards of one replica, each of which has an exchange of its own."""

from __future__ import annotations

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks.world import World


class Replica:
    """The shards of one replica: they commit steps together, and follow one plan.

    What the ranks of a shard agree on is the same in all replicas, so a message within each replica
    makes it the same on all ranks of the mesh.

    Args:
        world: The ranks, in the order of their shards.
        core: The core's exchange between them, without buckets.
    """

    def __init__(self, world: World, core: Exchange) -> None:
        self._world = world
        self._core = core

    def agreed(self, problem: str) -> str:
        """Returns why no rank commits a step; empty if all ranks do. Collective.

        All shards commit it, or none does: otherwise they would be of different steps.

        Args:
            problem: That of this rank's shard, the same in all replicas; empty if it has none.
        """
        rows = self._core.gather([float(bool(problem))], what="the commit of a step")
        refusing = [shard for shard, (refuses,) in enumerate(rows) if refuses]
        if problem or not refusing:
            return problem
        return f"a gradient is not finite in shard {refusing[0]} of the model"

    def of_all_shards(self, rows: list[list[float]]) -> list[list[float]]:
        """Returns the rows of numbers that all ranks of the mesh have. Collective.

        Args:
            rows: Those of the ranks that have this rank's shard, in rank order.
        """
        flat = [number for row in rows for number in row]
        shards = self._core.gather(flat, what="a meeting of local steps")
        width = len(rows[0])
        return [shard[at : at + width] for shard in shards for at in range(0, len(shard), width)]

    def of_first_shard(self, text: str) -> str:
        """Returns the text of the rank that has the first shard. Collective."""
        first: str = self._world.allgather_object(text)[0]
        return first

    def fail(self, reason: str) -> None:
        """Ends the exchange between the shards on all of its ranks."""
        self._core.fail(reason)

    def close(self) -> None:
        """Ends this rank's part."""
        self._core.close()
