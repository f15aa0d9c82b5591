"""`RelationalGraph`: what it holds, what it refuses, and that its indexes are its edges."""

import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import shorthaul as sh
from shorthaul.errors import EdgeRangeError, GraphChangedError, GraphError
from shorthaul.graphs import Relation, RelationalGraph
from tests.graphs.drawn_graphs import Edges, edge_lists

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")


def small_graph() -> RelationalGraph:
    return RelationalGraph.from_edges([0, 0, 1, 2], [1, 2, 2, 2], relation=[0, 1, 0, 0])


def typed_graph() -> RelationalGraph:
    return RelationalGraph.from_typed_edges(
        {WRITES: torch.tensor([[0, 1, 1], [2, 2, 0]]), CITES: torch.tensor([[0, 2], [1, 1]])},
        {"author": 2, "paper": 3},
    )


@given(edge_lists())
@settings(max_examples=60, deadline=None)
def test_indexes_are_the_edges_in_their_orders(drawn: Edges) -> None:
    graph = drawn.graph()
    ids = range(graph.num_edges)
    by_target, by_source = graph.by_target(), graph.by_source()
    assert by_target.edges.tolist() == sorted(
        ids, key=lambda edge: (drawn.target[edge], drawn.relation[edge])
    )
    assert by_source.edges.tolist() == sorted(
        ids, key=lambda edge: (drawn.source[edge], drawn.relation[edge])
    )
    for index, end, other in (
        (by_target, "target", by_target.sources),
        (by_source, "source", by_source.targets),
    ):
        edges = index.edges.long()
        far = graph.source if end == "target" else graph.target
        assert torch.equal(other, far[edges])
        assert torch.equal(index.relations, graph.relation[edges])
        near = torch.repeat_interleave(torch.arange(graph.num_nodes), index.pointers.diff())
        assert torch.equal(near.int(), getattr(graph, end)[edges])
    assert graph.by_relation().edges.tolist() == sorted(ids, key=lambda edge: drawn.relation[edge])


@given(edge_lists())
@settings(max_examples=60, deadline=None)
def test_pairs_are_the_same_whichever_index_came_first(drawn: Edges) -> None:
    for side in ("source", "target"):
        alone, after_rows = drawn.graph(), drawn.graph()
        after_rows.by_source()
        after_rows.by_target()
        for one, other in zip(
            vars(alone.pairs(side)).values(), vars(after_rows.pairs(side)).values(), strict=True
        ):
            assert torch.equal(one, other)
        pairs = alone.pairs(side)
        nodes = pairs.nodes[pairs.edge_to_pair.long()]
        assert torch.equal(nodes, getattr(alone, side))
        assert pairs.num_pairs == len(set(zip(drawn.relation, getattr(drawn, side), strict=True)))


def test_without_kernels_the_indexes_are_the_same() -> None:
    graph, plain = small_graph(), small_graph()
    with sh.settings.override(kernels="torch"):
        for name in ("by_target", "by_source", "by_relation"):
            for one, other in zip(
                vars(getattr(graph, name)()).values(),
                vars(getattr(plain, name)()).values(),
                strict=True,
            ):
                assert torch.equal(one, other)


def test_an_index_is_built_once_and_kept() -> None:
    graph = small_graph()
    assert graph.by_target() is graph.by_target()
    assert graph.pairs("source") is graph.pairs("source")


