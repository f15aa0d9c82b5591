"""How long does it take to read a million triples, and to index a graph?

A million made triples as N-Triples, plain and gzipped, and as lines of three numbers; all files are
in the page cache. The loops in Python and pandas split lines at spaces and commas and number what
they find; they do not resolve escapes and would not notice a malformed line, as ours does. Every arm
must give the same numbers.

Indexes are those by target, by source and the distinct (relation, node) pairs of both ends, for
FB15k-237 with inverse relations where the data is there, else for a made graph of its size. PyTorch
makes them by stable argsort and unique; the goal is less than 15 ms.
"""

from __future__ import annotations

import contextlib
import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, Measurable, same_bits
from benchmarks.peers.process import PEERS_FOLDER, ROOT, ArmProcess, PeersMissingError
from shorthaul.graphs import RelationalGraph

FB15K = ROOT.parent / "shared" / "data" / "fb15k-237"
LOOP, TORCH = "a loop in Python", "PyTorch: argsort, unique"
Tensors = list[torch.Tensor]


def measure(answer: Answer) -> None:
    triples = 20_000 if answer.is_quick else 1_000_000
    with tempfile.TemporaryDirectory() as directory, _open_pandas(answer) as pandas:
        files = write_files(Path(directory), triples)
        _measure_reading(answer, files, triples, pandas)
    _measure_indexing(answer, triples)


def _measure_reading(
    answer: Answer, files: dict[str, Path], triples: int, pandas: ArmProcess | None
) -> None:
    cases = (
        ("N-Triples", "n_triples", files["nt"], loop_over_terms),
        ("N-Triples, gzipped", "n_triples", files["nt.gz"], loop_over_terms),
        ("integer triples", "integers", files["csv"], loop_over_numbers),
    )
    for name, key, path, loop in cases:
        arms: list[Measurable] = [
            Arm(LOOP, lambda loop=loop, path=path: loop(path)),
            Arm("shorthaul", lambda path=path: read_with_shorthaul(path)),
        ]
        if pandas is not None:
            arms.insert(1, pandas.arm(key, name="pandas", path=str(path)))
        size = {"file_bytes": path.stat().st_size}
        answer.compare(
            f"{triples:,} {name}",
            arms,
            baseline=LOOP,
            same=same_bits,
            figures={each.name: size for each in arms},
        )


def _measure_indexing(answer: Answer, edges: int) -> None:
    if FB15K.is_dir():
        graph = RelationalGraph.read(FB15K).with_inverses()
        answer.state(indexed="FB15k-237, all splits, with inverse relations")
    else:
        source, target, relation = draw_triples(min(edges, 310_116), 14_541, 237)
        graph = RelationalGraph.from_edges(source, target, relation).with_inverses()
        answer.state(indexed="a made graph with the counts of FB15k-237 and inverse relations")
    answer.state(threads=str(torch.get_num_threads()))
    answer.compare(
        f"indexes of {graph.num_edges:,} edges, {graph.num_relations} relations",
        [
            Arm(TORCH, lambda: index_with_torch(graph)),
            Arm("shorthaul", lambda: index_with_shorthaul(graph)),
        ],
        baseline=TORCH,
        same=same_bits,
    )


@contextlib.contextmanager
def _open_pandas(answer: Answer) -> Iterator[ArmProcess | None]:
    try:
        process = ArmProcess(PEERS_FOLDER / "peer_arms_pandas.py")
    except PeersMissingError:
        answer.state(pandas="not measured: `make peers` installs it")
        yield None
        return
    with process:
        yield process


def draw_triples(triples: int, nodes: int, relations: int) -> tuple[torch.Tensor, ...]:
    """Sources, targets and relations; a few nodes and relations have most of the edges."""
    drawn = np.random.default_rng(1)
    ends = [(nodes * drawn.random(triples) ** 3).astype(np.int64) for _ in range(2)]
    kinds = (relations * drawn.random(triples) ** 2).astype(np.int64)
    return tuple(map(torch.from_numpy, (*ends, kinds)))


def write_files(directory: Path, triples: int) -> dict[str, Path]:
    """The same triples in three files."""
    source, target, relation = (each.tolist() for each in draw_triples(triples, triples // 4, 50))
    lines = [
        f"<http://example.org/resource/thing{s}> <http://example.org/ontology#relation{r}> "
        f"<http://example.org/resource/thing{t}> .\n"
        for s, r, t in zip(source, relation, target, strict=True)
    ]
    numbers = [f"{s},{r},{t}\n" for s, r, t in zip(source, relation, target, strict=True)]
    files = {suffix: directory / f"triples.{suffix}" for suffix in ("nt", "nt.gz", "csv")}
    text = "".join(lines).encode()
    files["nt"].write_bytes(text)
    files["nt.gz"].write_bytes(gzip.compress(text, 6))
    files["csv"].write_text("".join(numbers))
    return files


def loop_over_terms(path: Path) -> Tensors:
    """What a script would do: split each line, and number terms by two dictionaries."""
    nodes: dict[str, int] = {}
    relations: dict[str, int] = {}
    rows = []
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "rt", encoding="utf-8") as file:
        for line in file:
            source, relation, target, _ = line.split(" ")
            rows.append(
                (
                    nodes.setdefault(source, len(nodes)),
                    relations.setdefault(relation, len(relations)),
                    nodes.setdefault(target, len(nodes)),
                )
            )
    return [each.contiguous() for each in torch.tensor(rows).t()]


def loop_over_numbers(path: Path) -> Tensors:
    """The same for lines of numbers."""
    with open(path, encoding="utf-8") as file:
        rows = [list(map(int, line.split(","))) for line in file]
    return [each.contiguous() for each in torch.tensor(rows).t()]


def read_with_shorthaul(path: Path) -> Tensors:
    graph = RelationalGraph.read(path, index_dtype=torch.int64)
    return [graph.source, graph.relation, graph.target]


def index_with_shorthaul(graph: RelationalGraph) -> Tensors:
    """Every index from the edges on: a graph keeps what it has built, so it is made again."""
    again = RelationalGraph.from_edges(
        graph.source,
        graph.target,
        graph.relation,
        num_nodes=graph.num_nodes,
        num_relations=graph.num_relations,
    )
    found: Tensors = []
    for index in (
        again.by_target(),
        again.by_source(),
        again.pairs("source"),
        again.pairs("target"),
    ):
        found += vars(index).values()
    return found


def index_with_torch(graph: RelationalGraph) -> Tensors:
    """The same tensors by PyTorch's own operations."""
    source, target, relation = graph.source.long(), graph.target.long(), graph.relation.long()
    nodes, relations = graph.num_nodes, graph.num_relations
    found: Tensors = []
    for keys, others in ((target, source), (source, target)):
        edges = torch.argsort(keys * relations + relation, stable=True)
        found += [_pointers(keys, nodes), others[edges], relation[edges], edges]
    for keys in (source, target):
        pairs, edge_to_pair = torch.unique(relation * nodes + keys, return_inverse=True)
        pair_edges = torch.argsort(edge_to_pair, stable=True)
        pointers = _pointers(torch.div(pairs, nodes, rounding_mode="floor"), relations)
        found += [pointers, pairs % nodes, edge_to_pair]
        found += [_pointers(edge_to_pair, pairs.numel()), pair_edges]
    return [each.int() for each in found]


def _pointers(keys: torch.Tensor, rows: int) -> torch.Tensor:
    counts = torch.bincount(keys, minlength=rows)
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(counts, 0)])


if __name__ == "__main__":
    answer_question(measure)
