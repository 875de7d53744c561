"""Compressions: presets, limits, and their presentation to users."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.compression import (
    LAGS,
    SBC,
    Adaptive,
    Collective,
    Compression,
    Dense,
    Feedback,
    GaussianK,
    GTopK,
    Layers,
    LocalSteps,
    RobustAverage,
    ThreeLC,
    TopK,
    Warmup,
    Wire,
    as_compression,
    is_sparse_compression,
)
from hvd_sparse.compression.collectives import COLLECTIVES
from hvd_sparse.compression.record import compression_of, record_of
from hvd_sparse.compression.sparsifiers import SPARSIFIERS, HardThreshold, Sampled
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError

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
    modes = (made.collective_name, made.layers.layer_wise, bool(made.adaptive))
    assert (made.sparsifier.name, *modes, made.density) == parts


@pytest.mark.parametrize(
    ("preset", "parts"),
    [(Dense, ("float32", 0, "keep")), (ThreeLC, ("ternary", 1024, "move"))],
)
def test_a_dense_sum_sends_all_in_its_own_values(preset, parts):
    made = preset()
    assert (made.values, made.layers.min_numel, made.feedback.momentum) == parts
    assert (made.collective, made.density, made.warmup, made.adaptive) == (
        "shard_sum", 1, None, False,
    )  # fmt: skip


def test_a_rule_takes_the_place_of_the_dense_sum():
    assert Dense(average="krum") == Dense(average=RobustAverage(rule="krum", bad_ranks=1))
    made = Dense(values="int8", average=RobustAverage(rule="bulyan", bad_ranks=2))
    assert made.collective_name == "bulyan"
    assert made.collective_options == {"bad_ranks": 2}
    assert compression_of(record_of(made)) == made
    assert repr(Dense(average="median")) == (
        "Dense(values='float32', average=RobustAverage(rule='median'))"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"average": "mean"}, "RobustAverage rule must be one of bulyan, krum, median, multi_krum"),
        ({"average": 3}, "average must be a RobustAverage, got 3"),
        ({"average": "krum", "values": "int4"}, "values with a robust average must be of 8 bits"),
        ({"average": "krum", "layers": Layers(min_numel=9)}, "min_numel .* must be 0, got 9"),
        (
            {"average": "krum", "local_steps": LocalSteps(every=4, moments="averaged")},
            "moments with a robust average must be 'local', got 'averaged'",
        ),
        ({"average": "krum", "feedback": Feedback(quality_every=5)}, "must be None, got 5"),
    ],
)
def test_what_a_rule_cannot_average_is_refused(options, says):
    with pytest.raises(InvalidArgumentError, match=says):
        Dense(**options)


@pytest.mark.parametrize("bad_ranks", [0, -1, 1.5, True])
def test_a_rule_bears_a_number_of_bad_ranks(bad_ranks):
    with pytest.raises(InvalidArgumentError, match="RobustAverage bad_ranks must"):
        RobustAverage(rule="median", bad_ranks=bad_ranks)


@pytest.mark.parametrize(
    ("compression", "taken"),
    [
        (TopK(layers=Layers(min_numel=6)), [False, False, True]),
        (TopK(layers=Layers(min_numel=0)), [True, True, True]),
        (TopK(layers=Layers(min_numel=7)), [False, False, False]),
        (SBC(layers=Layers(min_numel=6)), [False, False, True]),
        (Dense(), [True, True, True]),
        (Dense(layers=Layers(min_numel=6)), [False, False, True]),
        (ThreeLC(), [False, False, False]),
        (ThreeLC(layers=Layers(min_numel=0)), [True, True, True]),
    ],
)
def test_small_and_one_dimensional_tensors_are_taken_with_min_numel_0_alone(compression, taken):
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
        ({"collective": "ring"}, "collective must be one of auto, .*gtopk.*, got 'ring'"),
        ({"collective": 3}, "collective must be a Collective, got 3"),
        ({"collective": "shard_sum"}, "collective must be one of .*, got 'shard_sum'"),
        ({"warmup": 5}, "warmup must be a Warmup, got 5"),
        ({"wire": "int2"}, "Wire values must be one of auto, .*int8, int4, got 'int2'"),
        ({"wire": "ternary"}, "Wire values must be one of .*, got 'ternary'"),
        ({"wire": 4}, "wire must be a Wire, got 4"),
        ({"layers": {"min_numel": 5}}, "layers must be a Layers, got {'min_numel': 5}"),
        ({"feedback": 0.9}, "feedback must be a Feedback, got 0.9"),
        ({"adaptive": 1}, "adaptive must be one of True, False, got 1"),
        (
            {"adaptive": True, "layers": Layers(layer_wise=False)},
            "adaptive must be False where layers are not layer_wise",
        ),
    ],
)
def test_other_options_outside_their_limits_are_refused(options, match):
    with pytest.raises(InvalidArgumentError, match=match):
        TopK(**options)


@pytest.mark.parametrize(
    ("part", "options", "match"),
    [
        (Layers, {"min_numel": -1}, r"min_numel must lie in \[0, .*got -1"),
        (Layers, {"min_numel": 1.5}, "Layers min_numel must be an integer, got 1.5"),
        (Layers, {"bucket_numel": 0}, r"Layers bucket_numel must lie in \[1, 2147483647\], got 0"),
        (Layers, {"bucket_numel": 1 << 31}, r"bucket_numel must lie in \[1, 2147483647\]"),
        (Layers, {"bucket_numel": True}, "bucket_numel must be an integer, got True"),
        (Layers, {"layer_wise": 1}, "Layers layer_wise must be one of None, True, False, got 1"),
        (Wire, {"indices": "zipped"}, "Wire indices must be one of auto, plain, packed, got 'zip"),
        (Collective, {"slack": 0.5}, r"Collective slack must be a number in \[1, inf.*, got 0.5"),
        (
            Collective,
            {"slack": float("inf")},
            r"slack must be a number in \[1, infinity\), got inf",
        ),
        (Collective, {"slack": float("nan")}, "slack must be a number in .*, got nan"),
        (
            Collective,
            {"name": "allgather", "slack": 2},
            "slack is an option of 'gtopk', got 2.0 for",
        ),
        (Collective, {"nodes_first": 1}, "Collective nodes_first must be one of .*, got 1"),
        (ThreeLC, {"scale": 2}, r"scale must be a number in \[1, 2\), got 2"),
        (ThreeLC, {"scale": 0.5}, r"scale must be a number in \[1, 2\), got 0.5"),
        (ThreeLC, {"scale": float("nan")}, r"scale must be a number in \[1, 2\), got nan"),
        (Dense, {"values": "ternary"}, "values must be one of float32, .*, got 'ternary'"),
        (SBC, {"layers": Layers(bucket_numel=5)}, "bucket_numel of SBC must be 1: .*, got 5"),
        (Adaptive, {"rule": "mine"}, "Adaptive rule must be one of simulated, paper, got 'mine'"),
        (Adaptive, {"every": 3}, r"Adaptive every must lie in \[100, "),
        (Feedback, {"rescale": "yes"}, "rescale must be one of True, False, auto, got 'yes'"),
        (Feedback, {"rescale": np.ones(2)}, "rescale must be one of .*, got array"),
        (Feedback, {"momentum": 1}, r"Feedback momentum must be a number in \[0, 1\), got 1"),
        (Feedback, {"momentum": "auto"}, "momentum must be one of move, keep, got 'auto'"),
        (Feedback, {"momentum": float("nan")}, r"in \[0, 1\), got nan"),
        (Feedback, {"momentum": True}, r"in \[0, 1\), got True"),
        (Feedback, {"weight_decay": -0.1}, r"weight_decay must be a number in \[0, .*, got -0.1"),
        (Feedback, {"clip_norm": 0}, r"clip_norm must be a number in \(0, infinity\), got 0"),
        (Feedback, {"clip_norm": "1"}, r"clip_norm must be a number in \(0, .*, got '1'"),
        (Feedback, {"quality_every": 0}, r"quality_every must lie in \[1, "),
        (Feedback, {"decay": 0.0}, r"Feedback decay must be a number in \(0"),
        (Feedback, {"decay": 1.5}, r"Feedback decay must lie in \(0, 1\], got 1.5"),
    ],
)
def test_a_part_refuses_what_lies_outside_its_limits(part, options, match):
    with pytest.raises(InvalidArgumentError, match=match):
        part(**options)


@pytest.mark.parametrize(
    ("preset", "option"),
    [
        *((one, name) for one in (Dense, ThreeLC) for name in ("density", "warmup", "adaptive")),
        *((one, name) for one in (Dense, ThreeLC, SBC) for name in ("sparsifier", "collective")),
        *((one, "scale") for one in (LAGS, SBC, Dense)),
        *((one, "wire") for one in (Dense, ThreeLC, SBC)),
    ],
)
def test_a_preset_does_not_take_an_option_that_means_nothing_to_it(preset, option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        preset(**{option: None})


def test_the_base_of_presets_is_none():
    with pytest.raises(InvalidArgumentError, match="Compression is the base of the presets: take"):
        as_compression(Compression)


def test_no_preset_has_more_than_nine_options():
    assert max(len(dataclasses.fields(preset)) for preset in PRESETS) == 9


@pytest.mark.parametrize("preset", PRESETS)
def test_a_part_that_leaves_out_an_option_leaves_the_preset_its_own(preset):
    own, made = preset().layers, preset(layers=Layers(min_numel=5)).layers
    assert made == dataclasses.replace(own, min_numel=5)
    assert preset(feedback=Feedback()).feedback == preset().feedback
    assert preset(layers=Layers()) == preset()


@pytest.mark.parametrize("preset", PRESETS)
def test_classes_and_instances_are_accepted(preset):
    assert as_compression(preset) == preset()
    made = preset(layers=Layers(min_numel=5))
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
    assert repr(TopK(collective="gtopk")) == (
        "TopK(density=0.001, collective=Collective(name='gtopk'))"
    )
    assert repr(Dense()) == "Dense(values='float32')"
    assert repr(ThreeLC(scale=1.5)) == "ThreeLC(scale=1.5)"
    assert repr(LAGS(wire="int4")) == "LAGS(density=0.01, wire=Wire(values='int4'))"
    assert repr(TopK(local_steps=8)) == "TopK(density=0.001, local_steps=LocalSteps(every=8))"
    merge = Collective(name="gtopk", slack=2)
    assert repr(LAGS(adaptive=False, collective=merge)) == (
        "LAGS(density=0.01, collective=Collective(name='gtopk', slack=2.0), adaptive=False)"
    )


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
