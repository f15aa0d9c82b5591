"""Every promise of `bodies`, and what they share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import torch

from shorthaul.graphs import RelationalGraph

Body = Callable[[torch.device], None]
BODIES: list[Body] = []
FOLDER = Path(__file__).with_name("bodies")
# Of sums in another order, in float32.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def body(function: Body) -> Body:
    BODIES.append(function)
    return function


def load_bodies() -> list[Body]:
    """All of them, in the order of their files."""
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        importlib.import_module(f"tests.gpu.bodies.{path.stem}")
    return BODIES


def small_graph(relations: int = 3, nodes: int = 12, edges: int = 40) -> RelationalGraph:
    """A graph whose nodes hear from others more than once, and from some not at all."""
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randint(
        nodes, (2, edges), generator=draw, dtype=torch.int64, device="cpu"
    )
    relation = torch.randint(relations, (edges,), generator=draw, dtype=torch.int64, device="cpu")
    return RelationalGraph.from_edges(
        source, target, relation, num_nodes=nodes, num_relations=relations
    )
