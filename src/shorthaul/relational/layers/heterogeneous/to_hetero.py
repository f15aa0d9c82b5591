"""The relations of a model that PyG's `to_hetero` made, computed together as a `HeteroConv`'s are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.inputs.parts import Types
from shorthaul.relational.layers.heterogeneous.together import (
    Call,
    Programs,
    explain_programs,
    run_apart,
    run_relations,
)

Asked = tuple[Types, Sequence[Any], Mapping[str, Any]]  # a relation, and what its layer is given


class RelationConvs(nn.ModuleDict):
    """What `accelerate` makes of the `ModuleDict` with a layer per relation: it can be called.

    The graph of the model calls it once where it called each of its layers, so that relations whose
    layers are alike are one program. The layers stay where they are, under their names.
    """

    programs: Programs

    def forward(self, asked: Sequence[Asked], aggr: str | None) -> Any:
        """Results by type of targets, added up ("sum", "mean"); by relation, in their order (None)."""
        stay_alone_after_fork()
        calls = [
            Call(types, self[name_relation(types)], arguments, named)
            for types, arguments, named in asked
        ]
        if aggr is None:
            return run_apart(calls, self.programs)
        return run_relations(calls, aggr, self.programs)

    def explain(self, **options: Any) -> str:
        """Every stage of each program of the last call; arguments as of `CompiledLayer.explain`."""
        return explain_programs(self.programs, options)


def name_relation(types: Sequence[str]) -> str:
    """The name under which `to_hetero` keeps the layer of a relation."""
    name = "__".join(types)
    for each in " -:":
        name = name.replace(each, "_")
    return name
