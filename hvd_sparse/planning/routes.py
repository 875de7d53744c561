"""Which route a bucket takes through a step: what decides which links it is priced by."""

from __future__ import annotations

CALLS = "calls"
ROUNDS = "device rounds"
STEP = "device step"
ROUTES = (CALLS, ROUNDS, STEP)

FLOAT32_BYTES = 4


def route_of(collective: str, *, connected: bool, value_bytes: int, device_steps: bool) -> str:
    """The rule of csrc/exchange/route_of.cc, as far as a plan knows beforehand.

    Args:
        collective: Its name, or "dense".
        connected: Whether a network connects the devices of all ranks.
        value_bytes: Of a value on the wire.
        device_steps: Whether a device can do all of a step: gradients lie there, and `gaussian`
            selects.

    Returns:
        One of `ROUTES`.
    """
    if not connected or collective != "gtopk" or value_bytes != FLOAT32_BYTES:
        return CALLS
    return STEP if device_steps else ROUNDS
