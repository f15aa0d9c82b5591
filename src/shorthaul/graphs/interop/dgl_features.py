"""shorthaul's tables as DGL's feature storages: what `fetch` hands out lies in memory or on disk.

::

    from shorthaul.graphs.interop.dgl_features import attach_features

    attach_features(dgl_graph, {"feat": sh.open("features.npy")})
    sampler = dgl.dataloading.NeighborSampler([5, 10, 15], prefetch_node_feats=["feat"])
    for inputs, seeds, blocks in dgl.dataloading.DataLoader(dgl_graph, train, sampler):
        x = blocks[0].srcdata["feat"]

DGL itself is never imported here: a storage is whatever has a `fetch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.loading.feature_rows import as_table
from shorthaul.tensors.tables.table import RowTable


class DGLFeatures:
    """One table, or one for each type, with the interface of DGL's `FeatureStorage`.

    >>> import torch
    >>> features = DGLFeatures(torch.tensor([[1.0], [2.0], [3.0]]))
    >>> features.fetch(torch.tensor([2, 0]), "cpu")
    tensor([[3.],
            [1.]])
    """

    def __init__(self, values: Any) -> None:
        self.tables: RowTable | dict[str, RowTable]
        if isinstance(values, Mapping):
            self.tables = {name: _as_table(each, name) for name, each in values.items()}
        else:
            self.tables = _as_table(values, "features")

    def requires_ddp(self) -> bool:
        """Never: each process reads the table on its own."""
        return False

    def fetch(
        self,
        indices: Any,
        device: torch.device | str,
        pin_memory: bool = False,
        **options: Any,
    ) -> Any:
        """The rows that `indices` name, on `device`; by type where `indices` are."""
        if isinstance(indices, Mapping):
            if not isinstance(self.tables, dict):
                raise SamplingError("indices by type need features by type; these have one table.")
            missing = [str(each) for each in indices if each not in self.tables]
            if missing:
                raise SamplingError(
                    f"there are no features of type {', '.join(missing)}; there are those of "
                    f"{', '.join(self.tables)}."
                )
            return {
                name: _fetch(self.tables[name], each, device, pin_memory, options)
                for name, each in indices.items()
            }
        if isinstance(self.tables, dict):
            raise SamplingError("features by type need indices by type, as a mapping.")
        return _fetch(self.tables, indices, device, pin_memory, options)


def attach_features(graph: Any, features: Mapping[str, Any], node_type: str | None = None) -> None:
    """Let `graph`, a DGL graph, find these node features where its samplers prefetch them.

    They do not become part of `graph.ndata`: a table on disk has no tensor to put there.
    """
    rows = graph.num_nodes(node_type)
    storages: dict[tuple[str, str], DGLFeatures] = getattr(graph, "_shorthaul_features", {})
    kind = graph.ntypes[0] if node_type is None else node_type
    for name, values in features.items():
        storage = DGLFeatures(values)
        assert isinstance(storage.tables, RowTable)
        as_table(storage.tables, name, rows)
        storages[kind, name] = storage
    if hasattr(graph, "_shorthaul_features"):
        return
    find_in_graph = graph.get_node_storage

    def get_node_storage(key: str, ntype: str | None = None) -> Any:
        found = storages.get((graph.ntypes[0] if ntype is None else ntype, key))
        return find_in_graph(key, ntype) if found is None else found

    graph._shorthaul_features = storages
    graph.get_node_storage = get_node_storage


def _as_table(values: Any, name: str) -> RowTable:
    rows = values.shape[0] if hasattr(values, "shape") and len(values.shape) else 0
    return as_table(values, name, rows)


def _fetch(
    table: RowTable,
    ids: torch.Tensor,
    device: torch.device | str,
    pin_memory: bool,
    options: Mapping[str, Any],
) -> torch.Tensor:
    ids = ids.cpu()
    shape = (ids.shape[0], *table.row_shape)
    out = (
        torch.empty(shape, dtype=table.dtype, pin_memory=True, device="cpu") if pin_memory else None
    )
    return table.gather(ids, out).to(device, **options)
