"""Messages between ranks: records round-trip, and anything else is refused."""

from __future__ import annotations

import dataclasses
import pickle
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from hvd_sparse.bench.bench import _Verdict
from hvd_sparse.compression import (
    LAGS,
    SBC,
    AdaComm,
    Dense,
    Feedback,
    GaussianK,
    GTopK,
    LocalSteps,
    Outer,
    ThreeLC,
    TopK,
    Warmup,
)
from hvd_sparse.compression.record import compression_of, record_of
from hvd_sparse.compression.sparsifiers import HardThreshold, RandomK
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.pytorch.state import _Progress
from hvd_sparse.ranks import messages
from hvd_sparse.ranks.agreement import _Details, _Report, agree_on_call
from hvd_sparse.ranks.connection import _Introduction
from hvd_sparse.ranks.world import World, key_of
from hvd_sparse.state.inheritance import Holding, _Claim
from tests.laws import EVERY_SPARSIFIER

HOLDING = Holding(rank=2, size=3, steps=2**40, whole=True)
INTRODUCTION = _Introduction("", "tcp", "a:1", "b:2", -1, 7, "machine", "node 0", True)


def come_back(thing, kind):
    return messages.decode(messages.encode(thing), kind)


@pytest.mark.parametrize(
    ("thing", "kind"),
    [
        (INTRODUCTION, _Introduction),
        (_Report(None, "abc", 3), _Report),
        (_Report("no memory: ä中", "abc", 3), _Report),
        (_Details(["'w' (3, 4) float32"], {"op": "Sum"}), _Details),
        ((1000, "float32", "", "TopK()", "cpu"), tuple[str | int, ...]),
        ([[0.1, 1e-300, float("inf")], []], list[list[float]]),
        ([1.5, 2.0], list[float] | str),
        ("OSError: full", list[float] | str),
        (False, bool),
        (_Claim("spread"), _Claim),
        (_Claim("reset", HOLDING, {"w": 0.1}, "other layers"), _Claim),
        (_Claim("reset", HOLDING, 0.25), _Claim),
        ((True, None, False), tuple[bool | None, ...]),
        (Reduction(averages=False, gradient_predivide_factor=0.5), Reduction),
        ([[(0.5, 1.5)], [(0.25, 1e-9)]], list[list[tuple[float, float]]]),
        (_Verdict([True, False], [2**32 - 1, 0]), _Verdict),
        (record_of(TopK()), dict[str, Any]),
        (None, Any),
        ({"step": 3, "lrs": {"w": 0.1}, "rate": None}, Any),
        ({0: 3, 2: 3}, Any),
    ],
)
def test_a_record_comes_back_as_it_was(thing, kind):
    assert come_back(thing, kind) == thing
    assert type(come_back(thing, kind)) is type(thing)


def test_how_far_a_rank_is_comes_back_as_it_was():
    states = {"w": np.array([0.1, np.inf, -0.0, np.nan], np.float32), "v": np.zeros(4, np.float32)}
    told = _Progress(1, 2, '{"kind": 3}', states, True, False)
    back = come_back(told, _Progress)
    assert back._replace(states={}) == told._replace(states={})
    assert {n: (a.dtype, a.tobytes()) for n, a in back.states.items()} == {
        n: (a.dtype, a.tobytes()) for n, a in states.items()
    }
    back.states["w"][0] = 1  # the arrays own their memory


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3)), np.eye(3, dtype=np.int8).T[::2], np.array(True)]
)
def test_arrays_come_back_with_shape_and_type(array):
    back = come_back([array], list[np.ndarray])[0]
    assert (back.shape, back.dtype) == (array.shape, array.dtype)
    assert np.array_equal(back, array)


def test_without_a_type_tuples_and_sets_are_lists_and_numbers_of_numpy_are_plain():
    assert come_back((1, {"a"}, np.float32(0.5), np.bool_(True)), Any) == [1, ["a"], 0.5, True]
    assert come_back(Counter("aab"), Any) == {"a": 2, "b": 1}


SPECIAL = {"hard_threshold": HardThreshold(threshold=0.5), "random_k": RandomK(seed=-(2**53))}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OfAUser(TopK):
    density: float = 0.25


@pytest.mark.parametrize("preset", [LAGS, GTopK, GaussianK, TopK, SBC, Dense, ThreeLC, OfAUser])
def test_a_preset_is_made_again_from_what_is_told_of_it(preset):
    made = preset(feedback=Feedback(clip_norm=2, momentum=0.9, rescale=False))
    back = compression_of(come_back(record_of(made), dict[str, Any]))
    assert back == made
    assert type(back) is type(made)
    assert repr(back) == repr(made)


@pytest.mark.parametrize("name", EVERY_SPARSIFIER)
def test_what_selects_is_made_again_from_what_is_told_of_it(name):
    sparsifier = SPECIAL.get(name, EVERY_SPARSIFIER[name])
    made = LAGS(sparsifier=sparsifier, warmup=Warmup(steps=3, densities=[0.5, 0.1]))
    assert compression_of(come_back(record_of(made), dict[str, Any])) == made


