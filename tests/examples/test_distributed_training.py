"""The example has the same losses on 1, 2 and 4 ranks, started as users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "distributed_training"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def run(*words: str) -> str:
    """What the program says; small as it is, it needs no kernels, and four ranks need not compile them."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SHORTHAUL_KERNELS": "torch",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    done = subprocess.run(
        (sys.executable, *words), env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(ranks: int, folder: Path, topology: str = "replicated") -> dict[str, Any]:
    start = (*TORCHRUN, str(ranks)) if ranks > 1 else ()
    report = folder / f"{ranks}.json"
    words = (str(FOLDER / "train.py"), str(folder / "parts"), "--epochs=3", "--send-all")
    said = run(*start, *words, "--topology", topology, "--report", str(report))
    assert "sage: loss " in said
    assert "rgcn: loss " in said
    assert "whole: loss " in said
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def test_losses_do_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    """Sums in another order, in float32: equal to 1e-4 after a few steps of Adam."""
    said = run(str(FOLDER / "cut.py"), str(tmp_path / "parts"), "--parts=4", "--modules=20")
    assert "edges are between the 4 parts" in said
    alone = train(1, tmp_path)
    for ranks, topology in ((2, "replicated"), (4, "split")):
        found = train(ranks, tmp_path, topology)
        for name, of_model in alone.items():
            assert len(of_model["losses"]) > 1
            assert found[name]["losses"] == pytest.approx(of_model["losses"], rel=1e-4)
            assert of_model["rows"]["far_rows"] == 0
            assert found[name]["rows"]["far_rows"] > 0
            assert (found[name]["rows"]["far_sums"] > 0) == (name == "whole")
