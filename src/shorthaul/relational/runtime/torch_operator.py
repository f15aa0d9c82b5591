"""Compiled layers as PyTorch operators: what `torch.compile` and `torch.export` record.

`shorthaul::relational_forward` takes the layer's tensors, the tensors of the edges (`traced_graph`)
and the *name* of the layer's program; `shorthaul::relational_backward` is its gradient. Shapes follow
from the arguments alone, so a model is traced without a graph.

What the forward kernels save for the backward ones has as many rows as the graph has (source,
relation) pairs, which nobody knows while tracing. It is no output. The operator returns a *token*
instead: a tensor of one number whose memory owns what was saved, and lets go of it when the tensor is
freed. A token that was copied or written to disk owns nothing, and the forward kernels run again.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import struct
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from shorthaul.errors import LayerArgumentError, SecondDerivativeError
from shorthaul.jit import define_operator
from shorthaul.relational.backends import reference
from shorthaul.relational.compiler import Compilation
from shorthaul.relational.frontend.declarations import Declaration
from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes.differentiate import GRADIENT
from shorthaul.relational.runtime.arguments import (
    arrange_arrived,
    cast_as_autocast,
    count_relations,
    device_of,
    prepare_arguments,
    return_gradient,
    return_results,
)
from shorthaul.relational.runtime.autograd import read_outputs, run_gradients
from shorthaul.relational.runtime.traced_graph import BUILDERS, EdgeSizes, trace_graph
from shorthaul.relational.topology.device_topology import on_device
from shorthaul.relational.topology.topology import Topology


class Recorded(Protocol):
    """A `CompiledFunction`, as far as operators need it."""

    name: str
    program: Program
    evaluation_program: Program
    declarations: dict[str, Declaration]
    without: tuple[str, ...]
    input_names: tuple[str, ...]
    names_per_relation: tuple[str, ...]
    has_dropout: bool

    def __init__(
        self,
        program: Program,
        declarations: Mapping[str, Declaration],
        without: Collection[str] = (),
    ) -> None: ...

    def uses_kernels(self, topology: Topology) -> bool:
        """Whether generated kernels run where the topology is."""

    def compile(
        self,
        program: Program,
        topology: Topology,
        dtype: torch.dtype,
        gradients: tuple[str, ...],
    ) -> Compilation:
        """The compilation for this dtype and these gradients."""


# Which graph, and which of the layer's programs: the same in both operators.
_CALL = (
    "Tensor[] tensors, Tensor[] edges, Tensor? seed, str layer, str form, SymInt[] nodes, "
    "SymInt targets, SymInt relations, SymInt num_edges, int[] ends, bool is_training"
)


# Layers by name. A recorded model may outlive the layer: what is needed to make it again is kept.

_alive: weakref.WeakValueDictionary[str, Recorded] = weakref.WeakValueDictionary()
_recipes: dict[str, Any] = {}  # by the digest of the program
_revived: dict[str, Recorded] = {}
_serials = itertools.count()


def name_function(function: Recorded) -> str:
    """A name under which operators find `function`, and its equal in another process."""
    text = f"{function.program.text()}\n{function.without}"
    digest = f"{function.program.name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    name = f"{digest}:{next(_serials)}"
    _alive[name] = function
    _recipes[digest] = (type(function), function.program, function.declarations, function.without)
    return name


def find_function(name: str) -> Recorded:
    """The layer of this name, or one with the same program."""
    found = _alive.get(name)
    if found is not None:
        return found
    digest = name.partition(":")[0]
    if digest not in _recipes:
        raise LayerArgumentError(
            f"a recorded model calls the layer `{digest}`, which this process has not made",
            "import and make the same layer (same function, sizes and options) before running it",
        )
    if digest not in _revived:
        kind, *recipe = _recipes[digest]
        _revived[digest] = kind(*recipe)
    return _revived[digest]


# Tokens.


class _Owner(bytearray):
    """Memory of a token. PyTorch holds it for as long as the tensor lives."""

    saved: Any


_owners: weakref.WeakValueDictionary[int, _Owner] = weakref.WeakValueDictionary()
_numbers = itertools.count(secrets.randbits(61))  # unlike those of any other process
_NOTHING = -1


def make_token(saved: Any) -> torch.Tensor:
    """A tensor that owns `saved`."""
    number = next(_numbers)
    owner = _Owner(struct.pack("q", number))
    owner.saved = saved
    _owners[number] = owner
    return torch.frombuffer(owner, dtype=torch.int64)


def read_token(token: torch.Tensor) -> Any:
    """What a token owns, or None if it is a copy."""
    owner = _owners.get(int(token))
    return None if owner is None else owner.saved


# The operators.


@dataclass(frozen=True)
class _Call:
    """One call: the layer, its program, the graph and the inputs as kernels read them."""

    function: Recorded
    program: Program
    topology: Topology
    values: dict[str, torch.Tensor]
    seed: int

    @classmethod
    def of(
        cls,
        tensors: Sequence[torch.Tensor],
        edges: Sequence[torch.Tensor],
        seed: torch.Tensor | None,
        layer: str,
        form: str,
        nodes: Sequence[int],
        targets: int,
        relations: int,
        num_edges: int,  # noqa: ARG003  (the edges know it; shapes are inferred from it)
        ends: Sequence[int],
        is_training: bool,
    ) -> _Call:
        function = find_function(layer)
        program = function.program if is_training else function.evaluation_program
        graph = BUILDERS[form](edges, EdgeSizes(tuple(nodes), targets, relations, tuple(ends)))
        named = dict(zip(function.input_names, tensors, strict=True))
        topology = on_device(Topology.of(graph, targets), device_of(named))
        values = prepare_arguments(program, topology, named)
        return cls(function, program, topology, values, 0 if seed is None else int(seed))

    def run(self, gradients: tuple[str, ...]) -> tuple[tuple[torch.Tensor, ...], Any]:
        """The outputs, and the values that the gradients need."""
        if not self.function.uses_kernels(self.topology):
            found = reference.run(self.program, self.topology, self.values, self.seed)
            return tuple(found[name] for name, _ in self.program.outputs), {}
        compiled = self.compile(gradients)
        run = compiled.start_run(self.topology, dict(self.values), self.seed)
        run.forward()
        saved = {name: run.values[name] for name in compiled.plan.saved} if gradients else {}
        return read_outputs(compiled, run), saved

    def run_back(
        self, gradients: tuple[str, ...], saved: Mapping[str, torch.Tensor], arrived: Any
    ) -> dict[str, torch.Tensor]:
        """The gradients of the inputs, by name."""
        compiled = self.compile(gradients)
        values = {**self.values, **saved}
        if self.function.uses_kernels(self.topology):
            return run_gradients(compiled, self.topology, values, tuple(arrived), self.seed)
        for (name, _), each in zip(self.program.outputs, arrived, strict=True):
            values[GRADIENT + name] = each
        made = reference.run(compiled.program, self.topology, values, self.seed)
        return {name: made[GRADIENT + name] for name in gradients}

    def compile(self, gradients: tuple[str, ...]) -> Compilation:
        """The layer for the inputs' dtype, with these gradients."""
        dtype = next(iter(self.values.values())).dtype
        return self.function.compile(self.program, self.topology, dtype, gradients)


