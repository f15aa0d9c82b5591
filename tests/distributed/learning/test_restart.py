"""A rank that is killed costs the steps since the last checkpoint: torchrun starts all again, and they go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.part_folders import cut_homogeneous

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import shorthaul as sh

folder, saved, report, dies, topology = sys.argv[1:]
dist.init_process_group("gloo")
parts = sh.distributed.open(folder, topology=topology, shares_machine=False, timeout_seconds=30.0)
table = sh.distributed.LearnableTable(parts, "node", 3, dtype=torch.float64)
optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
loader = sh.distributed.MiniBatchLoader(parts, None, (2,), 8, shuffle=True, seed=1)
state = {"table": sh.distributed.TableState(table, optimizer), "loader": loader}
whole = sorted(each.parent for each in Path(saved).glob("*/.metadata"))
if whole:
    dcp.load(state, checkpoint_id=whole[-1])
begun = loader.epoch * len(loader) + loader.step
while loader.epoch < 2:
    for batch in loader:
        heard = batch.blocks[0].reduce(table(batch.input_nodes), "sum")
        ((1 + heard).square().sum() * batch.loss_scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        done = loader.epoch * len(loader) + loader.step
        if done % 2 == 0:
            dcp.save(state, checkpoint_id=f"{saved}/{done:03}")
        if (done, dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"], dies) == (3, 1, "0", "dies"):
            os.kill(os.getpid(), signal.SIGKILL)
rows = table(torch.arange(60)).tolist()
if dist.get_rank() == 0:
    Path(report).write_text(json.dumps({"rows": rows, "begun": begun}))
dist.barrier()
dist.destroy_process_group()
"""


def train(folder: Path, dies: str, topology: str) -> tuple[dict[str, Any], str]:
    script, report = folder / "script.py", folder / f"{dies}.json"
    script.write_text(SCRIPT)
    start = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
    )
    words = (str(folder / "parts"), str(folder / f"saved {dies}"), str(report), dies, topology)
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        # Or gloo meets the addresses of the attempt before, as docs/distributed.md says.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    done = subprocess.run(
        (sys.executable, *start, str(script), *words),
        env=environment,
        capture_output=True,
        text=True,
        timeout=140,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text()), done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("topology", ["replicated", "split"])
def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint(
    tmp_path: Path, topology: str
) -> None:
    cut_homogeneous(tmp_path / "parts", 2)
    expected, _ = train(tmp_path, "lives", "replicated")
    found, said = train(tmp_path, "dies", topology)
    assert expected["begun"] == 0
    assert found["begun"] == 2  # of 8: step 3 was done twice, and no other
    assert "exitcode: -9" in said
    for one, other in zip(found["rows"], expected["rows"], strict=True):
        assert one == pytest.approx(other, rel=1e-12)
