"""A compiled layer as an `nn.Module`, and the decorator that makes one out of an author's function."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import Block, RelationalGraph
from shorthaul.jit.operators import count_dispatch_modes, is_functional
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.backends import reference
from shorthaul.relational.backends.choice import choose_backend
from shorthaul.relational.compiler import Compilation, compile_program
from shorthaul.relational.frontend.declarations import Declaration
from shorthaul.relational.frontend.trace import read_declarations, trace
from shorthaul.relational.inspection.explain import Explanation, read_source
from shorthaul.relational.ir.program import Program, drop_unused
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes.rewriting import GraphSizes, rewrite
from shorthaul.relational.planning.estimate import Machine
from shorthaul.relational.runtime.arguments import (
    cast_as_autocast,
    count_relations,
    device_of,
    name_features,
    prepare_arguments,
    read_all_features,
    require_graph,
    require_known_sizes,
    return_results,
)
from shorthaul.relational.runtime.autograd import run_recorded
from shorthaul.relational.runtime.dropout_seed import draw_seed
from shorthaul.relational.runtime.torch_operator import name_function, record_call
from shorthaul.relational.runtime.traced_graph import TracedGraph
from shorthaul.relational.topology.block_graph import graph_of_block
from shorthaul.relational.topology.device_topology import on_device
from shorthaul.relational.topology.topology import Topology
from shorthaul.units import parse_bytes

_compiling = threading.Lock()  # threads that meet a layer at once compile it once


class LayerDefinition:
    """An author's function. Called with sizes, it makes a layer with fresh parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.name = function.__name__
        self.function = function
        self.declarations = read_declarations(function)
        self.options = tuple(
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        )
        widths = [name for each in self.declarations.values() for name in each.names()]
        self.size_names = tuple(dict.fromkeys([*widths, *self.options]))

    def __call__(
        self,
        *,
        relations: int = 1,
        node_types: int = 1,
        without: Collection[str] = (),
        memory_budget: int | str | None = None,
        **sizes: Any,
    ) -> CompiledLayer:
        """A layer for `relations` relations and `node_types` types of nodes, with these widths.

        `without` names passes to leave out, to see what they are worth. `memory_budget`, such as
        "500MiB", is the most that the layer keeps for the backward pass; the rest is computed again.
        """
        require_known_sizes(self.name, self.size_names, sizes)
        options = {name: sizes[name] for name in self.options if name in sizes}
        widths = {name: value for name, value in sizes.items() if isinstance(value, int)}
        made = CompiledLayer(self, relations, node_types, widths, options, without)
        made.function.memory_budget = memory_budget
        return made

    def compile(
        self,
        sizes: Mapping[str, int],
        options: Mapping[str, Any],
        absent: Collection[str] = (),
        without: Collection[str] = (),
    ) -> CompiledFunction:
        """The function at these sizes, with tensors for all arguments but the absent ones."""
        program = trace(self.function, sizes, options, absent)
        present = {name: d for name, d in self.declarations.items() if name not in absent}
        return CompiledFunction(program, present, without, read_source(self.function))

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerDefinition:
        return self  # it does not change

    def __reduce__(self) -> tuple[Any, ...]:
        # The function itself cannot be found by its name: this object bears it.
        return _find_definition, (self.function.__module__, self.function.__qualname__)


def _find_definition(module: str, name: str) -> LayerDefinition:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    definition: LayerDefinition = found
    return definition


def layer(function: Callable[..., Any]) -> LayerDefinition:
    """Compile a function over symbolic nodes and edges into layers; see `docs/relational.md`.

    >>> import torch
    >>> from shorthaul.relational import NodeFeature, RelationalGraph, Weight, layer, linear
    >>> @layer
    ... def rgcn(g, x: NodeFeature("width"), weight: Weight("relation", "width", "out")):
    ...     for n in g.target_nodes():
    ...         for e in n.incoming_edges():
    ...             n.out += linear(e.source.x, weight[e.relation])
    ...     return n.out
    >>> convolve = rgcn(relations=2, width=8, out=4)
    >>> graph = RelationalGraph.from_edges([0, 0, 1], [1, 2, 2], relation=[0, 1, 0])
    >>> convolve(graph, torch.randn(3, 8)).shape
    torch.Size([3, 4])
    """
    return LayerDefinition(function)


