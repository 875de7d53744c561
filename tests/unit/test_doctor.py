"""The doctor: a verdict for every kind of installation, and the command that prints it."""

from __future__ import annotations

import copy
import importlib
import json
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hvd_sparse
from hvd_sparse import _core, cli
from hvd_sparse.cli import doctor as command_line
from hvd_sparse.cli import installation
from hvd_sparse.cli.diagnosis import diagnose, interfaces
from hvd_sparse.cli.installation import (
    ASK_MEANS,
    ask,
    examine_core,
    examine_means,
    examine_mpi,
    transports,
    version_of,
)
from hvd_sparse.errors import UnavailableError
from hvd_sparse.ranks.nccl import package_libraries

HEALTHY = {
    "hvd_sparse": {
        "version": hvd_sparse.__version__,
        "folder": "/somewhere/hvd_sparse",
        "build": {
            "compiler": "GNU 12.2.0",
            "build_type": "Release",
            "parts": {"mpi": {"built": True, "detail": "/usr/bin/mpicxx"}},
        },
        "error": None,
        "instruction_set": "avx2",
        "mpi_library": "Open MPI v4.1.8",
    },
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "torch_distributed": {"backends": ["gloo"]},
    "tensorflow": None,
    "horovod": {
        "version": "0.28.1",
        "torch": True,
        "tensorflow": False,
        "mpi": True,
        "gloo": True,
        "nccl": False,
        "mpi_libraries": ["/usr/lib/libmpi.so.40"],
    },
    "mpi": {"mpirun": "/usr/bin/mpirun", "thread_level": "MPI_THREAD_MULTIPLE"},
    "cuda": None,
    "nccl": None,
    "between_gpus": None,
}


def altered(*path, value):
    """Returns a healthy installation with one fact changed."""
    facts = copy.deepcopy(HEALTHY)
    inner = facts
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return facts


BUILT = {"built": True, "detail": "2.21.0"}  # for TensorFlow


def test_a_healthy_installation_has_no_problem():
    assert diagnose(HEALTHY) == []


@pytest.mark.parametrize(
    ("path", "value", "what", "do"),
    [
        (("hvd_sparse", "error"), "no such file", "cannot be loaded: no such file", "pip install"),
        (("torch",), None, "neither PyTorch nor TensorFlow is installed", "torch>=2.3"),
        (("torch",), "2.2.2", "torch 2.2.2 is too old", "torch>=2.3"),
        (("horovod", "version"), "0.27.0", "Horovod 0.27.0 is too old", "horovod>=0.28"),
        (("horovod", "torch"), False, "without PyTorch", "HOROVOD_WITH_PYTORCH=1"),
        (("horovod", "error"), "undefined symbol", "undefined symbol", "force-reinstall horovod"),
        (("horovod", "mpi_libraries"), ["/a/libmpi.so.40", "/b/libmpi.so.12"],
         "different MPI libraries: /a/libmpi.so.40, /b/libmpi.so.12", "MPICXX="),
        (("mpi", "mpirun"), None, "no mpirun", "PATH"),
        (("mpi", "error"), "exit status 3", "MPI cannot be started: exit status 3", "mpirun -np 1"),
    ],
)  # fmt: skip
def test_every_problem_names_its_cause_and_the_way_out(path, value, what, do):
    (problem,) = diagnose(altered(*path, value=value))
    assert what in problem.what
    assert do in problem.do


@pytest.mark.parametrize(
    ("torch", "tensorflow", "ops", "horovod", "what"),
    [
        (None, "2.21.0", BUILT, {"torch": False, "tensorflow": True}, None),
        ("2.13.0", "2.21.0", {"built": False}, {"torch": True, "tensorflow": True}, None),
        (None, "2.20.0", BUILT, {"torch": False, "tensorflow": True},
         "built for TensorFlow 2.21.0 and there is 2.20.0"),
        (None, "2.21.0", {"built": False}, {"torch": False, "tensorflow": True},
         "this package was built without TensorFlow"),
        (None, "2.21.0", BUILT, {"torch": True, "tensorflow": False},
         "Horovod was built without TensorFlow"),
    ],
)  # fmt: skip
def test_one_framework_is_enough(torch, tensorflow, ops, horovod, what):
    facts = altered("hvd_sparse", "build", "parts", "tensorflow", value=ops)
    facts |= {"torch": torch, "tensorflow": tensorflow}
    facts["torch_distributed"] = {"backends": ["gloo"]} if torch else None
    facts["horovod"] |= horovod
    found = [problem.what for problem in diagnose(facts)]
    assert len(found) == (what is not None)
    ready = {one.framework for one in interfaces(facts) if not one.lacks}
    assert what is not None or ready == {"torch" if torch else "tensorflow"}
    assert all(what in text for text in found)


