"""The kernels make what plain PyTorch makes, bit for bit, on any number of threads."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings

from shorthaul.graphs.index import kernels as index_kernels
from shorthaul.graphs.index import plain as plain_indexes
from shorthaul.jit.source import CppSource
from tests.graphs.drawn_graphs import Edges, edge_lists

DTYPES = (torch.int32, torch.int64)


@pytest.fixture
def restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def make_all(builder, source, target, relation, nodes, relations):
    """Everything that the builder can make of these edges."""
    by_relation = builder.sort_relations(relation, source, target, relations)
    pointers, edges, sources, targets = by_relation
    rows = builder.sort_rows(targets, sources, edges, pointers, nodes)
    pairs = builder.find_pairs(rows.pointers, rows.relations, rows.edges, pointers)
    return [*by_relation, *rows, *pairs]


def draw_edges(edges, nodes, relations, dtype):
    generator = torch.Generator().manual_seed(edges + nodes)
    return [
        torch.randint(0, limit, (edges,), generator=generator).to(dtype)
        for limit in (nodes, nodes, relations)
    ]


def require_same(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert one.dtype is other.dtype
        assert torch.equal(one, other)


@given(edge_lists())
@settings(max_examples=60, deadline=None)
def test_kernels_make_what_plain_torch_makes(drawn: Edges) -> None:
    for dtype in DTYPES:
        tensors = [
            torch.tensor(each, dtype=dtype) for each in (drawn.source, drawn.target, drawn.relation)
        ]
        counts = drawn.nodes, drawn.relations
        require_same(
            make_all(index_kernels, *tensors, *counts), make_all(plain_indexes, *tensors, *counts)
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("edges", "nodes", "relations"),
    [(100_000, 1000, 7), (50_000, 400_000, 3), (30_000, 2, 5000), (9000, 1, 1)],
)
def test_any_number_of_threads_makes_the_same(
    edges: int, nodes: int, relations: int, dtype: torch.dtype, restored_threads: None
) -> None:
    tensors = draw_edges(edges, nodes, relations, dtype)
    expected = make_all(plain_indexes, *tensors, nodes, relations)
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        require_same(make_all(index_kernels, *tensors, nodes, relations), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("builder", [index_kernels, plain_indexes])
def test_the_first_number_outside_is_found(builder, dtype, restored_threads) -> None:
    torch.set_num_threads(3)
    values = torch.arange(20_000, dtype=dtype) % 100
    assert builder.find_outside(values, 100) is None
    assert builder.find_outside(values[:0], 0) is None
    values[[7_777, 15_000]] = 100
    assert builder.find_outside(values, 100) == 7_777
    values[300] = -1
    assert builder.find_outside(values, 100) == 300


def test_columns_lie_apart_and_are_aligned() -> None:
    for sizes in [(3, 0, 5), (400_000, 1, 400_001)]:
        columns = index_kernels.empty_columns(torch.int32, sizes)
        for number, column in enumerate(columns):
            column.fill_(number)
        assert [each.numel() for each in columns] == list(sizes)
        for number, column in enumerate(columns):
            assert (column == number).all()
            assert column.data_ptr() % 64 == 0


def test_large_columns_live_as_long_as_the_last_of_them() -> None:
    first, last = index_kernels.empty_columns(torch.int64, (10, 600_000))
    last.fill_(5)
    del first
    assert int(last.sum()) == 3_000_000


def test_the_next_index_gets_the_memory_of_one_that_is_gone() -> None:
    sizes = (10, 600_000)
    pool = index_kernels._kept_pool()
    first, last = index_kernels.empty_columns(torch.int64, sizes)
    in_use_bytes = pool.in_use_bytes
    assert in_use_bytes >= 600_000 * 8
    del first
    assert pool.in_use_bytes == in_use_bytes  # `last` is still there
    del last
    mapped_bytes = pool.mapped_bytes
    assert pool.in_use_bytes < in_use_bytes
    again = index_kernels.empty_columns(torch.int64, sizes)
    assert [each.numel() for each in again] == list(sizes)
    assert (pool.in_use_bytes, pool.mapped_bytes) == (in_use_bytes, mapped_bytes)


def test_a_large_index_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_kernels, "KEPT_BYTES", 2**22)
    in_use_bytes = index_kernels._kept_pool().in_use_bytes
    (column,) = index_kernels.empty_columns(torch.int64, (600_000,))
    column.fill_(3)
    assert int(column.sum()) == 1_800_000
    assert index_kernels._kept_pool().in_use_bytes == in_use_bytes


def test_the_source_names_its_index_type() -> None:
    source = index_kernels.emit_index_kernels(torch.int64)
    assert isinstance(source, CppSource)
    assert source.name == "graph_index_int64"
    assert "using Index = int64_t;" in source.text
