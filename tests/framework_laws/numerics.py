"""All features that change gradients, combined: the law holds exactly in every combination.

Gradients are plus or minus one at 256 indices, momentum is 1/2, clipping factors and loss scales
are powers of two, so all sums are exact, in bfloat16 too.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from hvd_sparse.compression import LAGS, Feedback, Layers
from tests.cases import in_turn
from tests.dense_sums import DENSE_SUMS
from tests.frameworks import SHAPES, same, with_bad_entry

BAD_STEP = 1
SCALE = 1024.0


COMPRESSIONS = {
    "lags": LAGS(
        adaptive=False,
        collective="gtopk",
        warmup=None,
        density=0.1,
        layers=Layers(min_numel=64, bucket_numel=1500),
        feedback=Feedback(rescale=False),
    ),
    **DENSE_SUMS,
}
CASES = in_turn(
    ["float32", "bfloat16"],
    [1, 2],
    [None, "second", "bias"],
    [False, True],
    [0.0, 0.5],
    ["all ranks", "two ranks"],
)


def new_compression(name, *, ranks, passes, clips, momentum):
    """Makes a compression; clipping quarters each gradient that has all its 256 entries."""
    limit = passes * 16 / 4 * math.sqrt(ranks.size())
    return replace(
        COMPRESSIONS[name],
        feedback=replace(
            COMPRESSIONS[name].feedback, momentum=momentum, clip_norm=limit if clips else None
        ),
    )


def share_of(gradient, *, clips, passes):
    """Returns the finite part of the sum of several passes with a gradient, clipped."""
    factor = 0.25 if clips and gradient.size >= 256 else 1.0
    return passes * factor * np.nan_to_num(gradient).ravel()


def check_law(framework, model, before, gradients, results, *, ranks, momentum, passes, clips):
    """Checks that gradients, residuals and velocities in equal sums applied and residuals out.

    `results` is None in a step that was skipped, in which only residuals take anything in.
    """
    residual, velocity = before
    left = model.residuals() if ranks.size() > 1 else {}  # otherwise nothing is sent or left
    given = {}
    for name, gradient in gradients.items():
        grown = share_of(gradient, clips=clips, passes=passes)
        grown = grown + momentum * velocity.get(name, 0.0)
        if name in left:
            given[name] = residual.get(name, 0.0) + grown - left[name]
        elif results is not None:
            given[name] = grown
    if not given:
        return
    for name, summed in framework.totals(given, ranks).items():
        applied = np.zeros_like(summed) if results is None else results[name].ravel()
        assert np.array_equal(summed, applied), name


def check_skipped_step(model, before, gradients, *, ranks, momentum, clips, passes):
    """Checks what this rank keeps after a step that was skipped."""
    residual, velocity = before
    left, later = model.residuals() if ranks.size() > 1 else {}, model.velocities()
    if momentum and "bias" not in left:
        assert np.array_equal(later["bias"], velocity["bias"])  # sent dense: skipped
    for name in left:  # sparse: goes on, and nothing is masked
        grown = share_of(gradients[name], clips=clips, passes=passes)
        grown = grown + momentum * velocity.get(name, 0.0)
        assert np.array_equal(left[name], residual.get(name, 0.0) + grown)
        if momentum:
            assert np.array_equal(later[name], grown)


@pytest.mark.parametrize(
    ("name", "dtype", "passes", "bad", "clips", "momentum", "ranks"),
    [("lags", *case) for case in CASES]
    + [(name, *case) for name, case in zip(itertools.cycle(DENSE_SUMS), CASES, strict=False)],
    indirect=["ranks"],
)
def test_nothing_is_lost_in_any_combination(
    framework, name, dtype, passes, bad, clips, momentum, ranks
):
    if bad is not None and passes > 1 and not framework.scales_passes:
        pytest.skip("the framework scales the loss of one pass only")
    if bad is not None and dtype in ("float16", "bfloat16") and not framework.scales_narrow:
        pytest.skip("the framework scales no loss of this type")
    if not ranks.included():
        return
    compression = new_compression(name, ranks=ranks, passes=passes, clips=clips, momentum=momentum)
    model = framework.model(
        compression, dtype=dtype, passes=passes, loss_scale=SCALE if bad else None, ranks=ranks
    )
    moved = set()
    for step in range(3):
        gradients = framework.signs(step)
        skipped = bad is not None and step == BAD_STEP
        if skipped and framework.rank == ranks.ranks[-1]:
            zeros = np.flatnonzero(gradients[bad] == 0)  # there, the norm of the rest stays exact
            gradients = with_bad_entry(gradients, bad, np.nan, index=[*zeros, 0][0])
        if dtype == "bfloat16":  # a result may be the change of the weights
            model.fill(0.0)
        before, weights = (model.residuals(), model.velocities()), model.weights()
        results = model.step(gradients)
        assert (results is None) == skipped
        undone = skipped and framework.undoes_skipped
        if undone:
            assert all(map(same, before, (model.residuals(), model.velocities())))
        else:
            check_law(
                framework, model, before, gradients, results,
                ranks=ranks, momentum=momentum, passes=passes, clips=clips,
            )  # fmt: skip
        if results is None:
            assert same(model.weights(), weights)
            assert model.loss_scale() == SCALE / 2
        if skipped and not undone:
            check_skipped_step(
                model, before, gradients,
                ranks=ranks, momentum=momentum, clips=clips, passes=passes,
            )  # fmt: skip
        elif not skipped:
            moved |= {name for name, result in results.items() if np.any(result)}
            framework.assert_same_on_all_ranks(results, ranks)
    framework.assert_same_on_all_ranks(model.weights(), ranks)
    assert moved == set(SHAPES)
