"""Layers over parts are those of one process: outputs, gradients of rows and of all parameters, in float64."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import shorthaul as sh
from shorthaul.errors import LayerArgumentError, RowArgumentError
from shorthaul.settings import settings
from tests.distributed.rank_processes import run_failing_ranks, run_ranks
from tests.distributed.whole_graph.whole_graphs import (
    RELATIONS,
    TYPED,
    WIDTH,
    count_fewest,
    cut,
    drawn_rows,
    gradients_of,
    joined_layers,
    loss_of,
    metadata_of,
    related_graph,
    typed_edges,
    typed_layers,
    typed_rows,
    venue_graph,
)


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    """Equal up to the order of sums in float64."""
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


def run_joined(rank: int, folder: Path, kernels: str = "torch", names: Any = None) -> Any:
    """For each layer own outputs, and gradients of own rows and of parameters."""
    whole = sh.distributed.WholeGraph(sh.distributed.open(folder, shares_machine=False))
    own = whole.nodes()
    found = {}
    with settings.override(kernels=kernels):
        for name, layer in joined_layers().items():
            if names is None or name in names:
                x = drawn_rows(40, 3)[own].requires_grad_()
                out = whole.run(layer, x)
                loss_of(out, own, 4).backward()
                found[name] = own, out.detach(), x.grad, gradients_of(layer)
    return found, whole.report()


def joined_alone(folder: Path) -> Any:
    """The same without parts, on the graph under their numbers."""
    graph = sh.distributed.open(folder).graph
    untyped = sh.RelationalGraph.from_edges(graph.source, graph.target, num_nodes=40)
    found = {}
    with settings.override(kernels="torch"):
        for name, layer in joined_layers().items():
            x = drawn_rows(40, 3).requires_grad_()
            if isinstance(layer, sh.relational.RelGraphConv):
                out = layer(graph, x)
            else:
                has_relations = hasattr(layer, "num_relations")
                out = layer(x, graph if has_relations else untyped)
            loss_of(out, slice(40), 4).backward()
            found[name] = out.detach(), x.grad, gradients_of(layer)
    return found


def compare_joined(expected: Any, found: list[Any]) -> None:
    for name in found[0][0]:
        out, gradient, weights = expected[name]
        for ranks_own, ranks_out, ranks_gradient, _ in (each[name] for each, _ in found):
            same(ranks_out, out[ranks_own])
            same(ranks_gradient, gradient[ranks_own])
        for parameter, whole in weights.items():
            same(sum(each[name][3][parameter] for each, _ in found), whole)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_layers_of_one_tensor_are_those_of_one_process(tmp_path: Path, ranks: int) -> None:
    cut(related_graph(), tmp_path)
    expected = joined_alone(tmp_path)
    found = (
        run_ranks(run_joined, ranks, tmp_path, tmp_path) if ranks > 1 else [run_joined(0, tmp_path)]
    )
    compare_joined(expected, found)
    reports = [report for _, report in found]
    assert any(each.served_sums for each in reports) == (ranks > 1)
    assert sum(each.sent_bytes for each in reports) == sum(each.received_bytes for each in reports)


@pytest.mark.slow
def test_generated_kernels_make_the_same(tmp_path: Path) -> None:
    cut(related_graph(), tmp_path)
    names = ("RGCN", "RGAT", "SAGE")
    found = run_ranks(run_joined, 2, tmp_path, tmp_path, "generated", names)
    compare_joined(joined_alone(tmp_path), found)


def run_typed(rank: int, folder: Path) -> Any:
    whole = sh.distributed.WholeGraph(sh.distributed.open(folder, shares_machine=False))
    found = {}
    with settings.override(kernels="torch"):
        for name, layer in typed_layers(metadata_of(whole.parts.described_graph)).items():
            x = typed_rows(name, {kind: whole.nodes(kind) for kind in TYPED})
            out = whole.run(layer, x)
            sum(loss_of(each, whole.nodes(kind), 4) for kind, each in out.items()).backward()
            gradients = {kind: each.grad for kind, each in x.items()}
            own = {kind: whole.nodes(kind) for kind in TYPED}
            outs = {kind: each.detach() for kind, each in out.items()}
            found[name] = own, outs, gradients, gradients_of(layer)
    return found, whole.report()


def typed_alone(folder: Path) -> Any:
    graph = sh.distributed.open(folder).graph
    found = {}
    with settings.override(kernels="torch"):
        for name, layer in typed_layers(metadata_of(graph)).items():
            x = typed_rows(name, {kind: torch.arange(count) for kind, count in TYPED.items()})
            out = layer(x, typed_edges(graph))
            sum(loss_of(each, slice(len(each)), 4) for each in out.values()).backward()
            gradients = {kind: each.grad for kind, each in x.items()}
            found[name] = out, gradients, gradients_of(layer)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_layers_of_types_are_those_of_one_process(tmp_path: Path, ranks: int) -> None:
    cut(venue_graph(), tmp_path)
    expected = typed_alone(tmp_path)
    found = (
        run_ranks(run_typed, ranks, tmp_path, tmp_path) if ranks > 1 else [run_typed(0, tmp_path)]
    )
    for name, (outs, gradients, weights) in expected.items():
        for ranks_own, ranks_outs, ranks_gradients, _ in (each[name] for each, _ in found):
            assert ranks_outs.keys() == outs.keys()
            for kind, own in ranks_own.items():
                same(ranks_outs[kind], outs[kind][own])
                if gradients[kind] is None:
                    assert ranks_gradients[kind] is None
                else:
                    same(ranks_gradients[kind], gradients[kind][own])
        for parameter, whole in weights.items():
            same(sum(each[name][3][parameter] for each, _ in found), whole)
    if ranks == 4:
        assert min(len(own["venue"]) for each, _ in found for own, *_ in each.values()) == 0


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_topology_in_parts_makes_the_same(tmp_path: Path, ranks: int) -> None:
    """Each rank has the edges into its own nodes alone."""
    for make, run in ((related_graph, run_joined), (venue_graph, run_typed)):
        folders = [tmp_path / f"{make.__name__} {name}" for name in ("replicated", "split")]
        for each in folders:
            cut(make(), each, topology=each.name.split()[-1])
        whole, apart = (run_ranks(run, ranks, tmp_path, each) for each in folders)
        for (found, traffic), (other, same_traffic) in zip(apart, whole, strict=True):
            assert traffic == same_traffic
            assert found.keys() == other.keys()
            for name in found:
                torch.testing.assert_close(found[name], other[name], rtol=0, atol=0)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = sh.relational.RGCNConv(WIDTH, WIDTH, RELATIONS)
        self.second = sh.relational.RGATConv(WIDTH, 3, RELATIONS)
        self.double()

    def forward(self, whole: sh.distributed.WholeGraph, x: torch.Tensor) -> torch.Tensor:
        return whole.run(self.second, whole.run(self.first, x).relu())


def train(rank: int, folder: Path, steps: int = 3) -> Any:
    """Losses over all seeds, parameters after a few steps, and the table's own rows."""
    parts = sh.distributed.open(folder, shares_machine=False)
    whole = sh.distributed.WholeGraph(parts)
    made = TwoLayers()
    model: nn.Module = made
    if parts.ranks > 1:  # RGATConv has PyG's parameters, also those of a `mod` that it has not
        model = nn.parallel.DistributedDataParallel(made, find_unused_parameters=True)
    table = sh.distributed.LearnableTable(parts, "node", WIDTH, dtype=torch.float64, sparse=False)
    optimizer = torch.optim.SGD([*model.parameters(), *table.parameters()], lr=0.5)
    seeds = parts.seeds()
    rows = whole.rows_of(seeds)
    labels = whole.nodes()[rows] % 3
    losses = []
    with settings.override(kernels="torch"):
        for _ in range(steps):
            out = model(whole, table(whole.nodes()))
            loss = nn.functional.cross_entropy(out[rows], labels, reduction="sum")
            (loss * (parts.ranks / len(seeds))).backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item() / len(seeds))
    return losses, dict(made.state_dict()), table.weight.detach()


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_under_ddp_is_that_of_one_process(tmp_path: Path, ranks: int) -> None:
    """One rank of four has no seeds, and so no loss of its own, but gradients for others."""
    cut(related_graph(), tmp_path, seeds=torch.arange(6))
    losses, weights, table = train(0, tmp_path)
    assert losses[-1] < losses[0]
    found = run_ranks(train, ranks, tmp_path, tmp_path)
    for step, loss in enumerate(losses):
        assert sum(each[0][step] for each in found) == pytest.approx(loss, rel=1e-10)
    for name, whole in weights.items():
        for _, ranks_weights, _ in found:
            same(ranks_weights[name], whole)
    same(torch.cat([each for _, _, each in found]), table)


