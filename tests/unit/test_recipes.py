"""Recipes for Slurm, Kubernetes and Docker do what their page says, as far as one machine shows it.

Stand-ins on PATH for srun, scontrol and the launchers write down what they are given, and the real
launchers' parsers read it. No cluster and no container is started.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from horovod.runner.launch import parse_args as horovodrun_arguments
from torch.distributed.run import parse_args as torchrun_arguments

from tests.docs.pages import pages

pytestmark = pytest.mark.long  # it looks at recipes and their page alone

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples" / "recipes"
(PAGE,) = (page for page in pages() if page.name == "docs/recipes.md")


def test_the_page_names_every_recipe():
    targets = re.findall(r"\]\(\.\./examples/recipes/([^)]+)\)", PAGE.prose)
    named = set(targets) | set(re.findall(r"examples/recipes/([\w.]+)", "".join(codes())))
    assert named == {file.name for file in RECIPES.iterdir() if file.is_file()}


def codes():
    return [block.code for block in PAGE.blocks]


# ---- Slurm ---------------------------------------------------------------------------------------

HOSTS = ["node1", "node2", "node10"]

# Writes down its name, arguments and environment; then starts what srun is given, or names hosts.
STAND_IN = f"""#!{sys.executable}
import json, os, subprocess, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(os.environ["ACCOUNT"], "a") as account:
    print(json.dumps([name, arguments, dict(os.environ)]), file=account)
if name == "srun":
    command = next(at for at, word in enumerate(arguments) if not word.startswith("-"))
    sys.exit(subprocess.run(arguments[command:]).returncode)
if name == "scontrol":
    assert arguments == ["show", "hostnames", "node[1-2,10]"], arguments
    print("{chr(92)}n".join({HOSTS}))
"""


def directives(file):
    """Returns the options of a batch script's #SBATCH lines."""
    lines = re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", file.read_text(), re.MULTILINE)
    assert len(lines) == file.read_text().count("\n#SBATCH")
    return dict(lines)


def submit(name, folder, **environment):
    """Runs a batch script with stand-ins; returns the calls of each as (arguments, environment)."""
    file = RECIPES / name
    for program in ("srun", "scontrol", "torchrun", "horovodrun"):
        (folder / program).write_text(STAND_IN)
        (folder / program).chmod(0o755)
    asked = directives(file)
    env = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "ACCOUNT": str(folder / "account"),
        "SLURM_JOB_ID": "1234567",
        "SLURM_JOB_NODELIST": "node[1-2,10]",
        "SLURM_JOB_NUM_NODES": str(len(HOSTS)),
        "SLURM_NTASKS_PER_NODE": asked["ntasks-per-node"],
        **environment,
    }
    if "cpus-per-task" in asked:
        env["SLURM_CPUS_PER_TASK"] = asked["cpus-per-task"]
    subprocess.run(["bash", "-n", file], check=True)
    subprocess.run(["bash", file, "--lr", "0.5"], check=True, cwd=ROOT, env=env, timeout=60)
    calls = {}
    for line in (folder / "account").read_text().splitlines():
        program, *call = json.loads(line)
        calls.setdefault(program, []).append(call)
    return calls


def test_srun_starts_a_torchrun_on_each_node(tmp_path):
    calls = submit("slurm_torchrun.sbatch", tmp_path)
    asked = directives(RECIPES / "slurm_torchrun.sbatch")
    assert asked["ntasks-per-node"] == "1"
    ((srun, _),) = calls["srun"]
    assert f"--cpus-per-task={asked['cpus-per-task']}" in srun
    ((words, env),) = calls["torchrun"]
    got = torchrun_arguments(words)
    assert got.nnodes == str(len(HOSTS))
    assert got.rdzv_backend == "c10d"
    assert got.rdzv_endpoint == "node1:24567"
    assert got.rdzv_id == "1234567"
    assert int(got.nproc_per_node) * int(env["OMP_NUM_THREADS"]) == int(asked["cpus-per-task"])
    assert (ROOT / got.training_script).is_file()
    assert got.training_script_args == ["--epochs", "2", "--lr", "0.5"]


@pytest.mark.parametrize(("job", "port"), [("1", 20001), ("99999", 29999), ("4010000", 20000)])
def test_the_port_of_a_job_is_below_the_ephemeral_ones(job, port, tmp_path):
    ((words, _),) = submit("slurm_torchrun.sbatch", tmp_path, SLURM_JOB_ID=job)["torchrun"]
    assert torchrun_arguments(words).rdzv_endpoint == f"node1:{port}"


def test_horovodrun_is_given_the_slots_of_each_node(tmp_path, monkeypatch):
    calls = submit("slurm_horovodrun.sbatch", tmp_path)
    assert "srun" not in calls
    ((words, _),) = calls["horovodrun"]
    monkeypatch.setattr(sys, "argv", ["horovodrun", *words])
    got = horovodrun_arguments()
    assert got.hosts == "node1:2,node2:2,node10:2"
    assert got.num_proc == 6
    assert got.use_gloo
    assert got.command == ["python", "examples/pytorch_digits.py", "--epochs", "2", "--lr", "0.5"]
    assert (ROOT / got.command[1]).is_file()