def test_threads_that_ask_at_once_get_the_same_index() -> None:
    graph, found = small_graph(), []
    threads = [threading.Thread(target=lambda: found.append(graph.by_target())) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize("nodes", [0, 4])
@pytest.mark.parametrize("relations", [0, 1, 3])
def test_a_graph_without_edges(nodes: int, relations: int) -> None:
    graph = RelationalGraph.from_edges([], [], [], num_nodes=nodes, num_relations=relations)
    assert (graph.num_nodes, graph.num_edges, graph.num_relations) == (nodes, 0, relations)
    assert graph.by_target().pointers.tolist() == [0] * (nodes + 1)
    assert graph.by_source().pointers.tolist() == [0] * (nodes + 1)
    assert graph.by_relation().pointers.tolist() == [0] * (relations + 1)
    assert graph.pairs("target").pointers.tolist() == [0] * (relations + 1)
    assert graph.pairs("target").pair_pointers.tolist() == [0]
    assert graph.with_inverses().num_relations == 2 * relations


def test_counts_that_are_left_out_are_found() -> None:
    graph = RelationalGraph.from_edges([0, 7], [3, 2], [4, 0])
    assert (graph.num_nodes, graph.num_relations) == (8, 5)
    assert graph.relations[4] == Relation("node", "4", "node")
    assert RelationalGraph.from_edges([0], [1]).relations == (Relation("node", "to", "node"),)
    assert RelationalGraph.from_edges([], []).num_nodes == 0


def test_indexes_are_int32_unless_int64_is_asked_for() -> None:
    source, target = torch.tensor([0, 1]), torch.tensor([1, 0])
    graph = RelationalGraph.from_edges(source, target)
    assert graph.index_dtype is graph.by_target().edges.dtype is torch.int32
    graph = RelationalGraph.from_edges(source, target, index_dtype=torch.int64)
    assert graph.index_dtype is torch.int64
    assert all(each.dtype is torch.int64 for each in vars(graph.pairs("source")).values())
    assert graph.with_inverses().index_dtype is torch.int64


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_any_whole_numbers_will_do(dtype: torch.dtype) -> None:
    graph = RelationalGraph.from_edges(
        torch.tensor([0, 100], dtype=dtype), np.array([1, 0]), [0, 0], num_nodes=101
    )
    assert graph.source.tolist() == [0, 100]
    assert graph.target.tolist() == [1, 0]


def test_strided_and_read_only_sources() -> None:
    table = torch.tensor([[0, 1, 5], [2, 1, 5]], dtype=torch.int32)
    graph = RelationalGraph.from_edges(table[:, 0], table[:, 1])
    assert graph.by_target().sources.tolist() == [0, 2]
    array = np.array([[0, 1], [1, 0]])
    array.flags.writeable = False
    assert RelationalGraph.from_edge_index(array).num_edges == 2


def test_typed_edges_get_global_ids() -> None:
    graph = typed_graph()
    assert graph.node_offsets == (0, 2, 5)
    assert graph.source.tolist() == [0, 1, 1, 2, 4]
    assert graph.target.tolist() == [4, 4, 2, 3, 3]
    assert graph.relation.tolist() == [0, 0, 0, 1, 1]
    assert graph.nodes_of("paper") == range(2, 5)
    assert graph.edges_per_relation == (3, 2)
    assert graph.relation_number("cites") == graph.relation_number(CITES) == 1
    inferred = RelationalGraph.from_typed_edges({WRITES: torch.tensor([[0, 1], [2, 2]])})
    assert inferred.nodes_per_type == (2, 3)
    assert RelationalGraph.from_typed_edges({}, {"paper": 3}).by_target().pointers.numel() == 4


def test_inverses() -> None:
    graph = typed_graph()
    both = graph.with_inverses()
    assert both.relations[2] == Relation("paper", "writes_reversed", "author")
    assert both.source.tolist() == [*graph.source.tolist(), *graph.target.tolist()]
    assert both.relation.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert both.pairs("source").num_pairs == both.pairs("target").num_pairs
    with pytest.raises(
        GraphError, match="the inverse relation `paper writes_reversed author` already"
    ):
        both.with_inverses()


def test_summary_and_repr() -> None:
    assert repr(typed_graph()) == "RelationalGraph(5 nodes of 2 types, 5 edges, 2 relations)"
    assert typed_graph().summary().splitlines() == [
        "RelationalGraph(5 nodes of 2 types, 5 edges, 2 relations)",
        "nodes: author 2, paper 3",
        "edges:",
        "             3  author writes paper",
        "             2  paper cites paper",
    ]


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda: RelationalGraph.from_edges([0, 1], [1, 9], num_nodes=5),
            EdgeRangeError,
            "the target of edge 1 is 9, but there are 5 nodes (0 to 4).",
        ),
        (
            lambda: RelationalGraph.from_edges([0, -1], [1, 0]),
            EdgeRangeError,
            "the source of edge 1 is -1, but there are 2 nodes (0 to 1).",
        ),
        (
            lambda: RelationalGraph.from_edges([2**32], [0], num_nodes=5),
            EdgeRangeError,
            "the source of edge 0 is 4,294,967,296, but there are 5 nodes (0 to 4).",
        ),
        (
            lambda: RelationalGraph.from_edges([0], [0], [3], num_relations=2),
            EdgeRangeError,
            "the relation of edge 0 is 3, but there are 2 relations (0 to 1).",
        ),
        (
            lambda: RelationalGraph.from_edges([0], [0], num_nodes=0),
            EdgeRangeError,
            "the source of edge 0 is 0, but there are 0 nodes (none).",
        ),
        (
            lambda: RelationalGraph.from_edges([0], [0, 1], [0]),
            GraphError,
            "every edge needs a value in each of these, but `source` has 1, `target` has 2, "
            "`relation` has 1.",
        ),
        (
            lambda: RelationalGraph.from_edges([0.5], [0]),
            GraphError,
            "`source` must hold whole numbers (int32 or int64), got torch.float32.\n"
            "  Ids beyond 16,777,216 are not exact in float32; make them with dtype=torch.int64.",
        ),
        (
            lambda: RelationalGraph.from_edges(torch.tensor([True]), [0]),
            GraphError,
            "`source` must hold whole numbers (int32 or int64), got torch.bool.\n"
            "  Ids beyond 16,777,216 are not exact in float32; make them with dtype=torch.int64.",
        ),
        (
            lambda: RelationalGraph.from_edges([[0], [1]], [0]),
            GraphError,
            "`source` must have one dimension, got shape (2, 1).",
        ),
        (
            lambda: RelationalGraph.from_edges(torch.empty(2, device="meta").long(), [0, 1]),
            GraphError,
            "`source` must be a dense CPU tensor, got torch.strided on meta.\n"
            "  Indexes are built by the CPU: pass it as .cpu().",
        ),
        (
            lambda: RelationalGraph.from_edges(["a"], [0]),
            GraphError,
            "`source` must be a tensor, array or list of whole numbers: too many dimensions 'str'.",
        ),
        (
            lambda: RelationalGraph.from_edge_index(torch.zeros(5, 2, dtype=torch.int64)),
            GraphError,
            "`edge_index` must have shape (2, edges), got shape (5, 2).\n"
            "  It looks turned over: pass `.t()` of it.",
        ),
        (
            lambda: RelationalGraph.from_edge_index(3),
            GraphError,
            "`edge_index` must have shape (2, edges), got int.",
        ),
        (
            lambda: RelationalGraph.from_edges([0], [0], num_nodes=-1),
            GraphError,
            "`num_nodes` must be a whole number from 0 on, got -1.",
        ),
        (
            lambda: RelationalGraph.from_edges([0], [0], num_nodes=1.5),
            GraphError,
            "`num_nodes` must be a whole number from 0 on, got 1.5.",
        ),
        (
            lambda: RelationalGraph.from_edges(
                [0], [0], [0], relations=["a", "b"], num_relations=3
            ),
            GraphError,
            "num_relations is 3, but `relations` names 2.",
        ),
        (
            lambda: RelationalGraph.from_edges([0], [0], [0], relations=["a", "a"]),
            GraphError,
            "two relations are called `node a node`.",
        ),
        (
            lambda: RelationalGraph.from_edges([0], [1], nodes_per_type={"a": 1, "b": 1}),
            GraphError,
            "the nodes have 2 types, so `relations` must name the types that each relation joins: "
            "(source type, name, target type).",
        ),
        (
            lambda: RelationalGraph.from_edges(
                [0], [1], relations=[("a", "to", "c")], nodes_per_type={"a": 1, "b": 1}
            ),
            GraphError,
            "relation `a to c` joins nodes of type `c`, but there are `a`, `b`.",
        ),
        (
            lambda: RelationalGraph.from_edges(
                [0, 1], [1, 1], relations=[("a", "to", "b")], nodes_per_type={"a": 1, "b": 1}
            ),
            GraphError,
            "edge 1 is a `a to b`, but its source is node 1, and nodes of that type are 0 to 0.",
        ),
        (
            lambda: RelationalGraph.from_edges([0], [0], num_nodes=3, nodes_per_type={"a": 2}),
            GraphError,
            "num_nodes is 3, but nodes_per_type adds up to 2.",
        ),
        (
            lambda: RelationalGraph.from_edges([0], [0], node_names=["a"], num_nodes=2),
            GraphError,
            "there are 2 nodes, but 1 node names.",
        ),
        (
            lambda: RelationalGraph.from_typed_edges(
                {WRITES: torch.tensor([[0], [3]])}, {"author": 1}
            ),
            GraphError,
            "relation `author writes paper` has targets of type `paper`, but nodes_per_type has "
            "`author`.",
        ),
        (
            lambda: RelationalGraph.from_typed_edges(
                {WRITES: torch.tensor([[0], [3]])}, {"author": 1, "paper": 3}
            ),
            EdgeRangeError,
            "the target (in `author writes paper`) of edge 0 is 3, but there are 3 nodes of `paper` "
            "(0 to 2).",
        ),
        (
            lambda: RelationalGraph.from_typed_edges({"writes": torch.tensor([[0], [3]])}),
            GraphError,
            "a relation is named by three words, (source type, name, target type); got 'writes'.",
        ),
        (
            lambda: RelationalGraph.from_edges([0], [0], index_dtype=torch.int16),
            GraphError,
            "index_dtype must be torch.int32, torch.int64 or None, got torch.int16.",
        ),
        (
            lambda: RelationalGraph.from_edges([0], [0], num_nodes=2**31, index_dtype=torch.int32),
            GraphError,
            "index_dtype is torch.int32, but the graph counts up to 2,147,483,648, and int32 ends at "
            "2,147,483,647.\n  Leave index_dtype out, or ask for torch.int64.",
        ),
        (
            lambda: small_graph().pairs("left"),
            GraphError,
            "side must be 'source' or 'target', got 'left'.",
        ),
        (
            lambda: typed_graph().nodes_of("venue"),
            GraphError,
            "there is no node type 'venue'; there are `author`, `paper`.",
        ),
        (
            lambda: typed_graph().relation_number("reads"),
            GraphError,
            "there is no relation `reads`; there are `author writes paper`, `paper cites paper`.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, kind, message) -> None:
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)


