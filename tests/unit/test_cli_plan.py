"""The command hvd-sparse plan."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import hvd_sparse
from hvd_sparse import cli
from hvd_sparse.compression import LAGS
from hvd_sparse.planning import quantities
from hvd_sparse.planning.cluster import Cluster
from hvd_sparse.planning.plan import Plan
from hvd_sparse.planning.planner import make_plan, rules_of
from tests.profiles import IDLE, deep_profile, gigabits

RULES = rules_of(LAGS())  # the users' defaults


def said(result):
    """Returns an error's text without its frame and line breaks."""
    return " ".join(result.output.replace("│", " ").split())


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs the command on a profile of 16 ranks at 1 Gb/s."""
    file = tmp_path / "profile.json"
    deep_profile(40).save(file)

    def invoke(*arguments):
        return CliRunner().invoke(cli.app, ["plan", "--profile", str(file), *arguments])

    return invoke


def answer(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_json_holds_the_plan_that_the_planner_makes(run):
    found = answer(run("--json"))
    expected = make_plan(deep_profile(40), RULES)
    assert Plan.from_json(json.dumps(found["plan"])) == expected
    assert found["sparse"] is True
    assert found["speedup"] == pytest.approx(found["dense_seconds"] / found["step_seconds"])
    assert len(found["buckets"]) == len(expected.buckets)


def test_positions_are_packed_where_lags_would_pack_them(run):
    sparse = [row for row in answer(run("--json"))["buckets"] if row["density"] < 1]
    assert {(row["wire"], row["values"]) for row in sparse} == {("packed", "int4")}


def test_the_network_may_be_another_one(run):
    found = answer(run("--json", "--bandwidth", "10Gbps", "--latency", "20us", "--ranks", "32"))
    elsewhere = deep_profile(40).scaled(network=gigabits(10, 32, latency=2e-5))
    assert found["step_seconds"] == pytest.approx(make_plan(elsewhere, RULES).step_seconds)
    assert found["ranks"] == 32
    more = answer(run("--json", "--ranks", "64"))
    assert more["step_seconds"] == make_plan(deep_profile(40).scaled(size=64), RULES).step_seconds


def test_ranks_may_share_nodes(run):
    nodes = ("--bandwidth", "1Gbps", "--ranks", "64", "--per-node", "8")
    found = answer(run("--json", *nodes))
    assert any(row["nodes_first"] for row in found["buckets"])
    alone = answer(run("--json", "--bandwidth", "1Gbps", "--ranks", "64"))
    eighth = answer(run("--json", "--bandwidth", "125Mbps", "--ranks", "64"))
    assert not any(row["nodes_first"] for row in alone["buckets"])
    assert found["step_seconds"] < eighth["step_seconds"]
    result = run(*nodes)
    assert "64 ranks, 8 on a node" in result.output
    assert ", nodes first" in result.output


MODEL = """
import torch

NOT_A_MODEL = 3

def make_model():
    return torch.nn.Sequential(torch.nn.Linear(40_000, 40_000), torch.nn.Linear(40_000, 10))

def make_nothing():
    return None
