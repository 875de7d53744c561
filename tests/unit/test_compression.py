"""Compressions: presets, limits, and their presentation to users."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.collectives import COLLECTIVES
from hvd_sparse.compression import (
    LAGS,
    SBC,
    Compression,
    Dense,
    GaussianK,
    GTopK,
    ThreeLC,
    TopK,
    as_compression,
    is_sparse_compression,
)
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError
from hvd_sparse.schedules import Warmup
from hvd_sparse.sparsifiers import SPARSIFIERS, HardThreshold, Sampled

PRESETS = [LAGS, GTopK, GaussianK, TopK, SBC, Dense, ThreeLC]


@pytest.mark.parametrize(
    ("preset", "parts"),
    [
        (LAGS, ("gaussian", "auto", True, True, 0.01)),
        (GTopK, ("top_k", "gtopk", False, False, 0.001)),
        (GaussianK, ("gaussian", "allgather", True, False, 0.001)),
        (TopK, ("top_k", "allgather", True, False, 0.001)),
        (SBC, ("one_sign", "allgather", True, False, 0.01)),
    ],
)
def test_presets_are_made_of_the_papers_parts(preset, parts):
    made = preset()
    modes = (made.collective, made.layer_wise, made.adaptive)
    assert (made.sparsifier.name, *modes, made.density) == parts


@pytest.mark.parametrize(
    ("preset", "parts"),
    [(Dense, ("float32", 0, 0.0)), (ThreeLC, ("ternary", 1024, "auto"))],
)
def test_a_dense_sum_sends_all_in_its_own_values(preset, parts):
    made = preset()
    assert (made.values, made.min_numel, made.momentum_correction) == parts
    assert (made.collective, made.density, made.warmup, made.adaptive) == (
        "shard_sum", 1, None, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("compression", "taken"),
    [
        (TopK(min_numel=6), [False, False, True]),
        (TopK(min_numel=0), [False, False, True]),
        (TopK(min_numel=7), [False, False, False]),
        (SBC(min_numel=6), [False, False, True]),
        (Dense(), [True, True, True]),
        (Dense(min_numel=6), [False, False, True]),
        (ThreeLC(), [False, False, False]),
        (ThreeLC(min_numel=0), [True, True, True]),
    ],
)
def test_small_and_one_dimensional_tensors_are_taken_by_whole_dense_sums_alone(compression, taken):
    assert [compression.takes(shape) for shape in [(), (6,), (2, 3)]] == taken


def test_lags_alone_warms_up_by_itself():
    assert LAGS().warmup == Warmup(steps=50, densities=(0.25, 0.0625, 0.015625))
    assert {preset().warmup for preset in PRESETS if preset is not LAGS} == {None}
    assert repr(LAGS(warmup=None)) == "LAGS(density=0.01, warmup=None)"


def test_a_sparsifier_is_taken_by_name_or_with_options():
    assert LAGS(sparsifier="sampled").sparsifier == Sampled(fraction=0.01)
    made = LAGS(sparsifier=HardThreshold(threshold=1e-3))
    assert made.sparsifier.options == {"threshold": 1e-3}
    assert repr(made) == "LAGS(density=0.01, sparsifier=HardThreshold(threshold=0.001))"


def test_registries_agree_with_the_core():
    assert sorted(SPARSIFIERS) == sorted(_core.sparsifiers())
    assert sorted(COLLECTIVES) == sorted(_core.collectives())


@pytest.mark.parametrize("density", [0, 0.0, -0.1, 1.5, float("nan"), float("inf")])
def test_a_density_outside_its_limits_is_refused(density):
    with pytest.raises(InvalidArgumentError) as caught:
        LAGS(density=density)
    assert str(caught.value) == f"density must lie in (0, 1], got {float(density)}"


@pytest.mark.parametrize("density", ["0.1", None, True, [0.1], 1j])
def test_a_density_that_is_no_number_is_refused(density):
    with pytest.raises(InvalidArgumentError, match=r"density must be a number in \(0, 1\], got"):
        LAGS(density=density)


def test_the_message_shows_what_was_given():
    with pytest.raises(ValueError, match=r"got '0.1' \(str\)"):
        LAGS(density="0.1")


@pytest.mark.parametrize("density", [1, 1.0, 1e-9, np.float32(0.5), np.float64(0.5)])
def test_any_real_number_in_the_limits_is_a_density(density):
    assert LAGS(density=density).density == float(density)
    assert type(LAGS(density=density).density) is float


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"sparsifier": "random"},
            "sparsifier must be one of .*'gaussian', 'hard_threshold', .*'top_k'.*, got 'random'",
        ),
        ({"sparsifier": "hard_threshold"}, r"needs a threshold: .*HardThreshold\(threshold="),
        ({"sparsifier": 7}, "sparsifier must be one of .*, got 7"),
        ({"collective": 3}, r"collective must be one of \['allgather', 'gtopk', .*\], got 3"),
        ({"min_numel": -1}, r"min_numel must lie in \[0, .*got -1"),
        ({"min_numel": 1.5}, "min_numel must be an integer, got 1.5"),
        ({"bucket_numel": 0}, r"bucket_numel must lie in \[1, 2147483647\], got 0"),
        ({"bucket_numel": 1 << 31}, r"bucket_numel must lie in \[1, 2147483647\]"),
        ({"bucket_numel": True}, "bucket_numel must be an integer, got True"),
        ({"layer_wise": 1}, "layer_wise must be True or False, got 1"),
        ({"rescale_residual": "yes"}, "rescale_residual must be True, False or None, got 'yes'"),
        (
            {"rescale_residual": np.ones(2)},
            "rescale_residual must be True, False or None, got array",
        ),
        ({"warmup": 5}, "warmup must be a Warmup or None, got 5"),
        ({"sparsity": 2}, r"sparsity must be a number in \[1, 2\), got 2"),
        ({"sparsity": 0.5}, r"sparsity must be a number in \[1, 2\), got 0.5"),
        ({"sparsity": float("nan")}, r"sparsity must be a number in \[1, 2\), got nan"),
        ({"values": "int2"}, "values must be one of .*int8, int4, ternary, binary, got 'int2'"),
        ({"values": "ternary"}, "'ternary' with collective 'shard_sum' alone, .* 'allgather'"),
        ({"values": "binary"}, "sparsifier must be 'one_sign' with values 'binary', .*'top_k'"),
        ({"collective": "shard_sum"}, "density must be 1 with .*'shard_sum', .*, got 0.001"),
    ],
)
def test_other_options_outside_their_limits_are_refused(options, match):
    with pytest.raises(InvalidArgumentError, match=match):
        Compression(**options)


@pytest.mark.parametrize("preset", [Dense, ThreeLC])
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"density": 0.1}, "density must be 1 with collective 'shard_sum', .*, got 0.1"),
        ({"warmup": Warmup(steps=3)}, r"warmup must be None with .*, got Warmup\(steps=3, "),
        ({"adaptive": True}, "adaptive must be False with .*, got True"),
        ({"collective": "gtopk"}, "'shard_sum'.*, got (collective )?'gtopk'"),
        ({"collective": "hierarchical"}, "'shard_sum'.*, got (collective )?'hierarchical'"),
        ({"collective": "auto"}, "'shard_sum'.*, got (collective )?'auto'"),
    ],
)
def test_a_dense_sum_cannot_do_what_only_selecting_can(preset, options, match):
    with pytest.raises(InvalidArgumentError, match=match):
        preset(**options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sparsifier": "top_k"}, "sparsifier must be 'one_sign' with .*, got 'top_k'"),
        ({"collective": "gtopk"}, "collective must be 'allgather' with .*, got 'gtopk'"),
        ({"collective": "auto"}, "collective must be 'allgather' with .*, got 'auto'"),
        (
            {"collective": "shard_sum", "density": 1},
            "collective must be 'allgather' with values 'binary', .*, got 'shard_sum'",
        ),
        ({"adaptive": True}, "adaptive must be False with values 'binary', .*, got True"),
        ({"bucket_numel": 5}, "bucket_numel must be 1 with values 'binary', .*, got 5"),
    ],
)
def test_binary_values_take_the_parts_of_their_preset(options, match):
    with pytest.raises(InvalidArgumentError, match=match):
        SBC(**options)


def test_the_parts_of_binary_values_serve_others_and_whole_models():
    assert SBC(values="float32", bucket_numel=5, collective="gtopk").values == "float32"
    assert SBC(layer_wise=False, bucket_numel=5).values == "binary"
    parts = {"sparsifier": "one_sign", "values": "binary", "bucket_numel": 1}
    assert TopK(**parts).indices == "plain"


@pytest.mark.parametrize("preset", PRESETS)
def test_classes_and_instances_are_accepted(preset):
    assert as_compression(preset) == preset()
    made = preset(min_numel=5)
    assert as_compression(made) is made
    assert is_sparse_compression(preset)
    assert is_sparse_compression(made)


@pytest.mark.parametrize("foreign", ["lags", 0.01, None, int, object()])
def test_foreign_things_are_refused_by_name(foreign):
    assert not is_sparse_compression(foreign)
    kind = foreign if isinstance(foreign, type) else type(foreign)
    with pytest.raises(InvalidArgumentError, match=f"got .*{kind.__name__}"):
        as_compression(foreign)


def test_a_compression_shows_its_density_and_what_is_not_the_default():
    assert repr(LAGS()) == "LAGS(density=0.01)"
    assert repr(GTopK(density=0.01, min_numel=5)) == "GTopK(density=0.01, min_numel=5)"
    assert repr(TopK(collective="gtopk")) == "TopK(density=0.001, collective='gtopk')"
    assert repr(Dense()) == "Dense(values='float32')"
    assert repr(SBC(min_numel=5)) == "SBC(density=0.01, min_numel=5)"
    assert repr(ThreeLC(sparsity=1.5)) == "ThreeLC(sparsity=1.5, values='ternary')"


def test_compressions_are_values():
    made = LAGS(density=0.01, warmup=Warmup(steps=3))
    assert made == LAGS(density=0.01, warmup=Warmup(steps=3))
    assert made != LAGS(density=0.02)
    assert LAGS() != GTopK()
    assert hash(made) == hash(dataclasses.replace(made))
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.density = 0.5
    with pytest.raises(TypeError):
        LAGS(0.5)


@pytest.mark.parametrize("compression", [LAGS, LAGS(density=0.1)])
def test_unpatched_horovod_is_told_what_to_import(compression):
    with pytest.raises(HvdSparseError, match=r"LAGS was given to stock Horovod: import hvd_sparse"):
        compression.compress(object())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"slack": 0.5}, "slack must be a finite number >= 1, got 0.5"),
        ({"slack": float("inf")}, "slack must be a finite number >= 1, got inf"),
        ({"slack": float("nan")}, "slack must be a finite number >= 1, got nan"),
        ({"indices": "zipped"}, "indices must be one of auto, plain, packed, got 'zipped'"),
        ({"plan": "mine"}, "plan must be one of simulated, paper, got 'mine'"),
        ({"adaptive": 1}, "adaptive must be True or False, got 1"),
        ({"replan_every": 3}, r"replan_every must lie in \[100, "),
        ({"layer_wise": False}, "adaptive must be False where layer_wise is"),
        ({"momentum_correction": 1}, r"momentum_correction must be a number in \[0, 1\), got 1"),
        ({"momentum_correction": float("nan")}, r"in \[0, 1\), got nan"),
        ({"momentum_correction": True}, r"in \[0, 1\), got True"),
        ({"weight_decay": -0.1}, r"weight_decay must be a number in \[0, infinity\), got -0.1"),
        ({"clip_norm": 0}, r"clip_norm must be a number in \(0, infinity\), got 0"),
        ({"clip_norm": "1"}, r"clip_norm must be a number in \(0, infinity\), got '1'"),
        ({"quality_every": 0}, r"quality_every must lie in \[1, "),
    ],
)
def test_options_of_adaptive_compressions_are_refused_by_name(options, match):
    with pytest.raises(InvalidArgumentError, match=match):
        LAGS(**options)


def test_a_pinned_compression_says_what_it_pins():
    made = LAGS(adaptive=False, collective="gtopk", slack=2)
    assert repr(made) == "LAGS(density=0.01, collective='gtopk', slack=2.0, adaptive=False)"
