"""The doctor on interfaces: one that works is enough, and the others say what they lack."""

from __future__ import annotations

import pytest

from hvd_sparse.cli.diagnosis import diagnose, interfaces
from hvd_sparse.cli.installation import examine_core, examine_distributed, transports, version_of
from tests.unit.test_doctor import BUILT, HEALTHY, altered, doctor

__all__ = ["doctor"]  # a fixture

# An installation with PyTorch alone; this build has no MPI.
WITHOUT_HOROVOD = altered("hvd_sparse", "mpi_library", value=None) | {"horovod": None, "mpi": None}


def lacking(facts):
    """Returns what each interface lacks, by its module's name."""
    return {
        one.name.removeprefix("hvd_sparse."): [lack.what for lack in one.lacks]
        for one in interfaces(facts)
    }


def test_every_interface_says_what_it_lacks():
    assert lacking(HEALTHY) == {
        "ddp": [],
        "fsdp": [],
        "torch": [],
        "tensorflow": [
            "TensorFlow is not installed",
            "this package was built without TensorFlow",
            "Horovod was built without TensorFlow",
        ],
    }


@pytest.mark.parametrize("mpi", [None, {"mpirun": None}])
def test_pytorch_without_horovod_is_healthy(mpi):
    assert diagnose(WITHOUT_HOROVOD | {"mpi": mpi}) == []
    assert transports(WITHOUT_HOROVOD) == ["TCP"]
    found = lacking(WITHOUT_HOROVOD)
    assert found["ddp"] == []
    assert found["torch"] == ["Horovod is not installed"]
    assert found["tensorflow"][-1] == "Horovod is not installed"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ({"backends": []}, "built without torch.distributed, or without its Gloo"),
        ({"backends": ["nccl"]}, "built without torch.distributed, or without its Gloo"),
        ({"error": "undefined symbol"}, "hvd_sparse.ddp cannot be loaded: undefined symbol"),
    ],
)
def test_ddp_takes_torch_distributed_and_horovod_does_not(answer, what):
    facts = altered("torch_distributed", value=answer)
    assert diagnose(facts) == []
    (lack,) = lacking(facts)["ddp"]
    assert what in lack
    first, second = diagnose(WITHOUT_HOROVOD | {"torch_distributed": answer})
    assert what in first.what
    assert second.what == "Horovod is not installed"
    assert "HOROVOD_WITH_PYTORCH=1" in second.do


def test_tensorflow_alone_takes_horovod():
    facts = altered("hvd_sparse", "build", "parts", "tensorflow", value=BUILT)
    facts |= {"torch": None, "torch_distributed": None, "tensorflow": "2.21.0", "horovod": None}
    (problem,) = diagnose(facts)
    assert problem.what == "Horovod is not installed"
    assert problem.do.startswith("HOROVOD_WITH_TENSORFLOW=1 ")


def test_a_horovod_that_does_not_work_is_a_problem_although_ddp_works():
    facts = altered("horovod", "error", value="undefined symbol")
    (problem,) = diagnose(facts)
    assert lacking(facts)["ddp"] == []
    assert lacking(facts)["torch"] == [problem.what]


def test_without_horovod_the_command_says_what_works_and_how_to_have_the_rest(doctor):
    result = doctor(WITHOUT_HOROVOD)
    assert result.exit_code == 0
    assert "torch.distributed with gloo" in result.output
    assert "Problem" not in result.output
    assert "Ready: hvd_sparse.ddp under torchrun, over TCP" in result.output
    assert "Not ready: hvd_sparse.torch under Horovod: Horovod is not installed" in result.output
    assert "to have it: HOROVOD_WITH_PYTORCH=1" in result.output


def test_an_older_torch_has_no_fsdp2(doctor):
    result = doctor(altered("torch", value="2.6.0"))
    assert result.exit_code == 0
    assert "Ready: hvd_sparse.ddp under torchrun" in result.output
    assert "Not ready: hvd_sparse.fsdp under torchrun: torch 2.6.0 has no FSDP2" in result.output


def test_the_remedy_of_a_problem_is_printed_once(doctor):
    result = doctor(altered("torch", value="2.0.1"))
    assert result.exit_code == 1
    assert "Problem 1: torch 2.0.1 is too old" in result.output
    assert "Not ready: hvd_sparse.ddp under torchrun: torch 2.0.1 is too old" in result.output
    assert result.output.count("torch>=2.3") == 1


def test_torch_distributed_is_asked_for_its_backends_with_our_module_loaded():
    core = examine_core()
    if version_of("torch") is None:
        pytest.skip("there is no torch here")
    assert "gloo" in examine_distributed(core)["backends"]
    assert examine_distributed(core | {"error": "no such file"}) is None
