"""Changes to the sources of Horovod 0.28.1, to build with current frameworks, and faster.

Each change is a literal replacement; a source without the old text is refused, so a different
Horovod cannot be patched half-way.
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


# Compiled with TensorFlow's flags, which include Eigen's; PyTorch's own sources do not use Eigen.
_SHARED_OBJECTS = """\
add_library(horovod_common OBJECT ${SOURCES})
target_include_directories(horovod_common PRIVATE ${EIGEN_INCLUDE_PATH} ${FLATBUFFERS_INCLUDE_PATH})
add_library(${TF_TARGET_LIB} SHARED $<TARGET_OBJECTS:horovod_common> ${TF_SOURCES})
"""
_SHARED_OBJECTS_WHY = "what both modules hold is compiled once"

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
    Change(
        "CMakeLists.txt",
        "project(horovod CXX)\n",
        "project(horovod CXX)\nset(CMAKE_UNITY_BUILD ON)\nset(CMAKE_UNITY_BUILD_BATCH_SIZE 16)\n",
        "reading the same headers again takes most of the time; so many files keep two cores busy",
    ),
    Change(
        "cmake/Modules/FindPytorch.cmake",
        "print(True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False)",
        "print(False)",
        "for a torch with CUDA it would want a whole toolkit, and sources that TensorFlow's module,"
        " which has the same objects, cannot use; here Horovod has nothing to do with devices",
    ),
    Change(
        "third_party/gloo/gloo/CMakeLists.txt",
        "add_library(gloo ",
        "set_source_files_properties(allreduce.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)\n"
        "add_library(gloo ",
        "it has an alias of the name of a class, which sources that follow it would find instead",
    ),
    Change(
        "CMakeLists.txt",
        'string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO',
        'string(REPLACE "-O2 -g" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO',
        "build_horovod.py has the linker strip what -g takes long to write",
    ),
    Change(
        "horovod/tensorflow/CMakeLists.txt",
        "set(Tensorflow_CXX17 TRUE)",
        "set(Tensorflow_CXX17 FALSE)",
        "it asks for a second gloo, of C++17, which the first one is already",
    ),
    Change(
        "horovod/tensorflow/CMakeLists.txt",
        "add_library(${TF_TARGET_LIB} SHARED ${SOURCES} ${TF_SOURCES})\n",
        _SHARED_OBJECTS,
        _SHARED_OBJECTS_WHY,
    ),
    Change(
        "horovod/torch/CMakeLists.txt",
        "SHARED ${SOURCES} ${PYTORCH_SOURCES}",
        "SHARED $<TARGET_OBJECTS:horovod_common> ${PYTORCH_SOURCES}",
        _SHARED_OBJECTS_WHY,
    ),
)


def apply_changes(source: Path) -> None:
    """Applies every change to the unpacked sources at `source`.

    Raises:
        RuntimeError: A file does not contain the text to be replaced exactly once.
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
