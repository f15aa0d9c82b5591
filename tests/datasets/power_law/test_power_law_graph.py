"""Power-law graphs written to disk."""

import json
from pathlib import Path

import pytest
import torch

import shorthaul as sh
from shorthaul.datasets.power_law import power_law_graph as module
from shorthaul.datasets.power_law.drawing import Recipe, draw_edges, draw_labels, draw_rows
from shorthaul.errors import GraphError, GraphFileError

SIZE = {"nodes": 3000, "edges": 20_000, "features": 6, "classes": 4, "progress": False}


def test_what_lies_on_disk_is_what_is_drawn(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_EDGES", 777)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 5000)
    made = sh.datasets.write_power_law_graph(
        tmp_path, **SIZE, relations=2, train=0.25, indexes=("target", "source"), memory="64KiB"
    )
    recipe = Recipe(3000, 2, 2, 4, 6, 0)
    graph = sh.RelationalGraph.open(made.graph, in_memory=True)
    whole = sh.RelationalGraph.from_edges(*draw_edges(recipe, 0, 20_000), num_nodes=3000)
    for one, other in (
        (graph.by_target(), whole.by_target()),
        (graph.by_source(), whole.by_source()),
    ):
        for name, values in vars(other).items():
            assert torch.equal(getattr(one, name), values)
    labels, _ = draw_labels(recipe, 0, 3000)
    assert torch.equal(sh.open(made.labels)[:].cpu(), labels)
    assert torch.equal(sh.open(made.features)[:].cpu(), draw_rows(recipe, 0, 3000))
    seeds = sh.open(made.seeds)[:].cpu()
    assert 0.2 < len(seeds) / 3000 < 0.3
    assert bool((seeds.diff() > 0).all())


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "int64", "float8_e4m3fn"]
)
def test_features_of_any_dtype(tmp_path: Path, dtype: str) -> None:
    made = sh.datasets.write_power_law_graph(tmp_path, **SIZE, dtype=dtype)
    rows = sh.open(made.features)[:].cpu()
    assert rows.dtype is getattr(torch, dtype)
    plain = draw_rows(Recipe(3000, 1, 2, 4, 6, 0), 0, 3000)
    scaled = {"int8": plain * 60, "int64": plain * 60, "uint8": (plain + 1) * 80}.get(dtype, plain)
    assert torch.equal(rows.float(), scaled.to(rows.dtype).float())
    assert len(rows.float().unique()) > 50


def test_a_stopped_run_goes_on_and_ends_with_the_same_files(tmp_path: Path, monkeypatch) -> None:
    sh.datasets.write_power_law_graph(tmp_path / "whole", **SIZE)
    with monkeypatch.context() as patched:
        patched.setattr(module, "draw_features", _stop)
        with pytest.raises(KeyboardInterrupt):
            sh.datasets.write_power_law_graph(tmp_path / "stopped", **SIZE)
    stopped = {each.name for each in (tmp_path / "stopped").iterdir()}
    assert stopped == {"power_law.json", "graph", "labels.npy", "seeds.npy"}
    with monkeypatch.context() as patched:
        patched.setattr(module, "draw_edges", _stop)  # they are there
        sh.datasets.write_power_law_graph(tmp_path / "stopped", **SIZE)
    for path in (tmp_path / "whole").rglob("*.*"):
        other = tmp_path / "stopped" / path.relative_to(tmp_path / "whole")
        assert path.read_bytes() == other.read_bytes(), path.name


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_another_graph_is_not_mixed_in(tmp_path: Path) -> None:
    sh.datasets.write_power_law_graph(tmp_path / "graph", **SIZE)
    with pytest.raises(GraphError, match=r"holds another power-law graph.*'seed': 0"):
        sh.datasets.write_power_law_graph(tmp_path / "graph", **SIZE, seed=1)
    (tmp_path / "graph" / "power_law.json").write_text("{")
    with pytest.raises(GraphFileError, match=r"power_law\.json: cannot be read"):
        sh.datasets.write_power_law_graph(tmp_path / "graph", **SIZE)
    with pytest.raises(GraphError, match="is not empty, and no power-law graph was begun in it"):
        sh.datasets.write_power_law_graph(tmp_path, **SIZE)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"nodes": -1}, "`nodes` must be a whole number from 0 on, got -1"),
        ({"nodes": 0}, "20,000 edges need at least one node"),
        ({"relations": 0}, "`relations` must be at least 1, got 0"),
        ({"train": 1.5}, r"train is a share of the nodes from 0 to 1, got 1\.5"),
        ({"seed": "x"}, "seed must be a whole number, got 'x'"),
        ({"skew": True}, "`skew` must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, option: dict, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        sh.datasets.write_power_law_graph(tmp_path / "graph", **(SIZE | option))
    assert not (tmp_path / "graph").exists()


def test_a_graph_without_nodes_or_edges(tmp_path: Path) -> None:
    made = sh.datasets.write_power_law_graph(tmp_path, **(SIZE | {"nodes": 0, "edges": 0}))
    assert sh.RelationalGraph.open(made.graph).num_nodes == 0
    assert sh.open(made.features).shape == (0, 6)
    assert json.loads((tmp_path / "power_law.json").read_text())["edges"] == 0
    assert (made.graph / "graph.json").exists()
