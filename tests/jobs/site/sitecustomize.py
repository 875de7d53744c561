"""Halves the time in which a job's processes start, and reports at once what ended them.

Python imports this module before the program if this folder is on PYTHONPATH.

Imports that no job here needs are skipped:

* The first step of an optimizer imports all of torch._dynamo, two seconds of a core in every rank,
  only for its `disable`, which marks functions that torch.compile must leave alone. A stand-in
  delays the import until another attribute is used.
* Keras imports scikit-learn and matplotlib, a second, for its wrappers and plots. It works without
  them, so they appear to be missing. Programs can still import them.
* horovodrun imports TensorFlow, five seconds, or else PyTorch, two, each time that it asks what
  Horovod was built with. Horovod's library for PyTorch answers the same in a third of a second.

Python writes a traceback in pieces, which mix with those of other ranks. A job that hangs is sent
SIGUSR1, on which each process tells where its threads are.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import signal
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"
WITHHELD = ("sklearn", "matplotlib")


class Deferred(ModuleType):
    """A stand-in for torch._dynamo."""

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """Returns the function: nothing is compiled, so nothing has to be left alone."""
        return function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Does nothing: there is no graph."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # looked up by imports of submodules
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


class NotForKeras(MetaPathFinder):
    """A finder that reports the withheld modules as missing while Keras is being imported."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        spec = getattr(sys.modules.get("keras"), "__spec__", None)
        if name in WITHHELD and getattr(spec, "_initializing", False):
            raise ModuleNotFoundError(f"{name} is withheld from Keras", name=name)


class HorovodsLibrary(ModuleType):
    """A stand-in for horovod.torch that only tells what Horovod was built with."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # looked up by imports
            raise AttributeError(name)
        from horovod.common.basics import HorovodBasics

        package = importlib.util.find_spec("horovod")
        assert package is not None
        assert package.origin is not None
        file = Path(package.origin).parent / "torch" / "__init__.py"
        return getattr(HorovodBasics(str(file), "mpi_lib_v2"), name)


def say_at_once(*raised: Any) -> None:
    """Replaces sys.excepthook."""
    import traceback

    sys.stderr.write("".join(traceback.format_exception(*raised)))


sys.excepthook = say_at_once
faulthandler.register(signal.SIGUSR1)
sys.modules[NAME] = Deferred(NAME)
sys.meta_path.insert(0, NotForKeras())
if [Path(word).name for word in sys.orig_argv[1:2]] == ["horovodrun"]:
    sys.modules["horovod.tensorflow"] = None  # cannot be imported
    sys.modules["horovod.torch"] = HorovodsLibrary("horovod.torch")
