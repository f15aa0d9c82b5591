"""`WholeGraph`: layers on all nodes of a graph whose parts belong to many ranks.

::

    own rows -> rows and averages of others, once per layer -> the layer on own targets -> own rows

Who sends what is worked out from each rank's own edges at the first layer, told to the owners, and kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shorthaul.distributed.parts import Parts
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.tables.row_exchange import Round, announce
from shorthaul.distributed.tables.traffic import Traffic
from shorthaul.distributed.whole_graph.halo_exchange import Halo, HaloExchange
from shorthaul.distributed.whole_graph.halo_plan import HaloPlan, plan_halo
from shorthaul.distributed.whole_graph.layer_kinds import require_local, takes_averages
from shorthaul.distributed.whole_graph.local_graph import (
    TypedEdges,
    is_of,
    make_block,
    make_typed_edges,
)
from shorthaul.distributed.whole_graph.own_rows import OwnRows, read_own_edges
from shorthaul.distributed.whole_graph.served_rows import tell_halos
from shorthaul.errors import RowArgumentError
from shorthaul.graphs import Block
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.relational.compiled_layer import CompiledLayer
from shorthaul.relational.layers import HeteroConv, RelGraphConv

_ALL = "all types"


@dataclass(frozen=True, eq=False)
class _Form:
    """One way in which layers take their sources, agreed on by all ranks."""

    words: str
    own: Mapping[str, OwnRows]  # for each tensor of the layer
    halo: Halo
    graph: Block | TypedEdges


class WholeGraph:
    """The graph of `parts` for layers that compute all of its nodes, each rank its own.

    >>> import tempfile, torch, shorthaul as sh
    >>> graph = sh.RelationalGraph.from_edges([1, 2, 3, 0], [0, 0, 1, 2])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sh.distributed.partition(graph, folder, 2)
    ...     whole = sh.distributed.WholeGraph(sh.distributed.open(folder))
    ...     layer = sh.relational.SAGEConv(8, 4)
    ...     out = whole.run(layer, torch.randn(len(whole.nodes()), 8))  # of this rank's nodes
    >>> out.shape
    torch.Size([4, 4])

    A layer needs rows of other ranks: each comes once, and gradients go back the same way and are added
    up by the owner. Where a layer adds up what it hears (`RGCNConv`, `SAGEConv`, `GraphConv`,
    `GINConv`, `RelGraphConv`, and `HeteroConv` of them), an owner sends averages over the edges of a
    relation in place of rows wherever that is fewer bytes. Outputs and gradients are those of one
    process up to the order of sums. Parameters are those of DDP, or of whoever adds up their gradients.

    Running a layer is a collective, and so is its backward pass.

    Args:
        parts: What `sh.distributed.open` gave; all ranks make the whole graph.
        averages: Whether owners may send averages (default True); otherwise rows only.
    """

    @outside_graphs
    def __init__(self, parts: Parts, *, averages: bool = True) -> None:
        self.parts, self.averages = parts, averages
        self.traffic = Traffic()
        self._line = parts.make_line(f"whole graph, averages {averages}")
        self._own = {
            name: OwnRows((_own_range(parts, name),)) for name in parts.book.node_types
        }  # fmt: skip
        self._joined = OwnRows(tuple(each.ranges[0] for each in self._own.values()))
        self._forms: dict[tuple[bool, bool], _Form] = {}
        self._passes = 0

    @property
    def rows(self) -> dict[str, slice]:
        """Where each type's rows are in a tensor of all types: one after the other."""
        starts = self._joined.starts
        return {
            name: slice(starts[number], starts[number + 1]) for number, name in enumerate(self._own)
        }

    def nodes(self, node_type: str | None = None) -> torch.Tensor:
        """The ids of this rank's nodes, within their type, in the order of its rows.

        Args:
            node_type: Of which type; None (default) where there is one.
        """
        own = self.parts.book.rows(self._known_type(node_type), self.parts.rank)
        return torch.arange(own.start, own.stop, dtype=torch.int64, device="cpu")

    def rows_of(self, ids: torch.Tensor, node_type: str | None = None) -> torch.Tensor:
        """Of `ids` those that this rank owns, as rows of its nodes of that type.

        Args:
            ids: Within the type, under the parts' numbers: seeds, for example.
            node_type: Of which type; None (default) where there is one.
        """
        own = self.parts.book.rows(self._known_type(node_type), self.parts.rank)
        wide = ids.long()
        return wide[(wide >= own.start) & (wide < own.stop)] - own.start

    @outside_graphs
    def run(self, layer: nn.Module, x: Any, **edge_data: Any) -> Any:
        """What `layer` makes of this rank's nodes; a collective.

        Args:
            layer: One that runs on sampled blocks, or, with a tensor for each type, one that takes
                `x_dict` and `edge_index_dict`, such as `HGTConv` and `HeteroConv`. It has the same
                parameters on all ranks.
            x: A row for each of this rank's nodes, those of types one after the other, or a mapping of
                types to such rows; on the CPU.
            edge_data: What the layer takes for each edge by name, in the order of the block that
                `sources` gives; rows are sent then, no averages.
        """
        require_local(layer)
        averages = self.averages and takes_averages(layer) and not edge_data
        if not isinstance(x, Mapping):
            rows, block = self._receive_joined(layer, x, averages=averages)
            if isinstance(layer, CompiledLayer | RelGraphConv):
                return layer(block, rows, **edge_data)
            return layer(rows, block, **edge_data)
        if edge_data:
            given = ", ".join(edge_data)
            raise RowArgumentError(
                "x", "one tensor where there is data of edges", f"types, {given}"
            )
        form = self._form(is_typed=True, averages=averages)
        edges = form.graph
        assert isinstance(edges, TypedEdges)
        local = self._receive(form, x, layer)
        if isinstance(layer, HeteroConv):
            apart = {
                (source, name, target): (local[source], x[target])
                for source, name, target in edges.edge_index
            }
            return layer(apart, edges.edge_index)
        found = layer(local, edges.edge_index)
        return {name: each[: edges.own[name]] for name, each in found.items()}

    @outside_graphs
    def sources(self, x: torch.Tensor) -> tuple[torch.Tensor, Block]:
        """Rows of all that this rank's nodes hear, its own first, and their block; a collective.

        For layers that `run` does not know: PyG's takes `(rows, x)` and `block.edge_index()`, with
        `block.relations`; features of edges are those of `block.edges`.

        Args:
            x: A row for each of this rank's nodes, those of types one after the other; on the CPU.
        """
        return self._receive_joined(None, x, averages=False)

    def report(self) -> Traffic:
        """Rows and bytes of this rank, forward and backward, and of agreeing on them."""
        return self.traffic

    def _receive_joined(
        self, layer: nn.Module | None, x: Any, *, averages: bool
    ) -> tuple[torch.Tensor, Block]:
        form = self._form(is_typed=False, averages=averages)
        assert isinstance(form.graph, Block)
        return self._receive(form, {_ALL: x}, layer)[_ALL], form.graph

    def _receive(
        self, form: _Form, x: Mapping[str, Any], layer: nn.Module | None
    ) -> dict[str, torch.Tensor]:
        """Own rows and those of others, for each tensor of the layer."""
        number, self._passes = self._passes, self._passes + 1
        problem = _find_problem(x, form.own)
        shown = "" if problem else ", ".join(f"{tuple(x[e].shape[1:])} of {e}" for e in form.own)
        dtype = "" if problem else f", {next(iter(x.values())).dtype}"
        name = "a layer" if layer is None else type(layer).__name__
        exchange = HaloExchange(
            self._line,
            form.halo,
            self.traffic,
            self.parts.described,
            f"{name} by {form.words}: {shown}{dtype}",
            number,
        )
        received = exchange.receive([x.get(each) for each in form.own], problem)  # type: ignore[misc]
        return {
            each: torch.cat([x[each], found]) if len(found) else x[each]
            for each, found in zip(form.own, received, strict=True)
        }

    def _form(self, *, is_typed: bool, averages: bool) -> _Form:
        found = self._forms.get((is_typed, averages))
        if found is None:
            words = f"{'averages and rows' if averages else 'rows'} of {'each type' if is_typed else _ALL}"
            found = self._line.run(
                f"who sends {words}", lambda wire: self._agree(wire, words, is_typed, averages)
            )
            self._forms[is_typed, averages] = found
        return found

    def _agree(self, wire: Wire, words: str, is_typed: bool, averages: bool) -> _Form:
        """Plan what this rank reads, and tell the owners."""
        own = self._own if is_typed else {_ALL: self._joined}
        problem: Exception | None = None
        graph: Block | TypedEdges | None = None
        plans: dict[str, HaloPlan] = {}
        try:
            plans, graph = self._plan(own, is_typed, averages)
        except Exception as error:
            problem = error
        announce(wire, Round(f"who sends {words}", 0, self.parts.described), [], problem)
        assert graph is not None
        served = tell_halos(
            wire,
            list(plans.values()),
            list(own.values()),
            self.parts.described_graph.index_dtype,
            self.traffic,
        )
        return _Form(words, own, Halo(tuple(plans.values()), served), graph)

    def _plan(
        self, own: Mapping[str, OwnRows], is_typed: bool, averages: bool
    ) -> tuple[dict[str, HaloPlan], Block | TypedEdges]:
        graph = self.parts.described_graph
        edges = read_own_edges(self.parts.held_rows, self._joined, graph.index_dtype)
        sources, relations = edges.index.sources, edges.index.relations
        owners = self.parts.book.owners_of_nodes(sources)
        plans = {}
        for name, rows in own.items():
            at = is_of(sources, graph.nodes_of(name)) if is_typed else slice(None)
            plans[name] = plan_halo(
                sources[at],
                relations[at],
                edges.targets[at],
                owners[at],
                rows,
                rank=self.parts.rank,
                ranks=self.parts.ranks,
                averages=averages,
            )
        if is_typed:
            return plans, make_typed_edges(graph, edges, own, plans)
        return plans, make_block(edges, self._joined, plans[_ALL])

    def _known_type(self, node_type: str | None) -> str:
        names = self.parts.book.node_types
        if node_type is None and len(names) > 1:
            raise RowArgumentError(
                "node_type", "the name of a type", f"None, but there are {len(names)} node types"
            )
        return names[0] if node_type is None else node_type

    def __repr__(self) -> str:
        return f"WholeGraph(rank {self.parts.rank} of {self.parts.ranks}, {self._joined.count:,} own nodes)"


