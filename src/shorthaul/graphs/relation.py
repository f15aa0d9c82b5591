"""What an edge means: its relation, and the types of the nodes that it joins."""

from __future__ import annotations

from typing import NamedTuple

NODE = "node"  # the type of every node of a graph without types
EDGE = "to"  # the relation of every edge of a graph without relations
INVERSE_SUFFIX = "_reversed"


class Relation(NamedTuple):
    """An edge type: `name` alone need not be unique, the three together are.

    >>> Relation("author", "writes", "paper").reversed()
    Relation(source_type='paper', name='writes_reversed', target_type='author')
    """

    source_type: str  # of the nodes where edges begin
    name: str  # such as writes
    target_type: str  # of the nodes where they end

    def reversed(self) -> Relation:
        """The relation of the same edges when they are followed backwards."""
        return Relation(self.target_type, f"{self.name}{INVERSE_SUFFIX}", self.source_type)

    def __str__(self) -> str:
        return " ".join(self)
