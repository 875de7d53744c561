"""The routes of a bucket through a step, by the core's names: _core.route_of chooses."""

from __future__ import annotations

CALLS = "calls"
ROUNDS = "device rounds"
ROUTES = (CALLS, ROUNDS)
