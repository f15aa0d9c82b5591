"""Small libraries with known graphs, and the promise that nothing of the label is in the graph."""

import ast
import textwrap

import numpy as np
import pytest

from shorthaul.datasets.array_cache import Arrays
from shorthaul.datasets.graph_assembly import (
    FEATURES,
    NAME_FEATURES,
    NODE_TYPES,
    RELATIONS,
    assemble,
)
from shorthaul.datasets.module_syntax import TRAITS, parse_module
from shorthaul.datasets.return_kinds import RETURN_KINDS
from shorthaul.datasets.standard_library import choose_files, library_directory, list_library


def assemble_sources(**sources: str) -> Arrays:
    return assemble(
        [
            parse_module(name, textwrap.dedent(text).encode(), is_package=False)
            for name, text in sources.items()
        ]
    )


def names_of(arrays: Arrays) -> list[str]:
    return arrays["names"].tobytes().decode().split("\n")


def readable_edges(arrays: Arrays) -> list[str]:
    names = names_of(arrays)
    return [
        f"{names[source]} {RELATIONS[kind].name} {names[target]}"
        for kind, source, target in zip(
            arrays["edge_type"].tolist(), *arrays["edge_index"].tolist(), strict=True
        )
    ]


SHAPES = """
    import math
    from tools import traced, Base

    LIMIT = 3

    class Circle(Base, Exception):
        unit = "m"
        @traced
        def area(self, scale):
            self.seen = math.floor(scale)
            self.check(mode=LIMIT)
            return self.radius
        def check(self, mode):
            raise ValueError(mode)
"""
TOOLS = """
    def traced(function):
        return function
    class Base:
        pass
"""


EXPECTED_EDGES = """
shapes imports math
shapes imports tools
shapes imports tools:Base
shapes imports tools:traced
shapes defines shapes:Circle
tools defines tools:Base
tools defines tools:traced
shapes defines LIMIT
shapes:Circle defines shapes:Circle.area
shapes:Circle defines shapes:Circle.check
shapes:Circle defines unit
shapes:Circle inherits tools:Base
shapes:Circle inherits Exception
shapes:Circle is_named Circle
tools:Base is_named Base
tools:traced is_named traced
shapes:Circle.area is_named area
shapes:Circle.check is_named check
shapes:Circle.area takes scale
shapes:Circle.area takes self
shapes:Circle.check takes mode
shapes:Circle.check takes self
tools:traced takes function
shapes:Circle.area passes mode
shapes:Circle.area calls floor
shapes:Circle.area runs shapes:Circle.check
shapes:Circle.area uses LIMIT
shapes:Circle.area uses math
shapes:Circle.area uses scale
shapes:Circle.area uses self
shapes:Circle.check uses mode
shapes:Circle.area writes seen
shapes:Circle.check raises ValueError
tools:traced decorates shapes:Circle.area
"""


def test_the_graph_of_a_small_library() -> None:
    arrays = assemble_sources(shapes=SHAPES, tools=TOOLS)
    assert readable_edges(arrays) == EXPECTED_EDGES.strip().split("\n")
    kinds = np.repeat(NODE_TYPES, arrays["nodes_per_type"])
    nodes = list(zip(kinds.tolist(), names_of(arrays), strict=True))
    assert nodes[:8] == [
        ("module", "math"),
        ("module", "shapes"),
        ("module", "tools"),
        ("class", "shapes:Circle"),
        ("class", "tools:Base"),
        ("function", "shapes:Circle.area"),
        ("function", "shapes:Circle.check"),
        ("function", "tools:traced"),
    ]
    assert [RETURN_KINDS[each] for each in arrays["labels"][5:8]] == ["object", "nothing", "object"]
    assert (arrays["labels"][:5] == -1).all()
    assert (arrays["labels"][8:] == -1).all()
    assert ((arrays["splits"] >= 0) == (arrays["labels"] >= 0)).all()


