"""Local steps, with an optimizer of Horovod's."""

from __future__ import annotations

from tests.framework_laws import laws_in, local_steps

globals().update(laws_in(local_steps))