def test_a_name_that_two_relations_share_needs_its_types() -> None:
    graph = RelationalGraph.from_typed_edges(
        {("a", "to", "b"): torch.tensor([[0], [0]]), ("b", "to", "a"): torch.tensor([[0], [0]])}
    )
    assert graph.relation_number(("b", "to", "a")) == 1
    with pytest.raises(
        GraphError, match="2 relations are called `to`; there are `a to b`, `b to a`"
    ):
        graph.relation_number("to")


@pytest.mark.parametrize("name", ["source", "target", "relation"])
def test_a_graph_that_was_changed_says_so(name: str) -> None:
    graph = small_graph()
    graph.by_target()
    getattr(graph, name)[0] = 1
    for use in (graph.by_target, graph.by_source, graph.with_inverses, lambda: copy.copy(graph)):
        with pytest.raises(GraphChangedError, match=f"`{name}` of the graph changed in place"):
            use()


def test_tensors_that_the_graph_shares_with_the_user_are_watched_too() -> None:
    edge_index = torch.tensor([[0, 1], [1, 2]], dtype=torch.int32)
    graph = RelationalGraph.from_edge_index(edge_index)
    edge_index[0, 0] = 2
    with pytest.raises(GraphChangedError, match="`source`, `target` of the graph"):
        graph.by_target()


def test_a_graph_does_not_change() -> None:
    with pytest.raises(AttributeError):
        small_graph().source = torch.tensor([1])


def test_graphs_are_copied_and_pickled_with_their_indexes() -> None:
    graph = typed_graph()
    edges = graph.by_target().edges
    for other in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph)):
        assert other.relations == graph.relations
        assert torch.equal(other.by_target().edges, edges)
        assert other.by_target().edges is not edges
        other.pairs("source")


def test_indexes_made_in_inference_mode_serve_training() -> None:
    graph = small_graph()
    with torch.inference_mode():
        made_inside = small_graph()
        index = graph.by_target()
        assert made_inside.by_target().edges.numel() == 4
    assert not index.sources.is_inference()
    assert not made_inside.by_source().edges.is_inference()
