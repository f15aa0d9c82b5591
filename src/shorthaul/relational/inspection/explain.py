"""How a layer became kernels, stage by stage, with what each kernel costs: what `layer.explain()` prints.

source       the author's function
as written   the recorded program
<pass>       the program after each pass that changed it, before and after differentiation
kernels      which kernel makes which values
estimate     bytes, floating operations and the time at best of each kernel on a graph
generated    the C++ text
"""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.compiler import Compilation, compile_program
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.inspection.picture import draw_flow
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.relational.planning.estimate import Estimate, Machine, estimate


class Author(Protocol):
    """A `LayerDefinition`, as far as an explanation needs it."""

    function: Callable[..., Any]
    options: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """Everything there is to tell about one compilation on a graph of some sizes."""

    source: str
    compilation: Compilation
    sizes: GraphSizes | None  # None: no graph is known, so there is no estimate

    def estimate(self) -> Estimate | None:
        """What each kernel costs on the graph."""
        if self.sizes is None:
            return None
        made = self.compilation
        return estimate(
            made.plan,
            self.sizes,
            value_bytes=made.dtype.itemsize,
            index_bytes=made.index_dtype.itemsize,
        )

    def text(self, stage: str | None = None, machine: Machine | None = None) -> str:
        """Every stage under a heading, or those whose heading begins with `stage`."""
        parts = self._parts(machine)
        chosen = [each for each in parts if stage is None or each[0].startswith(stage)]
        if not chosen:
            known = ", ".join(dict.fromkeys(heading for heading, _ in parts))
            raise LayerArgumentError(f"there is no stage {stage!r}", f"there are {known}")
        return "\n\n".join(f"== {heading} ==\n{text}" for heading, text in chosen)

    def _parts(self, machine: Machine | None) -> list[tuple[str, str]]:
        *parts, generated = self.compilation.sections()
        if self.source:
            parts.insert(0, ("source", self.source))
        costs = self.estimate()
        if costs is not None and self.sizes is not None:
            parts.append(("estimate", f"{describe_sizes(self.sizes)}\n{costs.text(machine)}"))
        return [*parts, generated]

    def picture(self) -> str:
        """The flow of data through the kernels, as SVG; bytes where a graph is known."""
        return draw_flow(self.compilation.plan, self.estimate())

    def save_picture(self, path: str | Path) -> None:
        """Write the picture; the file's name ends with .svg."""
        path = Path(path)
        if path.suffix != ".svg":
            raise LayerArgumentError(f"a picture was asked for as {path.name}", "name it *.svg")
        path.write_text(self.picture())


def read_source(function: Any) -> str:
    """The author's text of a function; empty where Python has none, as at its prompt."""
    try:
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError):
        return ""


def describe_sizes(sizes: GraphSizes) -> str:
    """One line on the graph that an estimate is for.

    >>> describe_sizes(guess_sizes(nodes=100, edges=1000, relations=10))
    'a graph of 100 nodes, 100 targets, 10 relations, 632 source pairs, 632 target pairs, 1,000 edges'
    """
    shown = (
        Space.NODE,
        Space.TARGET,
        Space.RELATION,
        Space.SOURCE_PAIR,
        Space.TARGET_PAIR,
        Space.EDGE,
    )
    return "a graph of " + ", ".join(f"{sizes[each]:,} {each.value}s" for each in shown)


def guess_sizes(
    *,
    nodes: int,
    edges: int,
    relations: int,
    node_types: int = 1,
    targets: int | None = None,
) -> GraphSizes:
    """The sizes of a graph whose edges fall at random: about how many pairs will occur.

    Real graphs have fewer pairs; give the graph itself where there is one.
    """
    if min(nodes, edges, relations, node_types) < 0:
        raise LayerArgumentError("a graph has a negative size", "give sizes from 0")
    targets = nodes if targets is None else targets
    rows = {
        Space.ONE: 1,
        Space.RELATION: relations,
        Space.NODE_TYPE: node_types,
        Space.NODE: nodes,
        Space.TARGET: targets,
        Space.SOURCE_PAIR: _occupied(nodes * relations, edges),
        Space.TARGET_PAIR: _occupied(targets * relations, edges),
        Space.EDGE: edges,
        # At random, relations have about as many sources as targets: one side has them all.
        Space.SOURCE_SIDE_PAIR: _occupied(nodes * relations, edges),
        Space.SOURCE_SIDE_EDGE: edges,
        Space.TARGET_SIDE_PAIR: 0,
        Space.TARGET_SIDE_EDGE: 0,
    }
    return GraphSizes({space: rows.get(space, relations * node_types) for space in Space})


def _occupied(places: int, thrown: int) -> int:
    """How many of `places` are hit by `thrown` random throws."""
    return round(places * -math.expm1(-thrown / places)) if places else 0


def explain_definition(
    definition: Author,
    widths: Mapping[str, int],
    sizes: GraphSizes,
    *,
    options: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    index_dtype: torch.dtype = torch.int32,
    gradients: Sequence[str] | None = None,
) -> Explanation:
    """The compilation of a layer that has not been made yet, for graphs of about these sizes.

    `gradients` are those of all arguments when not given.
    """
    chosen = {name: widths[name] for name in definition.options if name in widths}
    program = trace(definition.function, widths, {**chosen, **(options or {})})
    wanted = [step.name for step in program.inputs] if gradients is None else gradients
    compiled = compile_program(program, sizes, dtype, index_dtype, wanted)
    return Explanation(read_source(definition.function), compiled, sizes)
