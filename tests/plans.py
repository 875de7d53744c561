"""Plans for tests in which measured times do not matter."""

from __future__ import annotations

from hvd_sparse.planning.plan import BucketPlan, Plan


def mixed_plan(profile, rules):
    """Returns a plan with the first layer dense and the others sparse in one bucket."""
    first, *others = profile.layers

    def bucket(layers, density, collective):
        return BucketPlan(
            layers=tuple(layer.name for layer in layers),
            numels=tuple(layer.numel for layer in layers),
            densities=(density,) * len(layers),
            collective=collective,
            wire="plain",
            select_seconds=1e-6,
            exchange_seconds=1e-6,
        )

    return Plan(
        buckets=(bucket([first], 1.0, "dense"), bucket(others, 0.1, "gtopk")),
        size=profile.network.size,
        step_seconds=0.5,
        dense_seconds=1.0,
        compute_seconds=0.25,
    )
