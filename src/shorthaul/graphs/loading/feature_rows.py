"""The features of a graph's nodes as tables of rows, one for all nodes or one for each type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.loading.mini_batch import Rows
from shorthaul.storage import BufferPool
from shorthaul.tensors import UnifiedTensor
from shorthaul.tensors.cuda.gather import gather_for_device
from shorthaul.tensors.tables.table import HostTable, RowTable

# Below this, malloc has warm memory; above, it maps fresh pages for every batch.
_POOLED_FROM_BYTES = 64 * 1024


class FeatureRows:
    """Finds the rows of nodes by their global ids.

    >>> graph = RelationalGraph.from_edges([0], [1], num_nodes=3)
    >>> rows = FeatureRows(graph, torch.tensor([[0.0], [1.0], [2.0]]))
    >>> rows.gather(torch.tensor([2, 0]), BufferPool("1MiB"))
    (tensor([[2.],
            [0.]]), None)
    """

    def __init__(self, graph: RelationalGraph, features: Any) -> None:
        self.graph = graph
        self.tables: dict[str, RowTable] = {}
        self.table: RowTable | None = None
        if isinstance(features, Mapping):
            for name, each in features.items():
                count = len(graph.nodes_of(name))
                self.tables[name] = as_table(each, f"features[{name!r}]", count)
        elif features is not None:
            self.table = as_table(features, "features", graph.num_nodes)
        self._is_typed = isinstance(features, Mapping)

    def gather(
        self, nodes: torch.Tensor, pool: BufferPool, device: torch.device | None = None
    ) -> tuple[Rows | None, Mapping[str, torch.Tensor] | None]:
        """The rows of `nodes`; for typed features by type, with the positions of each type's nodes.

        A CUDA `device` reads rows in memory by itself; for any other they are gathered here.
        """
        if self.table is not None:
            return _gather(self.table, nodes, pool, device), None
        if not self._is_typed:
            return None, None
        found = self._split(nodes)
        rows = {
            name: _gather(self.tables[name], ids, pool, device) for name, (ids, _) in found.items()
        }
        return rows, {name: positions for name, (_, positions) in found.items()}

    def expect(self, nodes: torch.Tensor) -> None:
        """Tell tables whose caches look ahead that these rows will be gathered."""
        if self.table is not None:
            self.table.expect(nodes)
        elif any(each.looks_ahead for each in self.tables.values()):
            for name, (ids, _) in self._split(nodes).items():
                self.tables[name].expect(ids)

    def keep_expected(self, budget_bytes: int) -> None:
        """Have tables on disk that keep no rows keep those that coming batches ask for again.

        What there is of `budget_bytes` is shared out evenly; 0 leaves tables as they are.
        """
        tables = [each for each in self.all_tables() if each.gains_from_cache]
        for table in tables if budget_bytes else ():
            table.keep_expected(budget_bytes // len(tables))

    def forget_expected(self) -> None:
        """Tell them that the rest of what was announced will not be asked for."""
        for table in self.all_tables():
            table.forget_expected()

    def all_tables(self) -> list[RowTable]:
        """Every table."""
        return [self.table] if self.table is not None else list(self.tables.values())

    def _split(self, nodes: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """For each type with features: ids within the type, and positions in `nodes`."""
        found = {}
        for name in self.tables:
            of_type = self.graph.nodes_of(name)
            is_own = (nodes >= of_type.start) & (nodes < of_type.stop)
            positions = is_own.nonzero()[:, 0]
            found[name] = (nodes[positions] - of_type.start, positions)
        return found


def as_table(values: Any, name: str, rows: int, counted: str = "nodes") -> RowTable:
    """`values` as a table of `rows` rows: a tensor, a unified tensor or a table."""
    if isinstance(values, torch.Tensor) and values.requires_grad:
        raise SamplingError(
            f"{name} requires gradients, which do not flow through a loader.\n"
            "  Leave `features` out and gather in the step: `table[batch.input_nodes]`."
        )
    if isinstance(values, RowTable):
        table = values
    elif isinstance(values, UnifiedTensor):
        table = values.table
    elif isinstance(values, torch.Tensor):
        table = HostTable(values)
    else:
        raise SamplingError(
            f"{name} must be a tensor or a unified tensor, got {type(values).__name__}.\n"
            "  `sh.unified(array)` takes numpy arrays and memmaps, `sh.open(path)` files."
        )
    if table.shape[0] != rows:
        raise SamplingError(
            f"{name} must have a row for each of {rows:,} {counted}, got shape {tuple(table.shape)}."
        )
    return table


def gather_beside(table: RowTable, ids: torch.Tensor) -> torch.Tensor:
    """The rows of `ids`, where `ids` lie."""
    if ids.device.type == "cpu":
        return table.gather(ids)
    return gather_for_device(table, ids, ids.device)


def _gather(
    table: RowTable, ids: torch.Tensor, pool: BufferPool, device: torch.device | None
) -> torch.Tensor:
    if device is not None and device.type == "cuda":
        return gather_for_device(table, ids, device)
    shape = (ids.shape[0], *table.row_shape)
    size_bytes = table.dtype.itemsize * ids.shape[0]
    for size in table.row_shape:
        size_bytes *= size
    if size_bytes < _POOLED_FROM_BYTES:
        return table.gather(ids)
    return table.gather(ids, out=pool.take(size_bytes).tensor(table.dtype, shape))
