"""Steps of a bucket: all results of a GPU have the bits of the CPU's."""

from __future__ import annotations

import pytest

from hvd_sparse import _core
from hvd_sparse.compression.collectives import COLLECTIVES
from tests import laws
from tests.device_array import CPU, DTYPES

SEGMENTS = (1000, 1, 3333)


def seen_in_steps(**options):
    """Returns applied values, residuals and sparsifier states, by rank and step."""

    def program(me):
        seen = []
        for step in range(4):
            done = me.step(laws.integer_gradient(me.numel, rank=me.rank, step=step))
            seen += [done.total, done.residual_after, me.states.copy()]
        return seen

    return laws.on_threads(3, program, segments=SEGMENTS, density=0.1, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("sparsifier", _core.sparsifiers())
def test_steps_have_the_bits_of_the_cpu(sparsifier, collective, dtype, gpu):
    options = {"sparsifier": sparsifier, "collective": collective, "dtype": dtype}
    on_cpu, on_gpu = (seen_in_steps(device=device, **options) for device in (CPU, gpu))
    for ours, theirs in zip(on_cpu, on_gpu, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.tobytes() == b.tobytes()
