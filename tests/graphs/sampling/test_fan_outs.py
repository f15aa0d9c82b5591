import pytest

from shorthaul.errors import GraphError, SamplingError
from shorthaul.graphs import LinkLoader, MiniBatchLoader, NeighborSampler, RelationalGraph
from shorthaul.graphs.sampling.fan_outs import choose_fan_outs, read_fan_outs


@pytest.fixture
def graph() -> RelationalGraph:
    return RelationalGraph.from_edges(
        [0, 1, 1], [1, 0, 1], [0, 1, 2], relations=["cites", "writes", "likes"]
    )


def test_numbers_stand_for_all_relations_together(graph: RelationalGraph) -> None:
    assert read_fan_outs(graph, (15, -1, 0)) == [[15], [-1], [0]]


def test_mappings_give_one_number_to_each_relation(graph: RelationalGraph) -> None:
    assert read_fan_outs(graph, [{"likes": 1, 0: 2, "writes": -1}]) == [[2, -1, 1]]
    assert read_fan_outs(graph, [dict.fromkeys(graph.relations, 5)]) == [[5, 5, 5]]


@pytest.mark.parametrize(
    ("fan_outs", "message"),
    [
        (5, "one entry for each hop"),
        ({"cites": 5}, "one entry for each hop"),
        (
            [-2],
            r"fan_outs\[0\] must be a whole number of neighbors, or -1 for all of them, got -2",
        ),
        ([3, True], r"fan_outs\[1\] must be"),
        ([2.5], r"fan_outs\[0\] must be"),
        ([{"cites": 1}], r"names 1 of 3 relations; it lacks node writes node, node likes node"),
        ([{"cites": 1, 0: 2, 1: 1, 2: 1}], "is named twice"),
        ([{9: 1}], "expected a relation's name"),
        ([{"cites": "x"}], r"fan_outs\[0\]\['cites'\] must be"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    graph: RelationalGraph, fan_outs: object, message: str
) -> None:
    with pytest.raises(SamplingError, match=message):
        read_fan_outs(graph, fan_outs)  # type: ignore[arg-type]


def test_an_unknown_relation_is_named(graph: RelationalGraph) -> None:
    with pytest.raises(GraphError, match="there is no relation `hates`"):
        read_fan_outs(graph, [{"hates": 1}])


def test_pygs_numbers_are_those_of_each_relation(graph: RelationalGraph) -> None:
    asked = choose_fan_outs(graph, None, [4, -1])
    assert read_fan_outs(graph, asked) == [[4, 4, 4], [-1, -1, -1]]
    single = RelationalGraph.from_edges([0, 1], [1, 0])
    assert read_fan_outs(single, choose_fan_outs(single, None, [4, -1])) == [[4], [-1]]


def test_pygs_mapping_has_the_hops_of_each_relation(graph: RelationalGraph) -> None:
    asked = {("node", "cites", "node"): [1, 2], "writes": [3, 4], "likes": [5, -1]}
    assert read_fan_outs(graph, choose_fan_outs(graph, None, asked)) == [[1, 3, 5], [2, 4, -1]]


@pytest.mark.parametrize(
    ("fan_outs", "num_neighbors", "message"),
    [
        ([1], [1], "pass one of them"),
        (None, {"cites": [1], "writes": [1, 2], "likes": [1]}, "as many numbers for each relation"),
        (None, {"cites": 1, "writes": 2, "likes": 3}, "as many numbers for each relation"),
        (None, 5, "one number for each hop"),
    ],
)
def test_other_forms_of_pygs_are_refused(
    graph: RelationalGraph, fan_outs: object, num_neighbors: object, message: str
) -> None:
    with pytest.raises(SamplingError, match=message):
        choose_fan_outs(graph, fan_outs, num_neighbors)


def test_samplers_and_loaders_take_pygs_word(graph: RelationalGraph) -> None:
    sampler = NeighborSampler(graph, num_neighbors=[2, 1])
    assert sampler.fan_outs == [[2, 2, 2], [1, 1, 1]]
    assert NeighborSampler(graph).fan_outs == [[15], [10], [5]]
    for loader in (
        MiniBatchLoader(graph, num_neighbors=[2]),
        LinkLoader(graph, num_neighbors=[2]),
    ):
        assert loader.sampler.fan_outs == [[2, 2, 2]]
    with pytest.raises(SamplingError, match="those of the sampler"):
        MiniBatchLoader(graph, fan_outs=sampler, num_neighbors=[1])
