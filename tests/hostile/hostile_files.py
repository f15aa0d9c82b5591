"""Files of every kind that a graph is read from: how a good one is written, and what must come out.

Whatever is done to a file, reading it gives an error of ours or the right answer. What is right for a
text is what the plain readers say; a saved graph that is read into memory is the one that was saved.
"""

import contextlib
import gzip
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from shorthaul.errors import GraphError, ShorthaulError
from shorthaul.graphs import NegativeSampler, NeighborSample, NeighborSampler, RelationalGraph
from shorthaul.graphs.edge_tensors import as_plain
from shorthaul.graphs.sampling.candidates.edges_between import find_edges_between
from shorthaul.settings import settings
from tests.hostile.damage import damage_bytes

TEXTS = {
    "n_triples": (
        "x.nt",
        '<a:Ada> <a:knows> <a:B\\u00e9> .  # so\n_:b1 <a:age> "3\\"6"^^<x:int> .\n'
        '<a:Bé> <a:says> "hé\\n"@en-GB .\n\n# nothing\n<a:Ada> <a:knows> _:b1 .\n' * 3,
    ),
    "triples": ("x.txt", "0 1 2\n2, 0, 1\n\n# nothing\n3;1;4\r\n0\t0\t0\n" * 3),
    "edge_list": ("x.csv", "from,to\n0,1\n1,2\n30,4\n% nothing\n2,2\n" * 3),
}
INDEXES = ("relation", "target", "source", "pairs_source", "pairs_target")


def _write_text(kind: str, packed: bool) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        name, text = TEXTS[kind]
        path = place / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(text.encode(), 1, mtime=0) if packed else text.encode())
        return path

    return write


def _write_open_ke(place: Path) -> Path:
    (place / "train2id.txt").write_text("3\n0 1 0\n1 2 1\n2 0 0\n")
    (place / "test2id.txt").write_text("1\n2 2 1\n")
    (place / "entity2id.txt").write_text("3\n/m/é\t0\n/m/b 1\n/m/c c\t2\n")
    (place / "relation2id.txt").write_text("2\nknows\t0\nlikes 1\n")
    return place


def _write_npy(place: Path) -> Path:
    np.save(place / "x.npy", np.arange(12, dtype=np.int32).reshape(2, 6) % 5)
    return place / "x.npy"


def _pack(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 1, mtime=0))


def _write_ogb(place: Path) -> Path:
    _pack(place / "raw/edge.csv.gz", "0,1\n1,2\n3,3\n")
    _pack(place / "raw/num-node-list.csv.gz", "4\n")
    _pack(place / "raw/num-edge-list.csv.gz", "3\n")
    _pack(place / "raw/edge_reltype.csv.gz", "1\n0\n0\n")
    return place


def _write_typed_ogb(place: Path) -> Path:
    _pack(place / "raw/num-node-dict.csv.gz", "author,paper\n2,3\n")
    _pack(place / "raw/triplet-type-list.csv.gz", "author,writes,paper\npaper,cites,paper\n")
    _pack(place / "raw/relations/author___writes___paper/edge.csv.gz", "0,2\n1,0\n")
    _pack(place / "raw/relations/author___writes___paper/num-edge-list.csv.gz", "2\n")
    _pack(place / "raw/relations/paper___cites___paper/edge.csv.gz", "0,1\n")
    return place


def saved_graph() -> RelationalGraph:
    """What `saved` folders hold."""
    generator = torch.Generator().manual_seed(6)
    edges = {
        ("author", "writes", "paper"): torch.randint(9, (2, 40), generator=generator),
        ("paper", "cites", "paper"): torch.randint(9, (2, 30), generator=generator),
    }
    names = [f"né {number}" for number in range(20)]
    graph = RelationalGraph.from_typed_edges(edges, {"author": 9, "paper": 11}, node_names=names)
    return graph.with_data(
        nodes={"time": torch.arange(20) % 7},
        edges={
            "weight": torch.rand(70, generator=generator),
            "age": torch.randint(9, (70,), generator=generator),
            "stars": {("author", "writes", "paper"): torch.rand(40, 2, generator=generator)},
        },
    )


def _write_saved(place: Path) -> Path:
    return saved_graph().save(place / "graph", INDEXES)


WRITERS: dict[str, Callable[[Path], Path]] = {
    **{kind: _write_text(kind, packed=False) for kind in TEXTS},
    **{f"{kind}_gz": _write_text(kind, packed=True) for kind in TEXTS},
    "open_ke": _write_open_ke,
    "npy_pairs": _write_npy,
    "ogb": _write_ogb,
    "typed_ogb": _write_typed_ogb,
    "saved": _write_saved,
}
KINDS = tuple(WRITERS)


def write_good(kind: str, place: Path) -> Path:
    """A good file or folder in the new folder `place`."""
    place.mkdir(parents=True)
    return WRITERS[kind](place)


def read_hostile(kind: str, place: Path) -> None:
    """Read what may be damaged: an error of ours, or an answer that is verified here."""
    if kind == "saved":
        _read_saved(place)
        return
    name = {"typed_ogb": "ogb"}.get(kind, kind.removesuffix("_gz"))
    for options in ({}, {"strict": False}):
        if options and name in ("npy_pairs", "ogb"):
            continue
        found = _read(place, name, options)
        with settings.override(kernels="torch"):
            expected = _read(place, name, options)
        assert (found is None) == (expected is None), (found, expected)
        if found is not None and expected is not None:
            require_same(found, expected)
            require_sound(found)
    _read(place, None, {})


def _read(place: Path, name: str | None, options: dict[str, bool]) -> RelationalGraph | None:
    try:
        return RelationalGraph.read(place, name, **options)
    except GraphError:
        return None


