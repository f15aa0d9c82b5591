"""A stand-in for DGL with the part of its documented interface that graphs are exchanged by."""

from __future__ import annotations

from types import ModuleType

import torch

Kind = tuple[str, str, str]


class FakeDGLGraph:
    """Edges by canonical type, as `DGLGraph` hands them out."""

    def __init__(
        self, edges: dict[Kind, tuple[torch.Tensor, torch.Tensor]], counts: dict[str, int]
    ):
        self._edges, self._counts = edges, counts
        self.edata: dict[str, torch.Tensor] = {}

    @property
    def ntypes(self) -> list[str]:
        return list(self._counts)

    @property
    def canonical_etypes(self) -> list[Kind]:
        return list(self._edges)

    def num_nodes(self, ntype: str | None = None) -> int:
        return sum(self._counts.values()) if ntype is None else self._counts[ntype]

    def edges(
        self, form: str = "uv", order: str = "eid", etype: Kind | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert (form, order) == ("uv", "eid")
        if etype is None:
            assert len(self._edges) == 1, "Edge type name must be specified"
            etype = next(iter(self._edges))
        return self._edges[etype]


def make_fake_dgl() -> ModuleType:
    """A module with `graph` and `heterograph`."""

    def graph(data, *, num_nodes):
        return FakeDGLGraph({("_N", "_E", "_N"): data}, {"_N": num_nodes})

    def heterograph(data_dict, num_nodes_dict):
        # As DGL does, which sorts the types by name.
        counts = dict(sorted(num_nodes_dict.items()))
        return FakeDGLGraph(dict(sorted(data_dict.items())), counts)

    module = ModuleType("dgl")
    module.graph, module.heterograph = graph, heterograph
    return module