def run_again(rank: int, folder: Path) -> Any:
    """Gradients of two layers, kept as they are and computed again in the backward pass."""
    whole = sh.distributed.WholeGraph(sh.distributed.open(folder, timeout_seconds=20.0))
    torch.manual_seed(6)
    layer = sh.relational.RGCNConv(WIDTH, WIDTH, RELATIONS).double()
    gradients = []
    with settings.override(kernels="torch"):
        for is_again in (False, True):
            x = drawn_rows(40, 3)[whole.nodes()].requires_grad_()
            out = x
            for _ in range(2):
                run = functools.partial(whole.run, layer)
                out = (checkpoint(run, out, use_reentrant=False) if is_again else run(out)).relu()
            out.square().sum().backward()
            gradients.append(x.grad)
    return gradients


def test_layers_may_be_computed_again_in_the_backward_pass(tmp_path: Path) -> None:
    cut(related_graph(), tmp_path)
    for kept, again in run_ranks(run_again, 2, tmp_path, tmp_path):
        assert again.equal(kept)
        assert kept.any()


def count_bytes(rank: int, folder: Path, averages: bool) -> Any:
    """Bytes of agreeing, of a forward and of a backward pass."""
    whole = sh.distributed.WholeGraph(sh.distributed.open(folder), averages=averages)
    layer, own = sh.relational.RGCNConv(WIDTH, 5, RELATIONS), whole.nodes()
    x = torch.ones(len(own), WIDTH).requires_grad_()
    counted = []
    with settings.override(kernels="torch"):
        whole.run(layer, x)
        whole.report().reset()
        out = whole.run(layer, x)
        counted.append(whole.report().to_dict())
        whole.report().reset()
        out.sum().backward()
        counted.append(whole.report().to_dict())
    return own, counted


