"""The graph of the installed library: its shape, its splits, its cache, and that it can be learned."""

import hashlib
import os
import subprocess
import sys
import sysconfig
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch

from shorthaul.datasets import PythonGraph, Relation, python_graph
from shorthaul.errors import DatasetError
from shorthaul.meter import meter
from shorthaul.settings import settings
from tests.datasets.baselines import (
    Perceptron,
    RelationalNetwork,
    majority_accuracy,
    trained_accuracy,
)


def test_tensors_have_their_promised_form(graph: PythonGraph) -> None:
    assert graph.num_nodes > 5_000
    assert graph.num_edges > 20_000
    assert graph.edge_index.shape == (2, graph.num_edges)
    assert graph.edge_index.dtype == graph.edge_type.dtype == graph.labels.dtype == torch.int64
    assert graph.features.shape == (graph.num_nodes, 64)
    assert graph.features.dtype == torch.float32
    assert torch.isfinite(graph.features).all()
    assert len(graph.node_names) == graph.num_nodes == len(graph.labels)
    assert graph.edge_index.is_contiguous()
    with pytest.raises(FrozenInstanceError):
        graph.labels = graph.labels  # type: ignore[misc]


def test_printing_it_shows_sizes(graph: PythonGraph) -> None:
    assert repr(graph) == (
        f"PythonGraph({graph.num_nodes:,} nodes of {len(graph.node_types)} types, "
        f"{graph.num_edges:,} edges, {len(graph.relations)} relations, {graph.num_classes} classes)"
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_every_edge_joins_the_types_of_its_relation(graph: PythonGraph, reverse: bool) -> None:
    graph = graph.with_reversed() if reverse else graph
    sources = torch.tensor([graph.node_types.index(each.source) for each in graph.relations])
    targets = torch.tensor([graph.node_types.index(each.target) for each in graph.relations])
    node_type = graph.node_type
    assert torch.equal(node_type[graph.edge_index[0]], sources[graph.edge_type])
    assert torch.equal(node_type[graph.edge_index[1]], targets[graph.edge_type])
    assert len(set(graph.relations)) == len(graph.relations)


@pytest.mark.parametrize("reverse", [False, True])
def test_edges_are_sorted_and_none_is_there_twice(graph: PythonGraph, reverse: bool) -> None:
    graph = graph.with_reversed() if reverse else graph
    source, target = graph.edge_index
    place = (graph.edge_type * graph.num_nodes + source) * graph.num_nodes + target
    assert (place[1:] > place[:-1]).all()


def test_reversed_edges_are_the_same_edges(graph: PythonGraph) -> None:
    both = graph.with_reversed()
    assert both.num_edges == 2 * graph.num_edges
    assert len(both.relations) == 2 * len(graph.relations)
    forth = graph.edges_of("class", "inherits", "name")
    back = both.edges_of("name", "inherits_reversed", "class")
    assert forth.shape[1] > 0
    assert sorted(forth.flip(0).T.tolist()) == back.T.tolist()
    assert torch.equal(both.edges_of("class", "inherits", "name"), forth)


def test_it_is_a_relational_graph_too(graph: PythonGraph) -> None:
    same = graph.graph()
    assert same.relations == graph.relations
    assert same.nodes_per_type == graph.nodes_per_type
    assert torch.equal(same.source.long(), graph.edge_index[0])
    assert torch.equal(same.target.long(), graph.edge_index[1])
    assert torch.equal(same.relation.long(), graph.edge_type)
    assert same.node_names is not None
    assert same.node_names[-1] == graph.node_names[-1]
    assert same.edges_per_relation == graph.edges_per_relation


def test_edges_of_all_relations_are_all_edges(graph: PythonGraph) -> None:
    parts = [graph.edges_of(*each) for each in graph.relations]
    assert torch.equal(torch.cat(parts, dim=1), graph.edge_index)
    assert tuple(part.shape[1] for part in parts) == graph.edges_per_relation
    assert sum(count > 0 for count in graph.edges_per_relation) > 35


def test_nodes_of_all_types_are_all_nodes(graph: PythonGraph) -> None:
    ids = [number for each in graph.node_types for number in graph.nodes_of(each)]
    assert ids == list(range(graph.num_nodes))
    for number, each in enumerate(graph.node_types):
        assert (graph.node_type[list(graph.nodes_of(each))] == number).all()


def test_unknown_types_and_relations_are_named(graph: PythonGraph) -> None:
    with pytest.raises(DatasetError, match="one of module, class, function, attribute, name"):
        graph.nodes_of("variable")
    with pytest.raises(DatasetError, match=r"'class calls module'. There are:\n  module imports"):
        graph.edges_of("class", "calls", "module")


def test_splits_are_disjoint_and_cover_the_functions(graph: PythonGraph) -> None:
    parts = [set(each.tolist()) for each in (graph.train, graph.validation, graph.test)]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert set.union(*parts) == set(graph.nodes_of("function"))
    shares = [len(each) / len(graph.nodes_of("function")) for each in parts]
    assert shares == pytest.approx([0.6, 0.2, 0.2], abs=0.04)
    labeled = torch.nonzero(graph.labels >= 0)[:, 0]
    assert labeled.tolist() == list(graph.nodes_of("function"))
    assert set(graph.labels[graph.train].tolist()) == set(range(graph.num_classes))


def test_a_function_stays_in_its_part_whatever_the_size(graph: PythonGraph) -> None:
    small = python_graph(limit_modules=30)

    def parts(of: PythonGraph) -> dict[str, str]:
        return {
            of.node_names[number]: part
            for part in ("train", "validation", "test")
            for number in getattr(of, part).tolist()
        }

    few, many = parts(small), parts(graph)
    assert 0 < len(few) < len(many)
    assert few.items() <= many.items()
    assert small.relations == graph.relations


@pytest.mark.slow
def test_the_whole_library_is_a_graph_of_the_promised_size() -> None:
    whole = python_graph()
    assert 20_000 < whole.num_nodes < 100_000
    assert 100_000 < whole.num_edges < 1_000_000
    assert min(whole.edges_per_relation) > 0


def test_summary_tells_sizes_classes_and_relations(graph: PythonGraph) -> None:
    lines = graph.summary().split("\n")
    assert lines[0].startswith(
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, 41 relations"
    )
    assert lines[3] == (
        f"splits:  train {len(graph.train):,}, validation {len(graph.validation):,}, "
        f"test {len(graph.test):,}"
    )
    assert sum("function calls attribute" in line for line in lines) == 1
    assert len(lines) == 5 + len(graph.relations)


@pytest.mark.parametrize("limit", [0, -3, 2.5, "10"])
def test_a_limit_must_be_a_positive_number(limit: object) -> None:
    with pytest.raises(DatasetError, match="limit_modules must be a positive whole number"):
        python_graph(limit_modules=limit)  # type: ignore[arg-type]


def test_one_module_is_a_graph() -> None:
    tiny = python_graph(limit_modules=1)
    assert tiny.num_nodes > 0
    assert tiny.with_reversed().num_edges == 2 * tiny.num_edges


def test_the_second_call_reads_no_source(tmp_path: Path) -> None:
    with settings.override(cache_directory=tmp_path):
        with meter() as first:
            built = python_graph(limit_modules=5)
        with meter() as second:
            read = python_graph(limit_modules=5)
    assert first.bytes_between(why="library source") > 0
    assert second.bytes_between(why="library source") == 0
    assert read.node_names == built.node_names
    assert torch.equal(read.edge_index, built.edge_index)
    assert torch.equal(read.features, built.features)


def test_python_without_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "python.zip"))
    with pytest.raises(DatasetError, match="comes with its source"):
        python_graph()


