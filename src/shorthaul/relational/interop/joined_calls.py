"""The graph of a model that `to_hetero` made, changed to call the layers of all relations at once.

PyG writes a call for each relation, and adds up what comes to a type two by two::

    first__a1 = self.first.b__y__a((x__b, x__a), edge_index__b__y__a)
    first__a2 = self.first.a__z__a(x__a, edge_index__a__z__a)
    first__b = self.first.a__x__b((x__a, x__b), edge_index__a__x__b)
    first__a = torch.add(first__a1, first__a2)
    ->
    first = self.first([(('b', 'y', 'a'), ((x__b, x__a), edge_index__b__y__a), {}), ...], 'sum')
    first__a = first['a']
    first__b = first['b']

Where results are not added up (a maximum, something of the user's in between), the call returns those of
each relation, and what follows stays as it is.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from shorthaul.module_swap import Swap, swap_class
from shorthaul.relational.inputs.parts import Types
from shorthaul.relational.interop.known_layers import CannotSwapError
from shorthaul.relational.layers.heterogeneous.to_hetero import RelationConvs, name_relation
from shorthaul.relational.layers.heterogeneous.together import Programs
from shorthaul.relational.layers.homogeneous.base import HomogeneousConv


@dataclass(frozen=True)
class JoinedCalls:
    """A graph that was changed, to be put back."""

    model: GraphModule
    before: Graph
    code: str  # of the changed graph
    swaps: list[Swap]

    def undo(self) -> None:
        """Give the model its graph back, unless somebody changed it since: then its calls stay joined,
        and call the layers one by one, as these are no longer ours.
        """
        if self.model.code != self.code:
            return
        for each in self.swaps:
            each.undo()
        self.model.graph = self.before


class GraphChange:
    """A copy of a model's graph, in which the calls of a container's layers are joined one by one."""

    def __init__(self, model: GraphModule) -> None:
        self.model = model
        self.graph = copy.deepcopy(model.graph)
        self.containers: list[nn.Module] = []

    def join(self, prefix: str) -> None:
        """Join the calls of the layers below `prefix`; raise `CannotSwapError` where that is not possible."""
        container = self.model.get_submodule(prefix)
        if not any(isinstance(each, HomogeneousConv) for each in container.children()):
            raise CannotSwapError("none of its layers is ours")
        calls = _find_calls(self.graph, prefix)
        if not calls or type(container) is not nn.ModuleDict:
            raise CannotSwapError("its model's graph does not call its layers by name")
        rounds = _split_rounds(calls)
        relations = _find_relations(self.graph)
        joined = [_read_round(each, relations) for each in rounds]
        if all(len(each) == 1 for each in rounds):
            raise CannotSwapError("there is one relation, whose layer is called as it is")
        for members, types in zip(rounds, joined, strict=True):
            _join_round(self.graph, prefix, members, types)
        self.containers.append(container)

    def finish(self) -> JoinedCalls:
        """Give the model the changed graph."""
        before = self.model.graph
        swaps = [
            swap_class(each, RelationConvs, {"programs": Programs()}) for each in self.containers
        ]
        self.graph.lint()
        self.model.graph = self.graph
        return JoinedCalls(self.model, before, self.model.code, swaps)


def _find_calls(graph: Graph, prefix: str) -> list[Node]:
    return [
        node
        for node in graph.nodes
        if node.op == "call_module" and str(node.target).rpartition(".")[0] == prefix
    ]


def _split_rounds(calls: Sequence[Node]) -> list[list[Node]]:
    """Calls of the same layers again belong to another layer of the model."""
    rounds: list[list[Node]] = [[]]
    for node in calls:
        if any(node.target == each.target for each in rounds[-1]):
            rounds.append([])
        rounds[-1].append(node)
    return rounds


def _find_relations(graph: Graph) -> dict[str, Types]:
    """The relations whose edges, or other tensors, the graph reads, by the names of their layers."""
    keys = [
        node.args[1]
        for node in graph.nodes
        if node.op == "call_method" and node.target == "get" and len(node.args) > 1
    ]
    return {
        name_relation(key): (key[0], key[1], key[2])
        for key in keys
        if isinstance(key, tuple) and len(key) == 3 and all(isinstance(each, str) for each in key)
    }


def _read_round(members: Sequence[Node], relations: Mapping[str, Types]) -> list[Types]:
    """The relations of calls that can be made at once."""
    types, node = [], members[0]
    for each in members:
        name = str(each.target).rpartition(".")[2]
        if name not in relations:
            raise CannotSwapError(f"its model's graph reads nothing of a relation `{name}`")
        if any(other in members for other in each.all_input_nodes):
            raise CannotSwapError(f"`{each.name}` reads what another relation made")
        if node is not each:
            raise CannotSwapError(f"`{node.name}` stands between the calls of its relations")
        types.append(relations[name])
        node = node.next
    return types


def _join_round(graph: Graph, prefix: str, members: Sequence[Node], types: Sequence[Types]) -> None:
    """One call for all; the sums of the results go, where these are all that is made of them."""
    sums = _find_sums(members, types)
    aggr = None if sums is None else sums.aggr
    with graph.inserting_before(members[0]):
        asked = [
            (each, tuple(node.args), dict(node.kwargs))
            for each, node in zip(types, members, strict=True)
        ]
        made = graph.call_module(prefix, (asked, aggr))
        keys = list(range(len(members))) if sums is None else list(sums.roots)
        results = [graph.call_function(operator.getitem, (made, key)) for key in keys]
    replaced = list(members) if sums is None else list(sums.roots.values())
    for node, result in zip(replaced, results, strict=True):
        node.replace_all_uses_with(result)
    gone = [*members, *([] if sums is None else sums.steps)]
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in sorted(gone, key=order.__getitem__, reverse=True):
        graph.erase_node(node)


@dataclass(frozen=True)
class _Sums:
    aggr: str
    roots: dict[str, Node]  # by type of targets: the node that has the result
    steps: list[Node]  # all that is left out, besides the calls


def _find_sums(members: Sequence[Node], types: Sequence[Types]) -> _Sums | None:
    """How results are added up, if all that are made for a type are, and nothing else reads them."""
    reached: dict[str, list[Node]] = {}
    for node, each in zip(members, types, strict=True):
        reached.setdefault(each[2], []).append(node)
    roots, steps = {}, []
    for name, made in reached.items():
        waiting = list(made)
        while len(waiting) > 1:
            step = _find_sum(waiting)
            if step is None:
                return None
            waiting = [each for each in waiting if each not in step.args] + [step]
            steps.append(step)
        roots[name] = waiting[0]
    several = [name for name, made in reached.items() if len(made) > 1]
    means = {name: _find_mean(roots[name], len(reached[name])) for name in several}
    divided = [each for each in means.values() if each is not None]
    if not several or len(divided) < len(several):
        return _Sums("sum", roots, steps)  # divisions that there are stay
    return _Sums(
        "mean", roots | {name: each for name, each in means.items() if each}, steps + divided
    )


def _find_sum(waiting: Sequence[Node]) -> Node | None:
    """What adds two of these up, and is the only one that reads them."""
    for node in waiting:
        for user in node.users:
            is_sum = user.op == "call_function" and user.target is torch.add and not user.kwargs
            operands = user.all_input_nodes
            is_sum = is_sum and len(user.args) == 2 and len(operands) == 2
            if is_sum and all(each in waiting and len(each.users) == 1 for each in operands):
                return user
    return None


def _find_mean(root: Node, count: int) -> Node | None:
    if len(root.users) != 1:
        return None
    (user,) = root.users
    is_mean = user.op == "call_function" and user.target is torch.div and not user.kwargs
    return user if is_mean and user.args == (root, count) else None
