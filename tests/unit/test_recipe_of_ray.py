"""The training loop of examples/recipes/ray_train.py trains sparsely, under a stand-in for Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # it looks at recipes and their page alone

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples" / "recipes"

RAY = {
    "ray/__init__.py": "",
    "ray/train/__init__.py": """
        import os
        from types import SimpleNamespace

        REPORTS = []
        report = REPORTS.append

        def ScalingConfig(*, num_workers, use_gpu):
            assert not use_gpu
            return num_workers

        def get_context():
            return SimpleNamespace(get_world_rank=lambda: int(os.environ.get("RANK", 0)))
        """,
    "ray/train/torch.py": """
        import json, os
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler
        from ray import train

        SIZE = int(os.environ.get("WORLD_SIZE", 1))
        WRAPPED = []

        def prepare_model(model):
            if SIZE > 1:
                model = DistributedDataParallel(model)
                WRAPPED.append(model)
            return model

        def prepare_data_loader(loader):
            if SIZE == 1:
                return loader
            sampler = DistributedSampler(loader.dataset)
            return DataLoader(loader.dataset, loader.batch_size, sampler=sampler, drop_last=True)

        class TorchTrainer:
            def __init__(self, train_loop, *, train_loop_config, scaling_config):
                assert scaling_config == SIZE
                self.run = lambda: train_loop(train_loop_config)

            def fit(self):
                if SIZE > 1:
                    dist.init_process_group("gloo")
                self.run()
                account = {
                    "reports": train.REPORTS,
                    "hooked": [bool(model._comm_hooks) for model in WRAPPED],
                }
                name = "rank" + os.environ.get("RANK", "0")
                with open(os.path.join(os.environ["ACCOUNT"], name), "w") as file:
                    json.dump(account, file)
        """,
}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_loop_of_ray_train_attaches_to_the_model_that_ray_wraps(workers, tmp_path):
    for name, source in RAY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(source))
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = ["-m", *launcher] if workers > 1 else []
    done = subprocess.run(
        [sys.executable, *program, RECIPES / "ray_train.py",
         "--workers", str(workers), "--epochs", "2"],
        env={**os.environ, "ACCOUNT": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for rank in range(workers):
        account = json.loads((tmp_path / f"rank{rank}").read_text())
        first, last = account["reports"]
        assert (first["epoch"], last["epoch"]) == (0, 1)
        assert max(first["loss"], last["loss"]) < 1.5  # that of guessing is 2.3
        assert account["hooked"] == [True] * (workers > 1)
    assert done.stdout.count("epoch 1: loss") == 1
    assert done.stdout.count("sparse: ") == (workers > 1)  # the summary
