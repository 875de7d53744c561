"""Lets the processes of a job start in half the time, and say at once what ended them.

Python imports this module by itself, before the program, where this folder is on PYTHONPATH.

What no job here needs is not imported:

* The first step of an optimizer imports all of torch._dynamo, two seconds of a core in every rank,
  only to ask it for `disable`, which marks functions that torch.compile has to leave alone. It
  waits until something else is asked of it, which is then answered by the real one.
* Keras imports scikit-learn and matplotlib, a second, for wrappers and pictures of its own. It
  does without where they are not installed, so it is told that. A program can import them all the
  same.
* horovodrun imports TensorFlow, five seconds, or else PyTorch, two, each time that it asks what
  Horovod was built with. Horovod's library for PyTorch answers the same in a third of a second.

Python writes a traceback piece by piece, between which those of other ranks come out.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"
WITHHELD = ("sklearn", "matplotlib")


class Deferred(ModuleType):
    """Stands for torch._dynamo."""

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """Nothing is compiled, so nothing has to be left alone."""
        return function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """There is no graph."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # which imports of its parts look up
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


class NotForKeras(MetaPathFinder):
    """Finds nothing; but what is withheld it denies while Keras is being imported."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        spec = getattr(sys.modules.get("keras"), "__spec__", None)
        if name in WITHHELD and getattr(spec, "_initializing", False):
            raise ModuleNotFoundError(f"{name} is withheld from Keras", name=name)


class HorovodsLibrary(ModuleType):
    """Stands for horovod.torch where nothing is asked of it but what it was built with."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # which imports look up
            raise AttributeError(name)
        from horovod.common.basics import HorovodBasics

        package = importlib.util.find_spec("horovod")
        assert package is not None
        assert package.origin is not None
        file = Path(package.origin).parent / "torch" / "__init__.py"
        return getattr(HorovodBasics(str(file), "mpi_lib_v2"), name)


def say_at_once(*raised: Any) -> None:
    """Takes the place of sys.excepthook."""
    import traceback

    sys.stderr.write("".join(traceback.format_exception(*raised)))


sys.excepthook = say_at_once
sys.modules[NAME] = Deferred(NAME)
sys.meta_path.insert(0, NotForKeras())
if [Path(word).name for word in sys.orig_argv[1:2]] == ["horovodrun"]:
    sys.modules["horovod.tensorflow"] = None  # cannot be imported
    sys.modules["horovod.torch"] = HorovodsLibrary("horovod.torch")
