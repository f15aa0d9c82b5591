"""A package that insists on its sampling library loads without it, and calling it is an error."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "peers"

# As DGL does: the library is loaded by the package itself, and its classes are named in annotations.
PACKAGE = """
from . import graphbolt as gb

def convert(graph: gb.FusedCSCSamplingGraph) -> gb.DataLoader:
    return gb.DataLoader(graph)
"""
LIBRARY = "raise FileNotFoundError('Cannot find the C++ library')\n"


def _run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={"PYTHONPATH": str(BENCHMARKS)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_package_loads_and_the_missing_part_says_so(tmp_path: Path) -> None:
    (tmp_path / "dgl" / "graphbolt").mkdir(parents=True)
    (tmp_path / "dgl" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "dgl" / "graphbolt" / "__init__.py").write_text(LIBRARY)
    assert "Cannot find the C++ library" in _run(tmp_path, "import dgl").stderr
    loads = _run(tmp_path, "import dgl_without_graphbolt, dgl; print(dgl.convert.__name__)")
    assert (loads.stdout, loads.stderr) == ("convert\n", "")
    calls = _run(tmp_path, "import dgl_without_graphbolt, dgl; dgl.convert(1)")
    assert "GraphBolt is left out: it does not fit this torch" in calls.stderr
