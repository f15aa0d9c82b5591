"""Where a value has its rows: the smallest space that what it depends on allows.

An edge e = (source, relation, target) has many values that depend on less than the edge. What a
value depends on says how many rows of it there really are::

    depends on           space          rows
    -------------------  -------------  ------------------------------------------------
    nothing              ONE            1
    relation             RELATION       one per relation
    node type            NODE_TYPE      one per type of node
    both of these        RELATION_TYPE  one per relation and type of node: weights alone
    source               NODE           one per node
    target               TARGET         one per target node, the first of the nodes
    source, relation     SOURCE_PAIR    one per pair that occurs
    target, relation     TARGET_PAIR    one per pair that occurs
    anything more        EDGE           one per edge

A weight per relation can be applied on either side of a sum over edges: to the sources of each relation,
before it, or to what was summed for its targets. Each relation has a *side* that costs less, the end at
which it has fewer distinct nodes, and `choose_sides` divides edges and pairs by it::

    SOURCE_SIDE_EDGE, SOURCE_SIDE_PAIR    of relations with as few sources as targets, or fewer
    TARGET_SIDE_EDGE, TARGET_SIDE_PAIR    of the others

A *way* leads from each row of a fine space to one row of a coarser space. `expand` reads along a way,
`reduce` adds up against it: they are each other's transposes, which is all that the gradient of an
index is.

A relation joins nodes of one type with nodes of one type. So what depends on an edge's relation and on
the type of one of its ends depends on the relation alone: ways lead from a relation to the types of its
ends, and a weight sliced by both is read along them as a weight per relation.
"""

from __future__ import annotations

from enum import Enum


class Space(Enum):
    """A set of rows; see the table above."""

    ONE = "one"
    RELATION = "relation"
    NODE_TYPE = "node type"
    RELATION_TYPE = "relation and type"
    NODE = "node"
    TARGET = "target"
    SOURCE_PAIR = "source pair"
    TARGET_PAIR = "target pair"
    EDGE = "edge"
    SOURCE_SIDE_PAIR = "source side pair"
    TARGET_SIDE_PAIR = "target side pair"
    SOURCE_SIDE_EDGE = "source side edge"
    TARGET_SIDE_EDGE = "target side edge"

    __hash__ = object.__hash__  # Enum's own is Python, and a call of a layer looks many spaces up

    @property
    def is_small(self) -> bool:
        """Whether its rows are counted by types, not by nodes and edges: the spaces of weights."""
        return self in (Space.ONE, Space.RELATION, Space.NODE_TYPE, Space.RELATION_TYPE)


Dependencies = frozenset[str]

# The edges of each side, and their pairs.
SIDES: dict[Space, Space] = {
    Space.SOURCE_SIDE_EDGE: Space.SOURCE_SIDE_PAIR,
    Space.TARGET_SIDE_EDGE: Space.TARGET_SIDE_PAIR,
}

# (fine space, way) -> the space that the way leads to.
WAYS: dict[tuple[Space, str], Space] = {
    (Space.EDGE, "source"): Space.NODE,
    (Space.EDGE, "target"): Space.TARGET,
    (Space.EDGE, "source_pair"): Space.SOURCE_PAIR,
    (Space.EDGE, "target_pair"): Space.TARGET_PAIR,
    (Space.EDGE, "relation"): Space.RELATION,
    (Space.SOURCE_PAIR, "node"): Space.NODE,
    (Space.SOURCE_PAIR, "relation"): Space.RELATION,
    (Space.TARGET_PAIR, "node"): Space.TARGET,
    (Space.TARGET_PAIR, "relation"): Space.RELATION,
    (Space.NODE, "type"): Space.NODE_TYPE,
    (Space.TARGET, "type"): Space.NODE_TYPE,
    (Space.RELATION, "source_type"): Space.NODE_TYPE,
    (Space.RELATION, "target_type"): Space.NODE_TYPE,
    (Space.RELATION, "and_source_type"): Space.RELATION_TYPE,
    (Space.RELATION, "and_target_type"): Space.RELATION_TYPE,
    (Space.SOURCE_SIDE_PAIR, "node"): Space.NODE,
    (Space.SOURCE_SIDE_PAIR, "relation"): Space.RELATION,
    (Space.TARGET_SIDE_PAIR, "node"): Space.TARGET,
    (Space.TARGET_SIDE_PAIR, "relation"): Space.RELATION,
    **{(space, "all"): Space.ONE for space in Space if space is not Space.ONE},
}
WAYS |= {
    (edges, way): to
    for edges, pairs in SIDES.items()
    for way, to in {
        "edge": Space.EDGE,
        "side_pair": pairs,
        **{way: to for (fine, way), to in WAYS.items() if fine is Space.EDGE},
    }.items()
}

# What a row of each space is told apart by.
IDENTITY: dict[Space, Dependencies] = {
    Space.ONE: frozenset(),
    Space.RELATION: frozenset({"relation"}),
    Space.NODE: frozenset({"source"}),
    Space.TARGET: frozenset({"target"}),
    Space.SOURCE_PAIR: frozenset({"source", "relation"}),
    Space.TARGET_PAIR: frozenset({"target", "relation"}),
    Space.EDGE: frozenset({"source", "target", "relation", "edge"}),
}

# The way from an edge to each space that an edge's values can shrink to.
EDGE_WAYS: dict[Space, str] = {
    Space.ONE: "all",
    Space.RELATION: "relation",
    Space.NODE: "source",
    Space.TARGET: "target",
    Space.SOURCE_PAIR: "source_pair",
    Space.TARGET_PAIR: "target_pair",
}


def choose_space(dependencies: Dependencies) -> Space:
    """The smallest space in which a value of an edge with these dependencies has all its rows.

    >>> choose_space(frozenset({"source", "relation"}))
    <Space.SOURCE_PAIR: 'source pair'>
    >>> choose_space(frozenset({"source", "target"}))
    <Space.EDGE: 'edge'>
    """
    for space, identity in IDENTITY.items():  # smallest first
        if dependencies <= identity:
            return space
    raise ValueError(f"unknown dependencies {sorted(dependencies)}")


def follow(fine: Space, way: str) -> Space:
    """The space that `way` leads to from `fine`."""
    try:
        return WAYS[fine, way]
    except KeyError:
        known = ", ".join(name for space, name in WAYS if space is fine)
        raise ValueError(
            f"no way `{way}` leads from {fine.value} rows; there are {known}"
        ) from None


def find_way(fine: Space, coarse: Space) -> str | None:
    """The name of the way from `fine` to `coarse`, if there is one, and one only."""
    found = [way for (space, way), to in WAYS.items() if space is fine and to is coarse]
    return found[0] if len(found) == 1 else None
