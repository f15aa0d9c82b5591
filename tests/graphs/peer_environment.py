"""Running a script of ours with the peers' packages within reach, in a process of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_with_peers(script: str, *needs: str) -> str:
    """What the script printed; the test is skipped where a package that it needs is not there."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = ROOT / ".peers" / "lib" / version / "site-packages"
    missing = [each for each in needs if not (packages / each).is_dir()]
    if missing:
        pytest.skip(f"the peers' environment has no {', '.join(missing)}; `make peers` installs it")
    # Ours first: the peers' packages only fill in what we do not have.
    text = f"import sys\nsys.path.append({str(packages)!r})\nsys.path.append({str(ROOT / 'benchmarks' / 'peers')!r})\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=ROOT,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