def rows_read(graph: sh.RelationalGraph, own: torch.Tensor) -> set[int]:
    """Nodes of others that own nodes hear: each travels once."""
    edges = zip(graph.source.tolist(), graph.target.tolist(), strict=True)
    mine = set(own.tolist())
    return {source for source, target in edges if target in mine and source not in mine}


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_row_travels_once_in_each_direction(tmp_path: Path, ranks: int) -> None:
    cut(related_graph(), tmp_path)
    graph = sh.distributed.open(tmp_path).graph
    for own, (forward, backward) in run_ranks(count_bytes, ranks, tmp_path, tmp_path, False):
        read = len(rows_read(graph, own))
        expected = 32 * (ranks - 1) + read * WIDTH * 4
        assert forward["received_bytes"] == backward["sent_bytes"] == expected
        assert forward["far_rows"] == read
        assert forward["far_sums"] == 0


def fewest(graph: sh.RelationalGraph, own: torch.Tensor, other: torch.Tensor) -> int:
    """Rows and averages from one rank to another, as few as there can be."""
    mine, theirs = set(own.tolist()), set(other.tolist())
    columns = (graph.source.tolist(), graph.target.tolist(), graph.relation.tolist())
    edges = [each for each in zip(*columns, strict=True) if each[0] in theirs and each[1] in mine]
    return count_fewest((source, (target, relation)) for source, target, relation in edges)


@pytest.mark.parametrize("ranks", [2, 4])
def test_averages_are_sent_where_they_are_fewer_bytes(tmp_path: Path, ranks: int) -> None:
    cut(related_graph(), tmp_path)
    graph = sh.distributed.open(tmp_path).graph
    found = run_ranks(count_bytes, ranks, tmp_path, tmp_path, True)
    fewer = 0
    for rank, (own, (forward, backward)) in enumerate(found):
        others = [each for number, (each, _) in enumerate(found) if number != rank]
        least = sum(fewest(graph, own, each) for each in others)
        expected = 32 * (ranks - 1) + least * WIDTH * 4
        assert forward["received_bytes"] == backward["sent_bytes"] == expected
        assert bool(forward["far_sums"]) == (least < len(rows_read(graph, own)))
        fewer += least < len(rows_read(graph, own))
    assert fewer


def run_weighted(rank: int, folder: Path) -> Any:
    whole = sh.distributed.WholeGraph(sh.distributed.open(folder, shares_machine=False))
    torch.manual_seed(2)
    layer = sh.relational.GraphConv(WIDTH, 5).double()
    x = drawn_rows(40, 3)[whole.nodes()]
    with settings.override(kernels="torch"):
        rows, block = whole.sources(x)
        weight = drawn_rows(1000, 5, 1)[block.edges.long(), 0]
        by_hand = layer((rows, x), block.edge_index(), weight)
        return whole.nodes(), whole.run(layer, x, edge_weight=weight).detach(), by_hand.detach()


@pytest.mark.parametrize("ranks", [1, 2])
def test_data_of_edges_come_in_the_order_of_the_block(tmp_path: Path, ranks: int) -> None:
    """A weighted sum is no sum of averages: rows are sent."""
    cut(related_graph(), tmp_path)
    graph = sh.distributed.open(tmp_path).graph
    untyped = sh.RelationalGraph.from_edges(graph.source, graph.target, num_nodes=40)
    torch.manual_seed(2)
    layer = sh.relational.GraphConv(WIDTH, 5).double()
    weight = drawn_rows(1000, 5, 1)[graph.by_target().edges.long(), 0]
    with settings.override(kernels="torch"):
        expected = layer(drawn_rows(40, 3), untyped, weight).detach()
    found = (
        run_ranks(run_weighted, ranks, tmp_path, tmp_path)
        if ranks > 1
        else [run_weighted(0, tmp_path)]
    )
    for own, out, by_hand in found:
        same(out, expected[own])
        same(by_hand, expected[own])


