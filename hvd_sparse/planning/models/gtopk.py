"""The cost of gtopk, between CPUs and between devices."""

from __future__ import annotations

import math

import numpy as np

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.account import HEADER_BYTES, INDEX_BYTES, VALUE_BYTES, Account, Array
from hvd_sparse.planning.network import distances_below
from hvd_sparse.planning.routes import CALLS


def core_size(size: int) -> int:
    """Returns the largest power of two that is at most `size`."""
    return 1 << (size.bit_length() - 1)


def _kept(a: Account) -> Array:
    """Returns the number of entries that the rounds before the last keep: slack * k."""
    slack = a.setting.collective_options.get("slack", 1.0)
    if not 1 <= slack < math.inf:
        raise InvalidArgumentError(f"slack must be at least 1, got {slack}")
    kept: Array = np.minimum(np.ceil(slack * a.k), a.numel)
    return kept


def cost(a: Account) -> None:
    """Rounds of swap and merge, k entries each; a round for guests before and after."""
    size, setting = a.setting.network.size, a.setting
    if setting.route("gtopk") != CALLS:
        _gtopk_between_devices(a)
        return
    a.fetch()
    core = core_size(size)

    def block(entries: Array) -> Array:
        return HEADER_BYTES + setting.entry_bytes(entries, a.numel)

    running = a.k
    kept = _kept(a)
    if size > core:
        a.wait_for(block(running), setting.network.at(core))
        a.work(setting.code(running) + setting.merge(2 * running))
        running = kept
    distance = 1
    while distance < core:
        a.send(block(running), setting.network.at(distance))
        a.work(setting.code(running) + setting.merge(2 * running))
        running = kept
        distance *= 2
    if size > core:
        a.send(block(a.k), setting.network.at(core))
        a.work(setting.code(a.k))
    a.settle()
    a.apply(a.k)


def device_message(entries: Array) -> Array:
    """Returns the bytes of a block between devices, which is sent plain and in full length."""
    room = _core.device_block_unit * np.ceil(np.maximum(entries, 1) / _core.device_block_unit)
    message: Array = HEADER_BYTES + (INDEX_BYTES + VALUE_BYTES) * room
    return message


def _gtopk_between_devices(a: Account) -> None:
    """The rounds of gtopk over the links of devices, in plain messages of one length."""
    size, setting = a.setting.network.size, a.setting
    devices = setting.network.devices
    assert devices is not None
    core = core_size(size)
    message = device_message(_kept(a))
    merge = devices.merge.alpha + devices.merge.beta * message
    a.compare()
    a.fetch()
    a.work(devices.handing.alpha + devices.handing.beta * message)
    if size > core:
        a.wait_for(message, devices.at(core))
        a.work(merge)
    for distance in distances_below(core):
        a.send(message, devices.at(distance))
        a.work(merge)
    if size > core:
        a.send(message, devices.at(core))
    a.settle()
    a.apply(a.k)