@pytest.mark.parametrize(
    "options",
    [{"every": 4, "fragments": 2, "delay": 1}, {"every": "auto"}, {"every": AdaComm(first=3)}],
)
def test_local_steps_are_made_again_from_what_is_told_of_them(options):
    outer = Outer(lr=0.5, momentum=0.25, nesterov=True)
    made = TopK(local_steps=LocalSteps(outer=outer, **options))
    assert compression_of(come_back(record_of(made), dict[str, Any])) == made


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"part": ["os.system"]}, "which this process does not have"),
        ({"part": "os.system"}, "another rank uses os.system, which this process does not have"),
        ({"sparsifier": {"sparsifier": "os.system"}}, "uses os.system, which"),
        ({"sparsifier": {"sparsifier": "gaussian", "refresh": 0}}, r"refresh must lie in \[1, "),
        ({"sparsifier": {"sparsifier": "gaussian", "more": 0}}, "unexpected .* argument 'more'"),
        ({"more": 0}, "unexpected keyword argument 'more'"),
        ({"density": 2.0}, r"density must lie in \(0, 1\], got 2.0"),
        ({"warmup": record_of(Warmup(steps=1)) | {"steps": 0}}, "Warmup steps must lie"),
        ({"part": "hvd_sparse.compression.parts.Wire"}, "unexpected keyword argument"),
    ],
)
def test_a_compression_that_this_process_cannot_make_is_refused(change, match):
    with pytest.raises(InvalidArgumentError, match=match):
        compression_of(record_of(LAGS()) | change)


def test_a_part_alone_is_no_compression():
    with pytest.raises(InvalidArgumentError, match="which is no compression"):
        compression_of(record_of(Warmup(steps=3)))


class Touches:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


AWAITED = [
    ("", Any),
    ("", str),
    (INTRODUCTION, _Introduction),
    (_Report(None, "", 0), _Report),
    ([1.0], list[float] | str),
    (_Claim("own"), _Claim),
    (_Progress(0, 0, None, {}, True, False), _Progress),
    (record_of(LAGS()), dict[str, Any]),
]


def ranks_where(rank_1_sends, size=3):
    """Returns rank 0's world; rank 1 sends these bytes, and all others what rank 0 sends."""

    def allgather(array, name):
        length = np.array([len(rank_1_sends)], "<i8").view(np.uint8)
        sent = np.append(length, np.frombuffer(rank_1_sends, np.uint8))
        return np.concatenate([sent if rank == 1 else array for rank in range(size)])

    return World(0, size, allgather=allgather)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(("mine", "kind"), AWAITED)
def test_code_that_a_rank_sends_does_not_run(tmp_path, mine, kind, protocol):
    sent = pickle.dumps(Touches(tmp_path / "ran"), protocol)
    with pytest.raises(HvdSparseError, match="rank 1 of 3 has sent a message that cannot be read"):
        ranks_where(sent).allgather_object(mine, kind)
    assert not (tmp_path / "ran").exists()


def extension(*parts):
    """Returns the bytes of an array, as a foreign sender might make them."""
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(parts)))


@pytest.mark.parametrize(
    ("sent", "mine", "kind", "match"),
    [
        (b"", None, Any, "read: Input data was truncated"),
        (b"\x91" * 100_000, None, Any, "read: it is nested too deeply"),
        (b"\xa2\xff\xff", "", str, "read as str: 'utf-8' codec"),
        (b"\xdd\xff\xff\xff\xff", [], list[int], r"read as list\[int\]: Input data was truncated"),
        (messages.encode(1) * 2, 1, int, "trailing characters"),
        (
            messages.encode(("", "tcp")),
            INTRODUCTION,
            _Introduction,
            "read as Introduction: Expected",
        ),
        (messages.encode([1, "2"]), [1], list[int], r"Expected `int`, got `str` - at `\$\[1\]`"),
        (messages.encode({"field": 1}), _Claim("own"), _Claim, "Expected `array`, got `object`"),
        (b"\xd4\x07a", None, Any, "there is no extension 7"),
        (
            extension("object", [1], b"12345678"),
            None,
            Any,
            "an array of 'object' is not one of numbers",
        ),
        (
            extension("int8", [-1, -2], b"ab"),
            None,
            Any,
            r"an array of int8, \(-1, -2\), does not have 2 bytes",
        ),
        (
            extension("int8", [3], b"ab"),
            None,
            Any,
            r"an array of int8, \(3,\), does not have 2 bytes",
        ),
    ],
)
def test_a_message_of_another_type_names_the_rank_and_the_type(sent, mine, kind, match):
    with pytest.raises(HvdSparseError, match=f"rank 1 of 3 has sent a message that .*{match}"):
        ranks_where(sent).allgather_object(mine, kind)


@pytest.mark.parametrize("thing", [object(), 2**64, [Path("/")], np.array(["a"]), "\udc80"])
@pytest.mark.parametrize("size", [1, 3])
def test_what_cannot_be_sent_is_named_after_the_others_were_told(thing, size):
    sent = []

    def allgather(array, name):
        sent.append(array.tobytes())
        return np.concatenate([array] * size)

    with pytest.raises(InvalidArgumentError, match="cannot tell other ranks"):
        World(0, size, allgather=allgather).allgather_object(thing)
    if size > 1:
        (message,) = sent
        with pytest.raises(ValueError, match="malformed"):
            messages.decode(message[8:], Any)


def test_a_rank_that_is_alone_gets_what_it_would_get_from_another():
    assert World(0, 1).allgather_object((1, 2)) == [[1, 2]]
    assert World(0, 1).allgather_object((1, 2), tuple[int, int]) == [(1, 2)]


def test_calls_that_differ_are_still_told_apart():
    world = ranks_where(messages.encode((3, "a")))
    with pytest.raises(InvalidArgumentError, match=r"= \(3, 'a'\) on rank 5 and \(4, 'a'\) on"):
        agree_on_call(world, [4, 5, 6], "f", numel=4, name="a")


def test_the_set_of_all_ranks_stays_one_while_ranks_come_and_go():
    def key(number, ranks):
        return key_of(SimpleNamespace(process_set_id=number, ranks=ranks))

    assert key(0, [0, 1]) == key(0, [0, 1, 2])
    assert key(3, [0, 1]) != key(3, [1, 2])  # Horovod gives a number away again