def test_a_library_file_that_is_not_python_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in sorted(sys.stdlib_module_names)[:200]:
        (tmp_path / f"{name}.py").write_text("pass\n")
    (tmp_path / "ast.py").write_text("def :\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(DatasetError, match=r"ast\.py does not parse as Python"):
        python_graph()


DIGEST_PROGRAM = """
import hashlib
from shorthaul.datasets import python_graph, python_text
graph, text = python_graph(limit_modules=30).with_reversed(), python_text("50 kB")
digest = hashlib.sha256("\\n".join(graph.node_names).encode())
for tensor in (graph.edge_index, graph.edge_type, graph.features, graph.labels, graph.train,
               graph.validation, graph.test, text.train, text.held_out):
    digest.update(tensor.contiguous().numpy().tobytes())
print(digest.hexdigest())
"""


def test_two_processes_with_different_hash_seeds_build_the_same(tmp_path: Path) -> None:
    digests = []
    for seed in ("1", "2"):
        environment = os.environ | {
            "PYTHONHASHSEED": seed,
            "SHORTHAUL_CACHE": str(tmp_path / seed),
        }
        result = subprocess.run(
            [sys.executable, "-c", DIGEST_PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.append(result.stdout.strip())
        assert len(list((tmp_path / seed / "datasets").iterdir())) == 2
    assert digests[0] == digests[1]
    assert len(digests[0]) == hashlib.sha256().digest_size * 2


def test_the_task_can_be_learned_and_the_graph_helps(graph: PythonGraph, one_thread: None) -> None:
    both = graph.with_reversed()
    guessed = majority_accuracy(graph)
    alone = trained_accuracy(graph, Perceptron, steps=20)
    together = trained_accuracy(both, RelationalNetwork, steps=20)
    assert guessed < 0.5
    assert alone > guessed + 0.05
    assert together > alone + 0.05
    assert together > guessed + 0.15


def test_relations_are_plain_triples(graph: PythonGraph) -> None:
    assert graph.relations[0] == ("module", "imports", "module")
    source, name, target = Relation("class", "defines", "function")
    assert Relation(source, name, target) in graph.relations