def _forward(*arguments: Any) -> list[torch.Tensor]:
    *call, wanted = arguments
    made = _Call.of(*call)
    gradients = tuple(made.function.input_names[each] for each in wanted)
    outputs, saved = made.run(gradients)
    outputs = return_results(made.program, made.topology, outputs)
    token = (
        make_token((made, gradients, saved))
        if gradients
        else torch.tensor([_NOTHING], dtype=torch.int64, device="cpu")
    )
    return [*_own_memory(outputs, call[0]), token]


def _own_memory(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Outputs that share no memory with inputs or with each other, as operators promise."""
    taken = {each.untyped_storage().data_ptr() for each in inputs}
    found = []
    for each in outputs:
        where = each.untyped_storage().data_ptr()
        found.append(each.clone() if where in taken else each.contiguous())
        taken.add(where)
    return found


def _backward(*arguments: Any) -> list[torch.Tensor]:
    arrived, token, *call, wanted = arguments
    function, tensors = find_function(call[3]), call[0]
    names = tuple(function.input_names[each] for each in wanted)
    owned = read_token(token)
    if owned is not None and set(names) <= set(owned[1]):
        made, gradients, saved = owned
    else:
        made, gradients = _Call.of(*call), names
        _, saved = made.run(gradients)
    arranged = arrange_arrived(made.program, made.topology, arrived)
    found = made.run_back(gradients, saved, arranged)
    returned = [
        return_gradient(made.program, made.topology, name, found[name], tensors[each])
        for name, each in zip(names, wanted, strict=True)
    ]
    return _own_memory(returned, [*tensors, *arrived])


def _output_shapes(
    layer: str, nodes: Sequence[int], targets: int, relations: int, num_edges: int
) -> list[tuple[int, ...]]:
    function = find_function(layer)
    rows: dict[Space, Any] = {
        Space.ONE: 1,
        Space.RELATION: relations,
        Space.NODE_TYPE: len(nodes),
        Space.TARGET: targets,
        Space.EDGE: num_edges,
    }
    shapes = []
    for step in (function.program[value] for value in function.program.output_values()):
        if step.space is Space.NODE:
            count: Any = sum(nodes)
        elif step.space in rows:
            count = rows[step.space]
        else:
            raise LayerArgumentError(
                f"{function.program.name} returns a value per {step.space.value}, whose number is "
                "not known inside torch.compile",
                "return a value per node, target or edge",
            )
        shapes.append((count, *step.shape))
    return shapes


def _fake_forward(*arguments: Any) -> list[torch.Tensor]:
    tensors, _, _, layer, _, nodes, targets, relations, num_edges, *_ = arguments
    shapes = _output_shapes(layer, nodes, targets, relations, num_edges)
    outputs = [tensors[0].new_empty(shape) for shape in shapes]
    # A token is a number of this process: it stays in the host's memory.
    return [*outputs, tensors[0].new_empty(1, dtype=torch.int64, device="cpu")]


def _fake_backward(*arguments: Any) -> list[torch.Tensor]:
    tensors, wanted = arguments[2], arguments[-1]
    return [tensors[each].new_empty(tensors[each].shape) for each in wanted]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Sequence[torch.Tensor]) -> None:
    tensors, edges, seed, *rest = inputs
    ctx.save_for_backward(*tensors, *edges, *([] if seed is None else [seed]), output[-1])
    ctx.counts = len(tensors), len(edges)
    ctx.rest = rest[:-1]
    # A list without elements could be one of tensors: PyTorch wants a list back for it.
    ctx.no_gradients = tuple([] if isinstance(each, list) and not each else None for each in rest)
    ctx.shapes = [each.shape for each in output[:-1]]


def _differentiate(ctx: Any, arrived: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    *saved, token = ctx.saved_tensors
    many, edge_count = ctx.counts
    tensors, edges, seed = saved[:many], saved[many : many + edge_count], saved[many + edge_count :]
    wanted = [number for number, needs in enumerate(ctx.needs_input_grad[0]) if needs]
    whole = [
        tensors[0].new_zeros(shape) if each is None else each
        for shape, each in zip(ctx.shapes, arrived[:-1], strict=True)
    ]
    made = relational_backward.overload(
        whole, token, tensors, edges, seed[0] if seed else None, *ctx.rest, wanted
    )
    found: list[torch.Tensor | None] = [None] * many
    for number, gradient in zip(wanted, made, strict=True):
        found[number] = gradient
    return (found, [None] * edge_count, None, *ctx.no_gradients)


def _keep_name(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.name = find_function(inputs[5]).program.name


def _refuse(ctx: Any, *arrived: Any) -> Any:
    raise SecondDerivativeError(ctx.name)


relational_forward = define_operator(
    f"relational_forward({_CALL}, int[] gradients) -> Tensor[]",
    cpu=_forward,
    cuda=_forward,
    fake=_fake_forward,
    setup_context=_setup,
    backward=_differentiate,
)
relational_backward = define_operator(
    f"relational_backward(Tensor[] arrived, Tensor token, {_CALL}, int[] wanted) -> Tensor[]",
    cpu=_backward,
    cuda=_backward,
    fake=_fake_backward,
    setup_context=_keep_name,
    backward=_refuse,
)


def record_call(
    function: Recorded,
    graph: Any,
    tensors: Mapping[str, torch.Tensor],
    training: bool,
    num_targets: int | None,
) -> Any:
    """A call of `function` as an operator in the graph that is being traced."""
    for name in function.input_names:
        if tensors.get(name) is None:
            raise LayerArgumentError(
                f"{function.program.name} needs `{name}`", f"pass {name}=<tensor>"
            )
    tensors = cast_as_autocast(tensors)
    traced = trace_graph(graph, num_targets, count_relations(function.names_per_relation, tensors))
    values = [tensors[name] for name in function.input_names]
    wanted: list[int] = []
    if torch.is_grad_enabled():
        wanted = [number for number, each in enumerate(values) if each.requires_grad]
    seed = (
        torch.randint(2**62, (), dtype=torch.int64, device="cpu")
        if training and function.has_dropout
        else None
    )
    results = relational_forward.overload(
        values,
        traced.tensors,
        seed,
        function.name,
        traced.form,
        list(traced.nodes_per_type),
        traced.num_targets if num_targets is None else num_targets,
        traced.num_relations,
        traced.num_edges,
        list(traced.ends),
        training,
        wanted,
    )
    return results[0] if len(results) == 2 else tuple(results[:-1])