def test_well_known_facts_of_the_library() -> None:
    names = ("difflib", "json", "json.decoder", "shelve", "textwrap", "threading")
    files = [each for each in list_library(library_directory()) if each.name in names]
    arrays = assemble(
        [parse_module(each.name, each.read(), is_package=each.is_package) for each in files]
    )
    assert set(readable_edges(arrays)) >= {
        "json imports json.decoder",
        "json defines json:loads",
        "json:loads raises TypeError",
        "json:load is_named load",
        "json.decoder:JSONDecodeError inherits ValueError",
        "shelve:BsdDbShelf inherits shelve:Shelf",
        "threading:_DummyThread inherits threading:Thread",
        "threading:Thread.join raises RuntimeError",
        "property decorates threading:Thread.name",
    }
    kinds = {
        name: RETURN_KINDS[label]
        for name, label in zip(names_of(arrays), arrays["labels"].tolist(), strict=True)
        if label >= 0
    }
    assert kinds["threading:Thread.start"] == "nothing"
    assert kinds["difflib:unified_diff"] == "items in turn"
    assert kinds["difflib:SequenceMatcher.ratio"] == "object"
    assert kinds["textwrap:TextWrapper.fill"] == "text"


def test_features_describe_a_node_by_its_own_name_and_build() -> None:
    arrays = assemble_sources(
        one="def read_line(self, size=1):\n    if size: pass\n", two="def read_line(self): pass\n"
    )
    names, features = names_of(arrays), arrays["features"]
    assert features.shape == (len(names), FEATURES)
    first, second = (
        features[names.index("one:read_line")],
        features[names.index("two:read_line")],
    )
    assert np.array_equal(first[:NAME_FEATURES], second[:NAME_FEATURES])
    assert np.linalg.norm(first[:NAME_FEATURES]) == pytest.approx(1)
    traits = dict(zip(TRAITS, np.expm1(first[NAME_FEATURES:]).round().tolist(), strict=True))
    assert {name: count for name, count in traits.items() if count} == {
        "parameters": 2,
        "parameters with a default": 1,
        "branches": 1,
    }
    size = features[names.index("size")]
    assert not np.array_equal(size[:NAME_FEATURES], first[:NAME_FEATURES])
    assert not size[NAME_FEATURES:].any()


def test_a_name_that_equals_a_module_has_none_of_its_traits() -> None:
    arrays = assemble_sources(queue="import os\nif os: a = b = 1\n", user="def f(queue): pass")
    alike = [row for row, name in enumerate(names_of(arrays)) if name == "queue"]
    with_traits = [bool(arrays["features"][row, NAME_FEATURES:].any()) for row in alike]
    assert with_traits == [True, False]


class WithoutReturns(ast.NodeTransformer):
    """Takes out of a program all that the label is made of."""

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        return ast.Pass()

    def visit_Yield(self, node: ast.Yield | ast.YieldFrom) -> ast.expr:
        return ast.Constant(None)

    visit_YieldFrom = visit_Yield  # noqa: N815

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


class WithoutRaises(ast.NodeTransformer):
    """Takes out something that the graph does contain."""

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        return ast.Pass()


def library_arrays(change: ast.NodeTransformer | None) -> Arrays:
    modules = []
    for file in choose_files(list_library(library_directory()), 25):
        tree = ast.parse(file.read())
        if change is not None:
            tree = ast.fix_missing_locations(change.visit(tree))
        content = ast.unparse(tree).encode()
        modules.append(parse_module(file.name, content, is_package=file.is_package))
    return assemble(modules)


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_nothing_of_the_label_is_in_the_graph() -> None:
    """A library without a single `return` and `yield` gives the same graph, without its labels."""
    whole, without = library_arrays(None), library_arrays(WithoutReturns())
    for name in ("names", "nodes_per_type", "edge_index", "edge_type", "features", "splits"):
        assert np.array_equal(whole[name], without[name]), name
    assert len(np.unique(whole["labels"])) >= 6
    assert set(without["labels"].tolist()) == {-1, RETURN_KINDS.index("nothing")}
    # The comparison can fail: what the graph does contain cannot be taken out unnoticed.
    assert not np.array_equal(whole["edge_type"], library_arrays(WithoutRaises())["edge_type"])
