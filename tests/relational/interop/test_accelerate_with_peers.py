"""PyG's and DGL's own layers, where `make peers` has installed them."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".peers" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not PYTHON.exists(), reason="`make peers` installs PyG and DGL")
def test_models_compute_the_same_after_acceleration():
    paths = os.pathsep.join(str(ROOT / each) for each in ("src", "benchmarks/peers"))
    environment = {**os.environ, "PYTHONPATH": paths, "SHORTHAUL_KERNELS": "torch"}
    checks = ROOT / "tests" / "relational" / "peer_checks.py"
    done = subprocess.run(
        [PYTHON, checks, sysconfig.get_paths()["purelib"]],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all agree\n")