def _read_saved(place: Path) -> None:
    with contextlib.suppress(ShorthaulError):
        require_same(RelationalGraph.open(place, in_memory=True), saved_graph())
    uses = (_sample, _sample_by_data, _draw_negatives, _read_data, _build)
    for use in (*uses, lambda graph: list(graph.node_names or ())):
        with contextlib.suppress(ShorthaulError):
            use(RelationalGraph.open(place))


def _sample(graph: RelationalGraph) -> None:
    for fans in ([2, -1], [dict.fromkeys(range(graph.num_relations), 2)] * 2):
        sample = NeighborSampler(graph, fans).sample(range(graph.num_nodes), threads=1)
        _require_within(graph, sample)


def _sample_by_data(graph: RelationalGraph) -> None:
    """By weights, by times, without edges: whatever the columns say, nothing else is taken."""
    for options in (
        {"strategy": "weighted", "weights": "weight"},
        {"strategy": "weighted", "weights": "weight", "edge_times": "age", "replace": True},
        {"strategy": "last", "node_times": "time"},
        {"strategy": "labor", "disjoint": True},
    ):
        sampler = NeighborSampler(graph, [2, -1], **options)
        sample = sampler.sample(
            range(graph.num_nodes),
            times=[5] * graph.num_nodes if sampler.rule.is_temporal else None,
            exclude=range(min(3, graph.num_edges)),
            threads=1,
        )
        _require_within(graph, sample)


def _require_within(graph: RelationalGraph, sample: NeighborSample) -> None:
    assert int(sample.input_nodes.max()) < graph.num_nodes
    for block in sample.blocks:
        assert not block.num_edges or int(block.relations.max()) < graph.num_relations
        assert not block.num_edges or int(block.edges.max()) < graph.num_edges


def _draw_negatives(graph: RelationalGraph) -> None:
    for options in ({}, {"replaces": "both", "exponent": 0.75}, {"node_times": "time"}):
        times = [5] * 3 if "node_times" in options else None
        drawn = NegativeSampler(graph, **options).sample_edges(range(3), times=times, threads=1)
        assert int(torch.cat([drawn.sources, drawn.targets]).max()) < graph.num_nodes
    which, ids = find_edges_between(
        graph, *(as_plain(each[:5]).long() for each in (graph.source, graph.target, graph.relation))
    )
    assert not len(ids) or (int(ids.max()) < graph.num_edges and int(which.max()) < 5)


def _read_data(graph: RelationalGraph) -> None:
    """All rows of nodes and edges: as many as there are, whatever they are."""
    for rows in graph.node_data.values():
        assert len(as_plain(rows)) == graph.num_nodes
    for held in graph.edge_data.values():
        parts = [held] if isinstance(held, torch.Tensor) else held.values()
        counts = [len(as_plain(part)) for part in parts]
        assert sum(counts) <= graph.num_edges
        assert counts == [graph.num_edges] or not isinstance(held, torch.Tensor)


def _build(graph: RelationalGraph) -> None:
    graph.indexes.clear()  # as in a folder that was saved without any
    require_sound(graph)


def require_sound(graph: RelationalGraph) -> None:
    """Indexes of a graph hold its edges, however the graph came about."""
    source, target, relation = map(as_plain, (graph.source, graph.target, graph.relation))
    if graph.num_nodes > 10**6:
        return  # so many were promised: nobody knows better
    for index, ends in ((graph.by_target(), target), (graph.by_source(), source)):
        counts = torch.bincount(ends, minlength=graph.num_nodes)
        assert torch.equal(index.pointers.diff().long(), counts)
    assert torch.equal(graph.by_relation().edges.long(), torch.argsort(relation, stable=True))


def require_same(one: RelationalGraph, other: RelationalGraph) -> None:
    """The two are one graph."""
    assert (one.node_types, one.nodes_per_type) == (other.node_types, other.nodes_per_type)
    assert one.relations == other.relations
    for name in ("source", "target", "relation"):
        assert torch.equal(as_plain(getattr(one, name)), as_plain(getattr(other, name))), name
    assert list(one.node_names or ()) == list(other.node_names or ())
    # Whose name is damaged in the description, they are not there when somebody asks for them.
    assert _list_data(one).keys() <= _list_data(other).keys()
    for name, rows in _list_data(one).items():
        expected = _list_data(other)[name]
        assert rows.dtype is expected.dtype, name
        assert torch.equal(rows, expected), name


def _list_data(graph: RelationalGraph) -> dict[str, torch.Tensor]:
    """What belongs to nodes and edges, each part by a name of its own."""
    found = {f"nodes {name}": as_plain(rows) for name, rows in graph.node_data.items()}
    for name, rows in graph.edge_data.items():
        parts = {"all": rows} if isinstance(rows, torch.Tensor) else rows
        found |= {f"edges {name} {relation}": as_plain(part) for relation, part in parts.items()}
    return found


def main(kind: str, first: int, stop: int) -> None:
    """Damage and read files of one kind; what is printed last is the seed that did not end well."""
    with tempfile.TemporaryDirectory() as folder:
        good = write_good(kind, Path(folder) / "good")
        for seed in range(first, stop):
            print(f"{kind} {seed}", flush=True)
            place = Path(folder) / f"{seed}{good.suffix}"
            (shutil.copytree if good.is_dir() else shutil.copy)(good, place)
            if seed:
                damage_bytes(place, random.Random(f"{kind} {seed}"))
            read_hostile(kind, place)
    print("finished", flush=True)


if __name__ == "__main__":
    for each in sys.argv[3:] or KINDS:
        main(each, int(sys.argv[1]), int(sys.argv[2]))