"""


@pytest.fixture
def compare(tmp_path):
    """Returns a function that compares ways to train a model of 6 GB that is not built."""
    file = tmp_path / "train.py"
    file.write_text(MODEL)

    def invoke(*arguments, model="make_model"):
        given = ["plan", "--model", f"{file}:{model}", *arguments]
        return CliRunner().invoke(cli.app, given)

    return invoke


HERE = ("--ranks", "8", "--bandwidth", "1Gbps", "--step-seconds", "0.2")


def test_ways_to_train_a_model_are_compared_before_it_runs(compare, tmp_path):
    ways = {one["name"]: one for one in answer(compare(*HERE, "--json"))["ways"]}
    assert ways["computing alone"]["step_seconds"] == pytest.approx(0.2)
    assert ways["DDP"]["bytes"] == pytest.approx(4 * 1.75 * (40_000**2 + 11 * 40_000 + 10))
    picture = tmp_path / "ways.png"
    result = compare(*HERE, "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert picture.stat().st_size > 0
    for one in ways.values():
        shown = quantities.shown_seconds(one["step_seconds"])
        assert any(
            line.startswith(one["name"]) and shown in line for line in result.output.splitlines()
        )


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("make_model", HERE[:4], "--model takes --step-seconds, a positive number, got None"),
        ("make_model", (*HERE[:4], "--step-seconds", "0"), "a positive number, got 0.0"),
        ("make_model", HERE[4:], "--model takes --ranks and --bandwidth, or --network"),
        ("make_other", HERE, "has no function 'make_other'"),
        ("NOT_A_MODEL", HERE, "has no function 'NOT_A_MODEL'"),
        ("make_nothing", HERE, "make_nothing must return a torch.nn.Module, got None"),
        ("make_model", (*HERE, "--profile", "x.json"), "--model takes the place of --profile"),
    ],
)
def test_a_model_that_cannot_be_compared_is_explained(compare, model, arguments, message):
    result = compare(*arguments, model=model)
    assert result.exit_code == 2
    assert message in said(result)


def test_a_plan_takes_a_profile_or_a_model():
    result = CliRunner().invoke(cli.app, ["plan"])
    assert result.exit_code == 2
    assert "give --profile, or --model with --step-seconds" in said(result)


def test_a_measured_cluster_replaces_network_and_machine_of_the_profile(run, tmp_path):
    file = tmp_path / "cluster.json"
    here = Cluster(network=gigabits(0.1, 8, latency=1e-3), machine=IDLE)
    here.save(file)
    found = answer(run("--json", "--network", str(file)))
    assert found["ranks"] == 8
    expected = make_plan(here.with_model_of(deep_profile(40)), RULES)
    assert found["step_seconds"] == expected.step_seconds
    more = answer(run("--json", "--network", str(file), "--ranks", "16"))
    scaled = here.with_model_of(deep_profile(40)).scaled(size=16)
    assert more["step_seconds"] == make_plan(scaled, RULES).step_seconds


def test_a_dense_step_in_float16_is_shown_where_it_was_timed(run, tmp_path):
    file = tmp_path / "cluster.json"
    network = gigabits(0.1, 8)
    Cluster(network=replace(network, dense16=network.dense), machine=IDLE).save(file)
    found = answer(run("--json", "--network", str(file)))
    assert found["compute_seconds"] < found["dense16_seconds"] < found["dense_seconds"]
    shown = f"dense, float16 {1000 * found['dense16_seconds']:.4g} ms"
    assert shown in said(run("--network", str(file)))
    assert answer(run("--json"))["dense16_seconds"] is None
    assert "dense, float16" not in run().output


def test_options_pin_the_plan(run):
    found = answer(
        run(
            "--json", "--density", "0.01", "--fixed", "--collective", "allgather", "--rule", "paper"
        )
    )
    sparse = [row for row in found["buckets"] if row["collective"] != "dense"]
    assert {row["collective"] for row in sparse} == {"allgather"}
    assert all(row["density"] == pytest.approx(0.01, rel=0.1) for row in sparse)


def test_the_tables_say_how_much_is_gained(run):
    result = run()
    assert result.exit_code == 0
    assert "16 ranks, 1 Gb/s, 50 us a message" in result.output
    assert "times as fast as dense." in result.output
    assert "ideal ring" not in result.output
    assert "recursive_doubling, packed" in result.output


def test_the_defaults_are_those_of_bare_lags(run):
    names = ("allgather", "recursive_doubling", "shard_topk")
    explicit = [part for name in names for part in ("--collective", name)]
    pinned = run("--json", "--density", str(LAGS().density), *explicit)
    assert answer(run("--json")) == answer(pinned)


def test_a_narrow_terminal_cuts_no_name_and_no_number(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    asked = ("--collective", "shard_topk", "--density", "0.01")
    rows = answer(run(*asked, "--json"))["buckets"]
    printed = [" ".join(line.split()) for line in run(*asked).output.splitlines()]
    sparse = [row for row in rows if row["collective"] == "shard_topk"]
    assert sparse
    for row in sparse:
        times = [row[name] for name in ("select_seconds", "exchange_seconds", "ready", "end")]
        how = ", ".join(["shard_topk", row["wire"], row["values"]])
        facts = [f"{row['numel']:,}", f"{row['density']:.3g}", how.removesuffix(", float32")]
        facts += [quantities.shown_seconds(seconds) for seconds in times]
        assert " ".join([row["layers"], *facts]) in printed


def test_it_is_said_plainly_when_compression_does_not_help(run):
    result = run("--bandwidth", "400Gbps")
    assert result.exit_code == 0
    assert "Compression will not help here" in result.output
    assert "best sparse plan" in result.output
    assert "ideal ring" in result.output
    assert answer(run("--bandwidth", "400Gbps", "--json"))["sparse"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bandwidth", "fast"), "bandwidth must be"),
        (("--latency", "soon"), "latency must be"),
        (("--density", "2"), "density must lie in (0, 1], got 2.0"),
        (("--density", "little"), "'--density': must be a number, got 'little'"),
        (("--ranks", "0"), "ranks must be at least 1, got 0"),
        (("--per-node", "17"), "per-node must lie in [1, 16 ranks], got 17"),
        (("--ranks", "2.5"), "'--ranks': must be a whole number, got '2.5'"),
        (("--rule", "fast"), "'fast' is not one of 'simulated', 'paper'"),
        (("--collective", "ring"), "collective must be one of"),
        (("--bandwidth", "-1Gbps"), "bandwidth must be a number >= 0 with a unit, got '-1Gbps'"),
        (("--profile", "none.json"), "cannot read a profile"),
        (("--network", "none.json"), "cannot read a cluster"),
        (("--plot", "/nowhere/at/all.png"), "there is no folder /nowhere/at"),
        (("--plot", "plan.xyz"), "--plot must end in .png, .pdf, .svg, got plan.xyz"),
    ],
)
def test_a_wrong_option_is_explained_without_a_traceback(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in said(result)
    assert "Traceback" not in result.output


@pytest.mark.parametrize("rate", ["1Gbps", "400Gbps"])
def test_the_plot_is_drawn(run, tmp_path, rate):
    file = tmp_path / "plan.png"
    assert run("--bandwidth", rate, "--plot", str(file)).exit_code == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--plot", str(tmp_path / "plan.png"))
    assert result.exit_code == 2
    assert "pip install matplotlib" in said(result)


def test_a_profile_of_one_rank_needs_a_bandwidth(tmp_path):
    file = tmp_path / "alone.json"
    deep_profile(5, size=1).save(file)
    arguments = ["plan", "--profile", str(file), "--ranks", "4"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert "1 rank" in said(result)
    result = CliRunner().invoke(cli.app, [*arguments, "--latency", "50us"])
    assert result.exit_code == 2
    assert "give --bandwidth" in said(result)
    result = CliRunner().invoke(cli.app, [*arguments, "--bandwidth", "1Gbps"])
    assert result.exit_code == 0


def test_the_version_is_told():
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, hvd_sparse.__version__)


def without_the_core(program):
    """Runs a program in which the core cannot be loaded."""
    program = f"import sys; sys.modules['hvd_sparse._core'] = None; {program}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_the_command_line_needs_neither_the_core_nor_a_framework():
    done = without_the_core(
        "import hvd_sparse.cli;"
        "print(sorted({'torch', 'horovod.torch', 'matplotlib'} & set(sys.modules)))"
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["plan", "bench"])
def test_a_command_that_needs_the_core_says_so(command):
    done = without_the_core(
        f"sys.argv = ['hvd-sparse', '{command}', '--collective', 'gtopk'];"
        "import hvd_sparse.cli; hvd_sparse.cli.app()"
    )
    assert done.returncode == 1
    assert f"hvd-sparse {command} needs the compiled core" in done.stderr
    assert "hvd-sparse doctor" in done.stderr