@pytest.mark.parametrize(
    "facts",
    [
        altered("hvd_sparse", "mpi_library", value=None) | {"mpi": None},
        altered("horovod", "mpi", value=False) | {"mpi": {"mpirun": None}},
        altered("mpi", "thread_level", value="MPI_THREAD_SERIALIZED"),
    ],
)
def test_without_mpi_ranks_are_connected_by_tcp(facts):
    assert diagnose(facts) == []
    assert transports(facts) == ["TCP"]


def test_with_mpi_ranks_can_be_connected_by_either():
    assert transports(HEALTHY) == ["MPI", "TCP"]


def test_a_horovod_that_can_connect_nobody_is_a_problem():
    facts = altered("horovod", "mpi", value=False)
    facts["horovod"]["gloo"] = False
    (problem,) = diagnose(facts)
    assert "neither MPI nor Gloo" in problem.what
    assert "HOROVOD_WITH_GLOO=1" in problem.do


def test_a_failed_probe_says_what_the_program_said_last():
    program = "import sys; print('first', file=sys.stderr); sys.exit('last')"
    assert ask([sys.executable, "-c", program]) == {"error": "last"}


def test_a_probe_of_a_missing_program_is_an_error():
    assert "no-such-program" in ask(["no-such-program"])["error"]


def test_a_probe_may_print_before_it_answers():
    assert ask([sys.executable, "-c", "print('noise'); print('{\"a\": 1}')"]) == {"a": 1}


def test_version_of_takes_the_first_name_that_is_installed():
    assert version_of("no-such-distribution", "numpy") is not None
    assert version_of("no-such-distribution") is None


def test_the_build_left_a_record_of_every_optional_part():
    build = examine_core()["build"]
    assert set(build["parts"]) == {"mpi", "openmp", "tensorflow", "cuda", "nccl"}
    assert build["compiler"]


@pytest.fixture
def doctor(monkeypatch):
    """Returns a function that runs the command on given facts."""

    def run(facts, *arguments):
        monkeypatch.setattr(command_line, "examine", lambda: facts)
        return CliRunner().invoke(cli.app, ["doctor", *arguments])

    return run


def test_the_command_says_ready_and_succeeds(doctor):
    result = doctor(HEALTHY)
    assert result.exit_code == 0
    assert "Ready: hvd_sparse.ddp under torchrun, over TCP" in result.output
    assert "Ready: hvd_sparse.torch under Horovod, over MPI, or TCP with" in result.output
    assert "TCP with HVD_SPARSE_TRANSPORT=tcp" in result.output
    assert "Not ready: hvd_sparse.tensorflow under Horovod: TensorFlow is not" in result.output
    assert "to have it: pip install tensorflow" in result.output
    assert "TensorFlow     not found" in result.output
    assert "MPI_THREAD_MULTIPLE" in result.output


@pytest.mark.parametrize(
    ("cuda", "line"),
    [
        ({"devices": ["NVIDIA H100", "NVIDIA H100"]}, "NVIDIA H100, NVIDIA H100"),
        ({"error": "CUDA could not find a device"}, "no device, CUDA could not find a device"),
    ],
)
def test_the_command_shows_devices_and_a_build_with_cuda_does_without_them(doctor, cuda, line):
    result = doctor(altered("cuda", value=cuda))
    assert result.exit_code == 0
    assert line in result.output
    assert "no device" not in doctor(HEALTHY).output


@pytest.mark.parametrize(
    ("nccl", "line"),
    [
        ({"version": "2.27.3", "path": "/lib/libnccl.so.2"}, "2.27.3, /lib/libnccl.so.2"),
        ({"error": "NCCL cannot be loaded"}, "none, NCCL cannot be loaded"),
    ],
)
def test_the_command_shows_nccl_and_a_build_with_it_does_without(doctor, nccl, line):
    result = doctor(altered("nccl", value=nccl))
    assert result.exit_code == 0
    assert line in result.output
    assert "NCCL" not in doctor(HEALTHY).output


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("", "/usr/bin/mpirun, CUDA-aware"),
        ("Open MPI says that it is not CUDA-aware", "mpirun, Open MPI says that it is not CUDA-"),
    ],
)
def test_the_command_shows_what_mpi_says_of_cuda(doctor, answer, line):
    result = doctor(altered("mpi", "memory_problem", value=answer))
    assert result.exit_code == 0
    assert line in " ".join(result.output.split())


@pytest.mark.skipif(not _core.with_mpi, reason="this build has no MPI")
def test_mpi_is_asked_whether_it_is_cuda_aware():
    facts = examine_mpi()
    assert facts["thread_level"].startswith("MPI_THREAD_")
    assert facts["memory_problem"] == "" or "CUDA-aware" in facts["memory_problem"]


def told(name, problem="", refusal=""):
    """Returns the core's report on a means to connect GPUs."""
    return {"name": name, "variable": name.upper(), "problem": problem, "refusal": refusal}