class CompiledLayer(nn.Module):
    """A layer with its parameters; compiled at its first call for each dtype and kind of gradient.

    Made by calling what `sh.relational.layer` returns.
    """

    def __init__(
        self,
        definition: LayerDefinition,
        relations: int,
        node_types: int,
        sizes: Mapping[str, int],
        options: Mapping[str, Any],
        without: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.definition = definition
        self.relations, self.node_types = relations, node_types
        self.sizes, self.options, self.without = dict(sizes), dict(options), tuple(without)
        self.function = definition.compile(sizes, options, without=without)
        self.program = self.function.program
        self.weight_names = tuple(
            name for name, each in definition.declarations.items() if each.kind == "weight"
        )
        for name, declaration in definition.declarations.items():
            if declaration.kind == "weight":
                rows: dict[Space, tuple[int, ...]] = {
                    Space.RELATION: (relations,),
                    Space.NODE_TYPE: (node_types,),
                    Space.RELATION_TYPE: (relations, node_types),
                }
                shape = rows.get(declaration.space, ()) + declaration.resolve(sizes, name)
                self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Matrices uniform within Glorot's limits, vectors zero."""
        for parameter in self.parameters():
            if parameter.dim() < 2:
                nn.init.zeros_(parameter)
            else:
                limit = math.sqrt(6.0 / (parameter.shape[-2] + parameter.shape[-1]))
                nn.init.uniform_(parameter, -limit, limit)

    def forward(self, graph: RelationalGraph | Block, *features: torch.Tensor, **named: Any) -> Any:
        """The layer's outputs. Features come in the order of the function's arguments, or by name.

        With a sampled block, a tensor has a row per source node of the block, a unified tensor one per
        node of the whole graph, and outputs have a row per target of the block.

        Args:
            graph: A graph, or a sampled block: then a tensor has a row per source node of the
                block, a unified tensor one per node of the whole graph, and outputs have a row per
                target of the block.
            features: In the order of the function's arguments.
            named: Features by name.
        """
        stay_alone_after_fork()
        require_graph(self.definition.name, self.function.feature_names, self.relations, graph)
        tensors = name_features(
            self.function.program.name, self.function.feature_names, features, named
        )
        for name in self.weight_names:
            tensors[name] = getattr(self, name)
        return self.function(graph, tensors, training=self.training)

    def explain(self, graph: RelationalGraph | None = None, **options: Any) -> str:
        """Every stage: source, program, passes, kernels, estimates, generated source.

        Args:
            graph: What estimates are for; None (default) takes the graph of the last call.
            options: `stage` chooses a stage, `picture="flow.svg"` also draws the flow of data,
                `machine=Machine.measure()` adds times.
        """
        return self.function.explain(graph, **options)

    def extra_repr(self) -> str:
        """The function and its sizes."""
        sizes = ", ".join(f"{name}={value}" for name, value in self.sizes.items())
        return f"{self.definition.name}, relations={self.relations}, {sizes}"


class CompiledFunction:
    """A program that can be called with a graph and tensors, and differentiated."""

    def __init__(
        self,
        program: Program,
        declarations: Mapping[str, Declaration],
        without: Collection[str] = (),
        source: str = "",
    ) -> None:
        self.program, self.declarations, self.without = program, dict(declarations), tuple(without)
        self.source = source  # the author's text
        self.last_call: tuple[Compilation, weakref.ref[Topology]] | None = None
        self.backend = "auto"  # or "cpp", "triton", or "reference": plain PyTorch
        # The most bytes to keep for the backward pass; None: all that it reads.
        self.memory_budget: int | str | None = None
        self.evaluation_program = _without_dropout(program)
        self.has_dropout = self.evaluation_program is not program
        self.feature_names = tuple(n for n, d in declarations.items() if d.kind != "weight")
        self.input_names = tuple(step.name for step in program.inputs)
        self.names_per_relation = tuple(
            step.name
            for step in program.inputs
            if step.space in (Space.RELATION, Space.RELATION_TYPE)
        )
        self.compilations: dict[Any, Compilation] = {}
        self.name = name_function(self)

    def __call__(
        self,
        graph: RelationalGraph | Block,
        tensors: Mapping[str, torch.Tensor],
        *,
        training: bool = False,
        num_targets: int | None = None,
    ) -> Any:
        """Run on `graph`, whose targets are its first `num_targets` nodes."""
        # A promise of a graph also comes here where torch.compile gave this function up, and not what read it.
        is_promise = isinstance(graph, TracedGraph)
        if is_promise or torch.compiler.is_compiling() or count_dispatch_modes() > 0:
            return record_call(self, graph, tensors, training, num_targets)
        program = self.program if training else self.evaluation_program
        block = graph if isinstance(graph, Block) else None
        tensors = cast_as_autocast(read_all_features(program, tensors, block))
        if isinstance(graph, Block):
            num_targets = graph.num_targets
            graph = graph_of_block(graph, count_relations(self.names_per_relation, tensors))
        topology = on_device(Topology.of(graph, num_targets), device_of(tensors))
        values = prepare_arguments(program, topology, tensors)
        is_dropping = training and self.has_dropout
        seed = draw_seed(self.program.name, topology.edge_ids.device) if is_dropping else 0
        needing: tuple[str, ...] = ()
        if torch.is_grad_enabled():
            needing = tuple(name for name, value in values.items() if value.requires_grad)
        backend = choose_backend(self.backend, topology.edge_ids.device)
        if backend == "reference" or is_functional():
            found = reference.run(program, topology, values, seed)
            results = tuple(found[name] for name, _ in program.outputs)
        else:
            dtype = next(iter(values.values())).dtype
            compiled = self.compile(program, topology, dtype, needing, backend)
            results = run_recorded(compiled, topology, values, seed)
        results = return_results(program, topology, results)
        return results[0] if len(results) == 1 else results

    def uses_kernels(self, topology: Topology) -> bool:
        """Whether generated kernels run where the topology is, and not plain PyTorch."""
        return choose_backend(self.backend, topology.edge_ids.device) != "reference"

    def compile(
        self,
        program: Program,
        topology: Topology,
        dtype: torch.dtype,
        gradients: tuple[str, ...],
        chosen: str | None = None,
    ) -> Compilation:
        """The compilation for this dtype and these gradients, made at the first call."""
        index_dtype = topology.graph.index_dtype
        chosen = chosen or choose_backend(self.backend, topology.edge_ids.device)
        backend = "triton" if chosen == "triton" else "cpp"
        budget = None if self.memory_budget is None else parse_bytes(self.memory_budget)
        key = (program is self.program, dtype, index_dtype, gradients, backend, budget)
        found = self.compilations.get(key)
        if found is None:
            with _compiling:
                found = self.compilations.get(key)
                if found is None:
                    sizes = GraphSizes.of(topology)
                    found = compile_program(
                        program, sizes, dtype, index_dtype, gradients, self.without, backend, budget
                    )
                    self.compilations[key] = found
        self.last_call = (found, weakref.ref(topology))
        return found

    def explain(
        self,
        graph: RelationalGraph | None = None,
        *,
        stage: str | None = None,
        machine: Machine | None = None,
        picture: str | Path | None = None,
    ) -> str:
        """Every stage of the last call's compilation; `graph` is what estimates are for."""
        if self.last_call is None and graph is None:
            return f"== as written, not compiled yet ==\n{self.program.text()}"
        explanation = self.explanation(graph)
        if picture is not None:
            explanation.save_picture(picture)
        return explanation.text(stage, machine)

    def explanation(self, graph: RelationalGraph | None = None) -> Explanation:
        """The last call's compilation, or one with all gradients, and the graph that it is for."""
        topology = None
        if graph is not None:
            topology = Topology.of(graph)
        elif self.last_call is not None:
            topology = self.last_call[1]()
        sizes = None if topology is None else GraphSizes.of(topology)
        if self.last_call is not None:
            return Explanation(self.source, self.last_call[0], sizes)
        if topology is None:
            raise LayerArgumentError(
                f"{self.program.name} has not been called", "pass a graph, or call the layer first"
            )
        inputs = tuple(step.name for step in self.program.inputs)
        compiled = self.compile(self.program, topology, torch.float32, inputs)
        return Explanation(self.source, compiled, sizes)

    def __getstate__(self) -> dict[str, Any]:
        names = ("program", "declarations", "without", "source", "backend", "memory_budget")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        backend, budget = state.pop("backend"), state.pop("memory_budget")
        self.__init__(**state)  # type: ignore[misc]
        self.backend, self.memory_budget = backend, budget

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        # Nothing in it changes but the compilations, which serve the copy, too.
        copied = CompiledFunction(self.program, self.declarations, self.without, self.source)
        copied.backend, copied.compilations = self.backend, dict(self.compilations)
        copied.memory_budget = self.memory_budget
        memo[id(self)] = copied
        return copied


def _without_dropout(program: Program) -> Program:
    """The program in evaluation: masks multiply by one, so they go."""
    if not any(step.operation == "keep" for step in program.steps):
        return program

    def rule(rewriter: Any, step: Any) -> str | None:
        if step.operation == "multiply":
            for value, mask in (step.operands, step.operands[::-1]):
                if rewriter.old(mask).operation == "keep":
                    return str(rewriter.new[value])
        return None

    return drop_unused(rewrite(program, rule))
