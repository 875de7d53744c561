"""What must change in Horovod's 0.28.1 sources to build with the frameworks of today.

Each change is a literal replacement: a source that no longer holds the old text is refused, so a
different Horovod cannot be patched half-way.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"


@dataclass(frozen=True)
class Change:
    """One replacement in one file of the source archive."""

    path: str
    old: str
    new: str
    why: str


_KERAS_BACKEND_OLD = "    from keras import backend as K\n"
_KERAS_BACKEND_NEW = "    K = keras.backend\n"
_KERAS_BACKEND_WHY = "the backend of tf.keras, which need not be the one of the package keras"

CHANGES = (
    Change(
        "CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "as C++14, gloo's constants are defined in several objects and do not link",
    ),
    Change(
        "horovod/torch/CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 20)",
        "torch's headers ask for C++17, from 2.14 for C++20",
    ),
    Change(
        "horovod/tensorflow/xla_mpi_ops.cc",
        "#if TENSORFLOW_VERSION >= 2006000000\n",
        "#if TENSORFLOW_VERSION >= 2006000000 && HAVE_GPU\n",
        "TensorFlow moved the XLA headers; what includes them serves GPUs only",
    ),
    Change(
        "horovod/tensorflow/keras/__init__.py",
        _KERAS_BACKEND_OLD,
        _KERAS_BACKEND_NEW,
        _KERAS_BACKEND_WHY,
    ),
    Change(
        "horovod/tensorflow/keras/callbacks.py",
        _KERAS_BACKEND_OLD,
        _KERAS_BACKEND_NEW,
        _KERAS_BACKEND_WHY,
    ),
)


def apply_changes(source: Path) -> None:
    """Applies every change to the unpacked sources at `source`.

    Raises:
        RuntimeError: A file does not hold the text that is to be replaced exactly once.
    """
    for change in CHANGES:
        path = source / change.path
        text = path.read_text()
        if text.count(change.old) != 1:
            raise RuntimeError(
                f"{change.path}: expected {change.old!r} once, found it {text.count(change.old)} "
                f"times; these are not the sources of Horovod {VERSION}"
            )
        path.write_text(text.replace(change.old, change.new))
