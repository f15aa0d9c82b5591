"""Lets a peer's script import DGL beside a torch that its sampling library was never built for.

DGL 2.1 looks for a GraphBolt library of the very torch version and refuses to load without one, though
its layers do not need it. A script in the peers' environment imports this module before `dgl`::

    import dgl_without_graphbolt  # noqa: F401
    import dgl

Anything of GraphBolt that is then called is an error.
"""

from __future__ import annotations

import sys
from types import ModuleType


class _Absent:
    """Stands for every class and function of GraphBolt."""

    def __init__(self, *arguments: object, **named: object) -> None:
        raise NotImplementedError("GraphBolt is left out: it does not fit this torch")


class _AbsentGraphBolt(ModuleType):
    def __getattr__(self, name: str) -> type[_Absent]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent


sys.modules["dgl.graphbolt"] = _AbsentGraphBolt("dgl.graphbolt")