def _own_range(parts: Parts, node_type: str) -> range:
    start, own = parts.book.starts[node_type], parts.book.rows(node_type, parts.rank)
    return range(start + own.start, start + own.stop)


def _find_problem(x: Mapping[str, Any], own: Mapping[str, OwnRows]) -> Exception | None:
    """Why `x` is not a tensor of own rows for each name."""
    unknown = [name for name in x if name not in own]
    if unknown:
        return RowArgumentError("x", f"rows of {', '.join(own)}", f"also {', '.join(unknown)}")
    dtype = next((each.dtype for each in x.values() if isinstance(each, torch.Tensor)), None)
    for name, rows in own.items():
        each = x.get(name)
        expected = f"{rows.count:,} rows, one for each node of {name} that this rank owns"
        if not isinstance(each, torch.Tensor) or each.dim() < 1 or len(each) != rows.count:
            got = f"shape {tuple(each.shape)}" if isinstance(each, torch.Tensor) else repr(each)
            return RowArgumentError("x", expected, got)
        if not each.is_floating_point() or each.dtype != dtype:
            return RowArgumentError("x", "floating-point rows of one dtype", f"{each.dtype}")
        if each.device.type != "cpu":
            return RowArgumentError("x", "rows on the CPU, where ranks exchange", str(each.device))
    return None
