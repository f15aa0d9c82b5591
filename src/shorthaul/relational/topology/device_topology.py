"""A topology on a GPU: every list is built on the host, where the graph's indexes are, and moved once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.topology.topology import Members, Tiles, Topology


def on_device(topology: Topology, device: torch.device) -> Topology:
    """The topology with its lists on `device`; kept with the topology itself."""
    if topology.edge_ids.device == device:
        return topology
    key = ("on", device)
    if key not in topology._kept:
        topology._kept[key] = DeviceTopology(
            topology.graph, topology.edge_ids.to(device), topology.num_targets, host=topology
        )
    found: Topology = topology._kept[key]
    return found


@dataclass(frozen=True, eq=False)
class DeviceTopology(Topology):
    """What a program may ask of a graph, answered on a device."""

    host: Topology = field(kw_only=True)

    def way(self, fine: Space, way: str, by: str | None = None) -> torch.Tensor:
        """The coarse row of every fine row."""
        found: torch.Tensor = self._moved("way", fine, way, by)
        return found

    def members(self, fine: Space, way: str) -> Members:
        """The fine rows of every coarse row."""
        return Members(*self._moved("members", fine, way))

    def count(self, of: Space, way: str, dtype: torch.dtype) -> torch.Tensor:
        """How many rows of `of` lead to each coarse row, as numbers."""
        found: torch.Tensor = self._moved("count", of, way, dtype)
        return found

    def tiles(self, fine: Space, way: str, rows_per_tile: int) -> Tiles:
        """The fine rows of each coarse row, cut into tiles."""
        return Tiles(*self._moved("tiles", fine, way, rows_per_tile))

    def buckets(self, fine: Space, way: str, limits: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Coarse rows by how many fine rows they have."""
        found: tuple[torch.Tensor, ...] = self._moved("buckets", fine, way, limits)
        return found

    def _moved(self, question: str, *arguments: Any) -> Any:
        key = (question, *arguments)
        if key not in self._kept:
            answer = getattr(self.host, question)(*arguments)
            device = self.edge_ids.device
            if isinstance(answer, torch.Tensor):
                self._kept[key] = answer.to(device)
            else:
                self._kept[key] = tuple(
                    None if each is None else each.to(device) for each in answer
                )
        return self._kept[key]