def give_wrong_rows(rank: int, folder: Path) -> None:
    whole = sh.distributed.WholeGraph(sh.distributed.open(folder))
    whole.run(sh.relational.SAGEConv(WIDTH, 5), torch.ones(len(whole.nodes()) + rank, WIDTH))


def give_other_widths(rank: int, folder: Path) -> None:
    whole = sh.distributed.WholeGraph(sh.distributed.open(folder))
    width = WIDTH + rank
    whole.run(sh.relational.SAGEConv(width, 5), torch.ones(len(whole.nodes()), width))


def leave_a_backward_pass_out(rank: int, folder: Path) -> None:
    whole = sh.distributed.WholeGraph(sh.distributed.open(folder, timeout_seconds=5.0))
    layer, x = sh.relational.SAGEConv(WIDTH, 5), torch.ones(len(whole.nodes()), WIDTH)
    with settings.override(kernels="torch"):
        out = whole.run(layer, x.requires_grad_())
        if rank == 0:
            out.sum().backward()
        whole.run(layer, x)


def end_within_a_pass(rank: int, folder: Path) -> None:
    whole = sh.distributed.WholeGraph(sh.distributed.open(folder, timeout_seconds=20.0))
    layer, x = sh.relational.SAGEConv(WIDTH, 5), torch.ones(len(whole.nodes()), WIDTH)
    with settings.override(kernels="torch"):
        whole.run(layer, x)
        if rank == 1:
            os._exit(7)
        whole.run(layer, x)


def test_what_is_wrong_on_one_rank_is_told_to_all(tmp_path: Path) -> None:
    cut(related_graph(), tmp_path)
    one, other = run_failing_ranks(give_wrong_rows, 2, tmp_path, tmp_path)
    assert (one.kind, other.kind) == ("PeerError", "RowArgumentError")
    assert "RowArgumentError: x must be" in one.text
    for each in run_failing_ranks(give_other_widths, 2, tmp_path, tmp_path):
        assert each.kind == "RankDisagreementError"
        assert "rank 0 has sources of SAGEConv by averages and rows of all types: (8,)" in each.text
        assert "rank 1 has sources of SAGEConv by averages and rows of all types: (9,)" in each.text
    for each in run_failing_ranks(leave_a_backward_pass_out, 2, tmp_path, tmp_path):
        assert each.kind == "RankDisagreementError"
        assert "rank 0 has gradients 0 of SAGEConv" in each.text
        assert "rank 1 has sources of SAGEConv" in each.text


def test_a_rank_that_ends_is_named(tmp_path: Path) -> None:
    cut(related_graph(), tmp_path)
    one, other = run_failing_ranks(end_within_a_pass, 2, tmp_path, tmp_path)
    assert other.exit_code == 7
    assert one.kind == "ExchangeError"
    assert "could not exchange sources of SAGEConv" in one.text
    assert "rank 1 (parts 2 to 3, " in one.text


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    cut(venue_graph(), tmp_path)
    whole = sh.distributed.WholeGraph(sh.distributed.open(tmp_path))
    assert whole.rows == {"author": slice(0, 12), "paper": slice(12, 42), "venue": slice(42, 44)}
    assert whole.rows_of(torch.tensor([1, 7]), "venue").tolist() == [1]
    rows = {name: torch.ones(count, WIDTH) for name, count in TYPED.items()}
    layer = typed_layers(metadata_of(whole.parts.graph))["SAGE"].float()
    for x, said in (
        ({**rows, "page": rows["venue"]}, "got also page"),
        ({"author": rows["author"]}, "30 rows, one for each node of paper that this rank owns"),
        ({**rows, "paper": rows["author"]}, r"got shape \(12, 8\)"),
        ({**rows, "venue": rows["venue"].double()}, "floating-point rows of one dtype"),
        ({**rows, "venue": rows["venue"].to("meta")}, "rows on the CPU"),
    ):
        with pytest.raises(RowArgumentError, match=said):
            whole.run(layer, x)
    with pytest.raises(RowArgumentError, match="got types, edge_weight"):
        whole.run(layer, rows, edge_weight=torch.ones(3))
    with pytest.raises(RowArgumentError, match="there are 3 node types"):
        whole.nodes()
    with pytest.raises(LayerArgumentError, match="HANConv weighs relations by a mean"):
        whole.run(sh.relational.HANConv(WIDTH, WIDTH, metadata_of(whole.parts.graph)), rows)
