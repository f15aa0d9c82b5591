"""Modules that have been read -> nodes, edges, features, labels and splits, as arrays.

Ids and their order depend on names alone, so the same files give the same arrays in any process.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shorthaul.datasets.array_cache import Arrays
from shorthaul.datasets.module_syntax import TRAITS, ModuleSyntax, Reference
from shorthaul.datasets.name_resolution import Library
from shorthaul.datasets.return_kinds import RETURN_KINDS, return_kind
from shorthaul.datasets.standard_library import draw

NODE_TYPES = ("module", "class", "function", "attribute", "name")


class Relation(NamedTuple):
    """An edge type: `name` alone is not unique, the three together are."""

    source: str  # type of the nodes where edges begin
    name: str  # such as calls
    target: str  # type of the nodes where they end


# Every edge type of every graph, in the order of their ids, also where a small graph has none.
# What cannot be expressed by one of these (a module that takes a parameter) is no edge.
RELATIONS = tuple(
    Relation(*words.split())
    for words in (
        "module imports module",
        "module imports class",
        "module imports function",
        "module defines class",
        "module defines function",
        "module defines name",
        "class defines function",
        "class defines attribute",
        "class inherits class",
        "class inherits name",
        "class is_named name",
        "function defines function",
        "function defines class",
        "function is_named name",
        "function is_named attribute",
        "function takes name",
        "function passes name",
        "function calls function",
        "function calls class",
        "function calls attribute",
        "function calls name",
        "function runs function",
        "function runs class",
        "function runs attribute",
        "function runs name",
        "function uses module",
        "function uses class",
        "function uses function",
        "function uses attribute",
        "function uses name",
        "function writes attribute",
        "function writes name",
        "function raises class",
        "function raises name",
        "function catches class",
        "function catches name",
        "function decorates function",
        "function decorates class",
        "class decorates function",
        "name decorates function",
        "attribute decorates function",
    )
)
_RELATION_IDS = {relation: number for number, relation in enumerate(RELATIONS)}

NAME_FEATURES = 48
FEATURES = NAME_FEATURES + len(TRAITS)

SPLITS = ("train", "validation", "test")
_SPLIT_BOUNDS = (0.6, 0.8, 1.0)

Node = tuple[str, str]  # its type and its name
Edge = tuple[Node, str, Node]


def assemble(modules: Sequence[ModuleSyntax]) -> Arrays:
    """The whole graph. Arrays only, because that is what the cache keeps."""
    library = Library(modules)
    edges = sorted(set(_all_edges(library)))
    nodes = _order_nodes(library, edges)
    ids = {node: number for number, node in enumerate(nodes)}
    rows = np.array(
        sorted(
            (_RELATION_IDS[Relation(source[0], verb, target[0])], ids[source], ids[target])
            for source, verb, target in edges
        ),
        dtype=np.int64,
    ).reshape(-1, 3)
    counts = [sum(kind == each for kind, _ in nodes) for each in NODE_TYPES]
    labels, splits = _label(library, nodes)
    return {
        "nodes_per_type": np.array(counts, dtype=np.int64),
        "names": np.frombuffer("\n".join(name for _, name in nodes).encode(), dtype=np.uint8),
        "edge_index": np.ascontiguousarray(rows[:, 1:].T),
        "edge_type": np.ascontiguousarray(rows[:, 0]),
        "features": _describe(library, nodes),
        "labels": labels,
        "splits": splits,
    }


def _all_edges(library: Library) -> Iterable[Edge]:
    for module in library.modules.values():
        for edge in _module_edges(library, module):
            if Relation(edge[0][0], edge[1], edge[2][0]) in _RELATION_IDS:
                yield edge


def _module_edges(library: Library, module: ModuleSyntax) -> Iterable[Edge]:
    me = ("module", module.name)
    for name in module.imported_modules:
        yield me, "imports", ("module", library.find_module(name))
    for name in module.imported_names.values():
        found = library.resolve_absolute(name)
        if found is not None:
            yield me, "imports", _node(library, found)
    for scope in module.scopes.values():
        if scope.parent is not None:
            parent, own = _node(library, scope.parent), _node(library, scope.qualified_name)
            yield parent, "defines", own
            kind = "attribute" if parent[0] == "class" else "name"
            yield own, "is_named", (kind, scope.name)
    for reference in module.references:
        yield _reference_edge(library, reference)


def _reference_edge(library: Library, reference: Reference) -> Edge:
    owner, verb = _node(library, reference.owner), reference.verb
    plain = ("name" if len(reference.dotted) == 1 else "attribute", reference.dotted[-1])
    if verb == "writes" and owner[0] != "function":
        return owner, "defines", plain
    found = None if verb in ("takes", "passes", "writes") else library.resolve(reference)
    target = plain if found is None else _node(library, found)
    return (target, "decorates", owner) if verb == "decorated by" else (owner, verb, target)


def _node(library: Library, qualified_name: str) -> Node:
    return library.scopes[qualified_name].kind, qualified_name


def _order_nodes(library: Library, edges: Sequence[Edge]) -> list[Node]:
    found = {(scope.kind, name) for name, scope in library.scopes.items()}
    for source, _, target in edges:
        found.add(source)
        found.add(target)
    return sorted(found, key=lambda node: (NODE_TYPES.index(node[0]), node[1]))


def _label(
    library: Library, nodes: Sequence[Node]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Labels of functions, and the part of the split each belongs to; -1 for all other nodes."""
    labels = np.full(len(nodes), -1, dtype=np.int64)
    splits = np.full(len(nodes), -1, dtype=np.int64)
    for number, (kind, name) in enumerate(nodes):
        if kind == "function":
            labels[number] = RETURN_KINDS.index(return_kind(library.scopes[name].returned))
            drawn = draw(name, "split")
            splits[number] = next(i for i, bound in enumerate(_SPLIT_BOUNDS) if drawn < bound)
    return labels, splits