def test_a_script_ends_where_slurm_gives_it_no_hosts(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        submit("slurm_torchrun.sbatch", tmp_path, SLURM_JOB_NODELIST="")


# ---- Kubernetes ----------------------------------------------------------------------------------


def containers(replicas):
    """Returns the one container of each kind of replica."""
    found = {}
    for kind, spec in replicas.items():
        (found[kind],) = spec["template"]["spec"]["containers"]
    return found


def test_a_pytorchjob_runs_torchrun_in_every_pod(monkeypatch):
    job = yaml.safe_load((RECIPES / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {kind: spec["replicas"] for kind, spec in replicas.items()} == {"Master": 1, "Worker": 2}
    found = containers(replicas)
    assert found["Master"] == found["Worker"]
    assert found["Worker"]["name"] == "pytorch"
    program, *words = found["Worker"]["command"]
    assert program == "torchrun"
    # The operator's variables for the second worker.
    nodes = sum(spec["replicas"] for spec in replicas.values())
    for name, value in {
        "NNODES": nodes,
        "NODE_RANK": 2,
        "NPROC_PER_NODE": job["spec"]["nprocPerNode"],
        "MASTER_ADDR": f"{job['metadata']['name']}-master-0",
        "MASTER_PORT": 23456,
    }.items():
        monkeypatch.setenv(f"PET_{name}", str(value))
    got = torchrun_arguments(words)
    assert (got.nnodes, got.node_rank, got.nproc_per_node) == ("3", 2, "2")
    assert (got.master_addr, got.master_port) == ("ddp-digits-master-0", 23456)
    assert got.rdzv_backend == "static"
    assert (ROOT / got.training_script).is_file()


def test_an_mpijob_starts_a_rank_in_every_slot():
    job = yaml.safe_load((RECIPES / "mpijob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    replicas = job["spec"]["mpiReplicaSpecs"]
    found = containers(replicas)
    assert set(found) == {"Launcher", "Worker"}
    assert found["Launcher"]["image"] == found["Worker"]["image"]
    assert not {"command", "args"} & set(found["Worker"])  # the operator then starts sshd
    assert found["Launcher"]["command"] == ["mpirun"]
    words = found["Launcher"]["args"]
    assert all(isinstance(word, str) for word in words)  # Kubernetes takes no numbers here
    slots = replicas["Worker"]["replicas"] * job["spec"]["slotsPerWorker"]
    assert words[words.index("-np") + 1] == str(slots)
    assert (ROOT / words[words.index("python") + 1]).is_file()


# ---- Docker --------------------------------------------------------------------------------------


def instructions():
    """Returns the instructions of each stage of the Dockerfile, as (name, arguments)."""
    text = (RECIPES / "Dockerfile").read_text().replace("\\\n", " ")
    stages = [[]]
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, arguments = line.partition(" ")
            if name == "FROM":
                stages.append([])
            stages[-1].append((name, " ".join(arguments.split())))
    return stages


def copied(stage):
    """Returns what a stage copies out of the checkout."""
    words = [rest.split() for name, rest in stage if name == "COPY" and "--from" not in rest]
    return [source for *sources, _ in words for source in sources]


def test_an_image_copies_what_there_is_and_runs_as_an_ordinary_user():
    _, build, image = instructions()
    assert copied(build)
    assert all((ROOT / source).exists() for source in copied(build) + copied(image))
    names = [name for name, _ in image]
    user = names.index("USER")
    assert image[user][1] != "root"
    assert f"useradd --create-home {image[user][1]}" in [rest for _, rest in image]
    assert not [rest for name, rest in image[user:] if name == "RUN" and "pip" in rest]
    (command,) = (json.loads(rest) for name, rest in image if name == "CMD")
    script = torchrun_arguments(command[1:]).training_script
    assert command[0] == "torchrun"
    assert (ROOT / script).is_file()
    assert script.split("/")[0] in copied(image)


def test_the_packages_of_an_image_leave_no_cache():
    for stage in instructions():
        for name, rest in stage:
            if name == "RUN" and "pip" in rest:
                assert "--no-cache-dir" in rest, rest
            if name == "RUN" and "apt-get install" in rest:
                assert "--no-install-recommends" in rest, rest
                assert "rm -rf /var/lib/apt/lists" in rest, rest


def test_what_a_build_stage_copies_is_enough_for_the_metadata(tmp_path, monkeypatch):
    _, build, _ = instructions()
    for source in copied(build):
        place = tmp_path / Path(source).name
        place.symlink_to(ROOT / source)
    monkeypatch.chdir(tmp_path)
    code = "from setuptools.build_meta import *; prepare_metadata_for_build_wheel('.')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    metadata = next(tmp_path.glob("*.dist-info/METADATA")).read_text()
    assert "## Try it" in metadata  # of the README
    assert {"CMakeLists.txt", "cmake", "csrc", "hvd_sparse"} <= set(copied(build))


def test_every_week_the_image_is_built_and_run():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "weekly.yml").read_text())["jobs"]
    ran = [step["run"] for step in jobs["image"]["steps"] if "run" in step]
    page = next(block.code for block in PAGE.blocks if "docker build" in block.code)
    assert ran == page.splitlines()


# ---- Hosts by hand -------------------------------------------------------------------------------


def test_the_launchers_know_the_options_that_the_page_gives_them(monkeypatch):
    launched = [shlex.split(line) for code in codes() for line in code.splitlines()
                if line.startswith("torchrun ")]  # fmt: skip
    ((_, *words),) = launched
    got = torchrun_arguments(words)
    assert (got.nnodes, got.rdzv_backend) == ("2", "static")
    monkeypatch.setattr(sys, "argv", ["horovodrun", "--network-interface", "hvd0", "-np", "2", "x"])
    assert any("horovodrun --network-interface hvd0" in code for code in codes())
    assert horovodrun_arguments().nics == {"hvd0"}
