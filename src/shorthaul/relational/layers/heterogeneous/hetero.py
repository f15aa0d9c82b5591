"""A layer for each relation of a heterogeneous graph, computed together: PyG's `HeteroConv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.inputs.parts import Types
from shorthaul.relational.layers.heterogeneous.together import (
    AGGREGATIONS,
    Call,
    Programs,
    explain_programs,
    run_relations,
)


class HeteroConv(nn.Module):
    """PyG's `HeteroConv`: relations whose layers are alike are one program, with weights per relation.

    Messages of `SAGEConv`, `GraphConv`, `GCNConv`, `GATConv`, `GATv2Conv` and `TransformerConv` are
    computed together, and added up over relations as they are made; what these layers do to the target
    itself is one product per type of nodes. `GINConv` is computed with its network, where that is
    linear maps and activations. Other layers are called relation by relation.

    >>> import torch, shorthaul as sh
    >>> relations = ("author", "writes", "paper"), ("paper", "cites", "paper")
    >>> layer = sh.relational.HeteroConv({each: sh.relational.SAGEConv((8, 8), 4) for each in relations})
    >>> x = {"author": torch.randn(3, 8), "paper": torch.randn(4, 8)}
    >>> edges = {each: torch.tensor([[0, 1, 2], [0, 0, 3]]) for each in relations}
    >>> layer(x, edges)["paper"].shape
    torch.Size([4, 4])

    Args:
        convs: A layer for each relation: (source type, name, target type).
        aggr: How a target's results of several relations become one: `"sum"` (default), `"mean"`,
            `"min"`, `"max"`, `"cat"`, or None to stack them.
    """

    def __init__(
        self, convs: Mapping[tuple[str, str, str], nn.Module], aggr: str | None = "sum"
    ) -> None:
        super().__init__()
        if aggr not in AGGREGATIONS:
            raise LayerArgumentError(
                f"aggr is {aggr!r}", f"it is one of {', '.join(map(repr, AGGREGATIONS))}"
            )
        self.aggr = aggr
        names = ["<" + "___".join(each).replace(".", "#") + ">" for each in convs]  # as PyG's
        self.convs = nn.ModuleDict(dict(zip(names, convs.values(), strict=True)))
        self.edge_types = tuple((one, name, other) for one, name, other in convs)
        self.programs = Programs()

    def reset_parameters(self) -> None:
        """Fresh parameters in every layer."""
        for each in self.convs.children():
            each.reset_parameters()  # type: ignore[operator]

    def forward(self, *dicts: Mapping[Any, Any], **named: Mapping[Any, Any]) -> dict[str, Any]:
        """New features per type of nodes.

        Args:
            dicts: Features per type of nodes, edges per relation, and what else the layers take by
                place, per relation.
            named: What they take by name, as `edge_attr_dict={relation: attributes}`.
        """
        stay_alone_after_fork()
        return run_relations(self._read(dicts, named), self.aggr, self.programs)

    def _read(self, dicts: Sequence[Any], named: Mapping[str, Any]) -> list[Call]:
        """What each relation's layer is called with; those that have nothing of their own are left out."""
        wrong = [name for name in named if not name.endswith("_dict")]
        if wrong:
            raise LayerArgumentError(
                f"{', '.join(wrong)} is given by name", "such names end with _dict: edge_attr_dict"
            )
        calls = []
        for types, conv in zip(self.edge_types, self.convs.values(), strict=True):
            found = [_choose(each, types) for each in dicts]
            by_name = {name.removesuffix("_dict"): _choose(v, types) for name, v in named.items()}
            if any(types in each for each in (*dicts, *named.values())):
                arguments = [value for value, is_there in found if is_there]
                more = {name: value for name, (value, is_there) in by_name.items() if is_there}
                calls.append(Call(types, conv, arguments, more))
        return calls

    def explain(self, **options: Any) -> str:
        """Every stage of each program of the last call; arguments as of `CompiledLayer.explain`."""
        return explain_programs(self.programs, options)

    def extra_repr(self) -> str:
        """How results are aggregated."""
        return f"aggr={self.aggr}"


def _choose(values: Mapping[Any, Any], types: Types) -> tuple[Any, bool]:
    """What one argument is for a relation, as PyG finds it; and whether there is any."""
    source, _, target = types
    if types in values:
        return values[types], True
    if source == target:
        return values.get(source), source in values
    is_there = source in values or target in values
    return (values.get(source), values.get(target)), is_there
