"""How a traced model's edges become a graph when it runs: the builders of `traced_graph`'s forms.

Each finds the graph that was kept for the same tensors, as the layers do without `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.known_graphs import find_known_graph
from shorthaul.relational.inputs.graph import find_bipartite_graph, find_graph
from shorthaul.relational.inputs.kept_graphs import keep_graph
from shorthaul.relational.inputs.paths import find_paths
from shorthaul.relational.inputs.self_loops import add_loops
from shorthaul.relational.runtime.traced_graph import BUILDERS, EdgeSizes
from shorthaul.relational.topology.block_graph import graph_of_columns

Tensors = Sequence[torch.Tensor]


def build_columns(tensors: Tensors, sizes: EdgeSizes) -> RelationalGraph:
    """The graph that holds these tensors, or, in an exported model, one with the same edges."""
    source, target, relation = tensors

    def make() -> RelationalGraph:
        return RelationalGraph.from_edges(
            source, target, relation, relations=sizes.relations(), nodes_per_type=sizes.types()
        )

    known = find_known_graph(source, target, relation)
    return known if known is not None else keep_graph(("columns", sizes), tensors, make)


def build_edges(tensors: Tensors, sizes: EdgeSizes) -> RelationalGraph:
    """PyG's `edge_index` and `edge_type`."""
    edge_type = tensors[1] if len(tensors) > 1 else None
    return find_graph(tensors[0], edge_type, sizes.nodes_per_type[0], sizes.num_relations)


def build_bipartite(tensors: Tensors, sizes: EdgeSizes) -> RelationalGraph:
    """The same with sources and targets numbered apart."""
    edge_type = tensors[1] if len(tensors) > 1 else None
    return find_bipartite_graph(
        tensors[0], edge_type, sizes.nodes_per_type[0], sizes.num_targets, sizes.num_relations
    )


def build_typed(tensors: Tensors, sizes: EdgeSizes) -> RelationalGraph:
    """One `edge_index` per relation."""

    def make() -> RelationalGraph:
        edges = dict(zip(sizes.relations(), [each.cpu() for each in tensors], strict=True))
        return RelationalGraph.from_typed_edges(edges, sizes.types())

    return keep_graph(("traced types", sizes), tensors, make)


def build_block(tensors: Tensors, sizes: EdgeSizes) -> RelationalGraph:
    """A sampled block; a later one has other tensors, so nothing is kept."""
    pointers, sources, positions, relations = tensors
    looked_up = relations[positions.cpu()].to(positions.device)  # the graph stays on the host
    return graph_of_columns(
        pointers, sources, looked_up, sizes.nodes_per_type[0], sizes.num_relations
    )


def build_looped(tensors: Tensors, sizes: EdgeSizes, form: str) -> RelationalGraph:
    """A graph of `form` with loops; the sizes are how many nodes it has, and how many have loops."""
    num_nodes, loops = sizes.nodes_per_type
    graph = BUILDERS[form](tensors, replace(sizes, nodes_per_type=(num_nodes,)))
    made: RelationalGraph = add_loops(graph, loops, sizes.num_targets)
    return made


def build_paths(tensors: Tensors, sizes: EdgeSizes, form: str) -> RelationalGraph:
    """The targets of each relation of a graph of `form`."""
    made: RelationalGraph = find_paths(BUILDERS[form](tensors, sizes))
    return made


def register_builders() -> None:
    """Let operators build graphs of every form."""
    BUILDERS.update(
        columns=build_columns,
        edges=build_edges,
        bipartite=build_bipartite,
        typed=build_typed,
        block=build_block,
    )
    for form in ("columns", "edges", "bipartite", "block"):
        BUILDERS[f"{form} with loops"] = partial(build_looped, form=form)
    for form in ("columns", "typed"):
        BUILDERS[f"{form} as paths"] = partial(build_paths, form=form)
