"""Profiles: read back bit for bit, refused with a reason, scaled to other networks."""

from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.profile import LayerProfile, Link, Network, Profile
from tests.profiles import MACHINE, gigabits, profile_of

SECONDS = st.floats(min_value=0, max_value=1e6, allow_nan=False)


@given(st.lists(SECONDS, min_size=1, max_size=5), SECONDS)
def test_a_profile_reads_back_bit_for_bit(backward, alpha):
    network = Network(
        size=4,
        local_size=2,
        links=((1, Link(alpha=alpha, beta=alpha / 3)), (2, Link(alpha=0.0, beta=1e-300))),
        dense=Link(alpha=alpha / 7, beta=1e-9),
        local=Link(alpha=1e-6, beta=1e-10),
    )
    before = profile_of([10] * len(backward), backward, network=network)
    after = Profile.from_json(before.to_json())
    assert after == before
    assert after.to_json() == before.to_json()


def test_a_profile_is_saved_and_loaded(tmp_path):
    before = profile_of([10, 20], [0.1, 0.2])
    before.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == before


@pytest.mark.timeout(20)
def test_a_fifo_that_nobody_reads_is_an_error_and_one_that_is_read_gets_all(tmp_path):
    fifo = tmp_path / "profile.json"
    os.mkfifo(fifo)
    before = profile_of([10] * 20_000, [0.1] * 20_000)  # longer than a pipe's buffer
    with pytest.raises(OSError, match="No such device or address"):
        before.save(fifo)
    with ThreadPoolExecutor() as reader:
        read = reader.submit(fifo.read_text)
        while True:
            with contextlib.suppress(OSError):  # until the reader has opened it
                before.save(fifo)
                break
        assert Profile.from_json(read.result()) == before


def changed(change):
    content = json.loads(profile_of([10, 20], [0.1, 0.2]).to_json())
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        ("[]", "is no hvd_sparse profile"),
        (changed(lambda c: c.update(kind="plan")), "is no hvd_sparse profile"),
        (
            changed(lambda c: c.update(version=2)),
            "version .* must be 1, got 2",
        ),
        (changed(lambda c: c.pop("forward")), "missing required field `forward`"),
        (changed(lambda c: c.update(backward=1.0)), r"unknown fields \['\$.backward'\]"),
        (changed(lambda c: c["layers"][1].update(numel=1.5)), r"`int`.*`float`.*layers\[1\].numel"),
        (changed(lambda c: c["layers"][1].update(numel=True)), r"`int`.*`bool`.*layers\[1\].numel"),
        (changed(lambda c: c["layers"][1].update(nume=1)), r"unknown fields .*layers\[1\].nume'"),
        (changed(lambda c: c["layers"][0].update(numel=-1)), "numel of LayerProfile"),
        (changed(lambda c: c["network"]["dense"].update(beta=-1.0)), "beta of Link"),
        (changed(lambda c: c["network"]["links"].append([3])), r"length 2, got 1 - at .*links\["),
        (
            changed(lambda c: c["network"].update(links=7)),
            r"`array`, got `int` - at .*network.links",
        ),
        (changed(lambda c: c.update(machine=[])), "`object`, got `array` - at .*machine"),
        (changed(lambda c: c.update(layers=[])), "must have layers"),
        (
            changed(lambda c: c.update(forward=float("nan"))),
            "forward of Profile must be at least 0, got nan",
        ),
        (changed(lambda c: c["layers"][1].update(name="layer0")), "twice: .'layer0'"),
    ],
)
def test_what_is_no_profile_is_refused_with_the_place(text, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Profile.from_json(text)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"cannot read a profile from .*none\.json"):
        Profile.load(tmp_path / "none.json")


def test_the_link_of_a_network_is_the_worst_of_all_distances():
    links = ((1, Link(alpha=1e-6, beta=2e-9)), (2, Link(alpha=3e-6, beta=1e-9)))
    network = Network(size=4, links=links, dense=Link(alpha=0, beta=0))
    assert network.link == Link(alpha=3e-6, beta=2e-9)
    assert network.at(1) == links[0][1]
    assert network.at(4) == network.link


@pytest.mark.parametrize("size", [2, 3, 16, 100])
def test_an_assumed_network_scales_to_the_assumed_network_of_that_size(size):
    scaled, assumed = gigabits(1, 8).scaled(size), gigabits(1, size)
    assert scaled.links == assumed.links
    assert scaled.dense.alpha == pytest.approx(assumed.dense.alpha)
    assert scaled.dense.beta == pytest.approx(assumed.dense.beta)


def test_a_dense_allreduce_that_is_slower_than_a_ring_stays_so_when_scaled():
    ring = gigabits(1, 8)
    dense = Link(alpha=2 * ring.dense.alpha, beta=3 * ring.dense.beta)
    slow = Network(size=8, links=ring.links, dense=dense, dense16=dense)
    assert slow.scaled(32).dense.beta == pytest.approx(3 * ring.scaled(32).dense.beta)
    assert slow.scaled(32).dense16 == slow.scaled(32).dense
    assert ring.scaled(32).dense16 is None
    assert slow.scaled(8) is slow


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Network.assumed(0, 1e9, 0), "size of a Network"),
        (lambda: Network.assumed(2, 0, 0), "bandwidth must be positive"),
        (lambda: Network.assumed(2, 1e9, -1), "alpha of Link"),
        (lambda: Network.assumed(2, 1e9, 0, local_size=3), r"local_size .* \[1, 2\], got 3"),
        (lambda: Network(size=2, links=(), dense=Link(alpha=0, beta=0)), "must have links"),
        (lambda: gigabits(1, 1).scaled(4), "a Network of 1 rank"),
        (lambda: LayerProfile(name="a", numel=1, backward=float("inf")), "backward of Layer"),
    ],
)
def test_impossible_networks_and_layers_are_refused(build, message):
    with pytest.raises(InvalidArgumentError, match=message):
        build()


def test_a_profile_moves_to_another_network():
    before = profile_of([10, 20], [0.1, 0.2], network=gigabits(1, 16))
    assert before.numel == 30
    assert before.compute == pytest.approx(0.05 + 0.3)
    assert before.scaled(size=4).network == gigabits(1, 16).scaled(4)
    assert before.scaled(network=gigabits(10, 4)).network == gigabits(10, 4)
    assert before.scaled(network=gigabits(10, 4)).machine == MACHINE