def with_gpus(*means):
    """Returns a healthy installation with a GPU and these means to connect it with others."""
    return altered("cuda", value={"devices": ["H100"]}) | {"between_gpus": {"means": list(means)}}


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (with_gpus(told("one", "nobody asks"), told("two", "it is too old")),
         "by way of the CPUs: one is not used: nobody asks; two is not used: it is too old"),
        (with_gpus(told("one"), told("two")), "over one, if all ranks can; ONE=0: never"),
        (with_gpus(told("one", "nobody asks"), told("two")),
         "over two, if all ranks can; TWO=0: never"),
        (with_gpus() | {"between_gpus": {"error": "exit status 3"}}, "nobody knows: exit status 3"),
    ],
)  # fmt: skip
def test_the_command_says_by_what_blocks_of_gpus_go(doctor, facts, line):
    result = doctor(facts)
    assert result.exit_code == 0
    assert line in " ".join(result.output.split())
    assert "blocks of GPUs" not in doctor(HEALTHY).output


def test_what_is_insisted_on_for_gpus_and_missing_is_a_problem():
    (problem,) = diagnose(with_gpus(told("one"), told("two", "too old", "TWO=1 asks in vain")))
    assert problem.what == "TWO=1 asks in vain"
    assert problem.do == "TWO=auto, or unset it"


def test_the_core_tells_what_can_connect_gpus_in_a_build_for_them():
    answer = ask([sys.executable, "-c", ASK_MEANS, "it is full"])
    assert set(answer) == {"means"}
    assert bool(answer["means"]) == _core.with_cuda
    assert set(told("one")) <= set(dir(_core.GpuTransportFacts))


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        (altered("mpi", "memory_problem", value="it is full"), "it is full"),
        (altered("horovod", "mpi", value=False), "ranks cannot be connected by MPI here"),
    ],
)
def test_the_core_is_told_what_mpi_says_where_ranks_can_be_connected_by_it(
    monkeypatch, facts, problem
):
    monkeypatch.setattr(installation, "ask", lambda command: command)
    assert examine_means(facts | {"cuda": {"devices": ["H100"]}})[-1] == problem
    assert examine_means(facts | {"cuda": {"error": "CUDA could not find a device"}}) is None


def test_a_core_that_cannot_be_loaded_is_asked_nothing(monkeypatch):
    monkeypatch.delattr(hvd_sparse, "_core")
    monkeypatch.setitem(sys.modules, "hvd_sparse._core", None)
    monkeypatch.setattr(installation, "examine_horovod", lambda: HEALTHY["horovod"])
    monkeypatch.delattr(installation, "ask")
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == 1
    assert "Problem 1: the compiled core cannot be loaded" in result.output
    assert "do: build it for this environment: pip install" in result.output


def test_the_nccl_of_a_package_is_found_without_importing_it(tmp_path, monkeypatch):
    assert all(Path(path).name == "libnccl.so.2" for path in package_libraries())
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    assert str(library) not in package_libraries()
    library.parent.mkdir(parents=True)
    importlib.invalidate_caches()
    assert str(library) not in package_libraries()
    library.touch()
    assert str(library) in package_libraries()
    assert "nvidia.nccl" not in sys.modules


@pytest.mark.skipif(_core.with_nccl, reason="this build has NCCL")
def test_a_build_without_nccl_says_how_to_have_it():
    with pytest.raises(UnavailableError, match="build it with HVD_SPARSE_WITH_CUDA=1"):
        _core.find_nccl()


def test_the_command_says_what_to_do_and_fails(doctor):
    result = doctor(altered("torch", value=None))
    assert result.exit_code == 1
    assert "neither PyTorch nor TensorFlow is installed" in result.output
    assert "do: pip install" in result.output


def test_json_holds_facts_and_verdict(doctor):
    result = doctor(altered("horovod", value=None) | {"torch": "2.0.1"}, "--json")
    assert result.exit_code == 1
    answer = json.loads(result.output)
    assert answer["torch"] == "2.0.1"
    assert answer["ok"] is False
    assert answer["transports"] == ["TCP"]
    assert [set(problem) for problem in answer["problems"]] == [{"what", "do"}]
    ddp, *others = answer["interfaces"]
    assert (ddp["name"], ddp["launcher"]) == ("hvd_sparse.ddp", "torchrun")
    assert ddp["lacks"] == answer["problems"]
    assert [one["launcher"] for one in others] == ["torchrun", "Horovod", "Horovod"]


def test_importing_the_package_loads_no_framework():
    program = (
        "import hvd_sparse, sys;"
        "print(sorted({'torch', 'horovod.torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not list(distributions(name="hvd_sparse")), reason="it is found by its path")
def test_the_version_is_that_of_the_installed_package():
    assert hvd_sparse.__version__ == version_of("hvd_sparse")
