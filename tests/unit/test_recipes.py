"""Recipes for Slurm, Kubernetes and Docker do what their page says, as far as one machine shows it.

Stand-ins on PATH for srun, scontrol and the launchers write down what they are given, and the real
launchers' parsers read it. No cluster and no container is started.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
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
