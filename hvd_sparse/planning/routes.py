"""The route of a bucket through a step, which decides the links by which it is priced."""

from __future__ import annotations

CALLS = "calls"
ROUNDS = "device rounds"
STEP = "device step"
ROUTES = (CALLS, ROUNDS, STEP)

FLOAT32_BYTES = 4


def route_of(collective: str, *, connected: bool, value_bytes: int, device_steps: bool) -> str:
    """Returns the route by the rule of csrc/exchange/route_of.cc, as far as a plan knows it.

    Args:
        collective: Name of the collective, or "dense".
        connected: True if a network connects the devices of all ranks.
        value_bytes: Bytes of a value on the wire.
        device_steps: True if a device can do all of a step: gradients lie there, and `gaussian`
            selects.

    Returns:
        One of `ROUTES`.
    """
    if not connected or collective != "gtopk" or value_bytes != FLOAT32_BYTES:
        return CALLS
    return STEP if device_steps else ROUNDS