def _describe(library: Library, nodes: Sequence[Node]) -> npt.NDArray[np.float32]:
    """Hashed pieces of a node's own short name, then its traits on a log scale."""
    features = np.zeros((len(nodes), FEATURES), dtype=np.float32)
    for number, (kind, name) in enumerate(nodes):
        # A name such as `queue` is another node than the module called so.
        scope = None if kind in ("attribute", "name") else library.scopes.get(name)
        for piece in _pieces(scope.name if scope else name):
            place, sign = _place(piece)
            features[number, place] += sign
        if scope is not None:
            features[number, NAME_FEATURES:] = [scope.traits[trait] for trait in TRAITS]
    names = features[:, :NAME_FEATURES]
    names /= np.sqrt((names * names).sum(axis=1, keepdims=True)).clip(min=1.0)
    # Rounded, because the last bit of a logarithm differs between processors.
    features[:, NAME_FEATURES:] = np.round(np.log1p(features[:, NAME_FEATURES:]) * 4096) / 4096
    return features


@lru_cache(maxsize=8192)
def _place(piece: str) -> tuple[int, float]:
    """The column that a piece of a name is added to, and with which sign."""
    digest = hashlib.blake2b(piece.encode(), digest_size=8, person=b"name pieces").digest()
    number = int.from_bytes(digest, "little")
    return number % NAME_FEATURES, 1.0 if number >> 63 else -1.0


def _pieces(name: str) -> list[str]:
    """Words of an identifier, its first and last, and its dunder or private form."""
    words = [each.lower() for each in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)]
    form = name[: len(name) - len(name.lstrip("_"))]
    marks = [f"^{words[0]}", f"{words[-1]}$"] if words else []
    trigrams = [name[at : at + 3].lower() for at in range(len(name) - 2)]
    return [*words, *marks, *trigrams, f"form {form}"]
