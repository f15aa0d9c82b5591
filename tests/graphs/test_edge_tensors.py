"""What users give as edges becomes index tensors, without a copy where none is needed."""

import numpy as np
import pytest
import torch

from shorthaul.errors import GraphError
from shorthaul.graphs.edge_tensors import (
    choose_index_dtype,
    read_numbers,
    require_count,
    split_edge_index,
)


def test_tensors_and_arrays_are_shared() -> None:
    tensor = torch.tensor([1, 2], dtype=torch.int32)
    assert read_numbers(tensor, "x").data_ptr() == tensor.data_ptr()
    array = np.array([1, 2])
    assert read_numbers(array, "x").data_ptr() == array.ctypes.data


def test_an_empty_list_is_whole_numbers_but_an_empty_float_tensor_is_not() -> None:
    assert read_numbers([], "x").dtype is torch.int64
    with pytest.raises(GraphError, match=r"got torch\.float32"):
        read_numbers(torch.empty(0), "x")


@pytest.mark.parametrize("wrong", [{"a": 1}, "text", [1, None]])
def test_what_is_no_vector_of_numbers_is_refused(wrong: object) -> None:
    with pytest.raises(GraphError, match="`x` must be a tensor, array or list of whole numbers"):
        read_numbers(wrong, "x")


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(GraphError, match=r"dense CPU tensor, got torch\.sparse_coo on cpu"):
        read_numbers(torch.tensor([1, 0]).to_sparse(), "x")


def test_pairs_of_vectors_are_edge_indexes_too() -> None:
    one, other = split_edge_index((torch.tensor([1]), torch.tensor([2])))
    assert (one.item(), other.item()) == (1, 2)
    one, other = split_edge_index([[1, 2], [3, 4]])
    assert (one, other) == ([1, 2], [3, 4])


@pytest.mark.parametrize(
    ("largest", "dtype"), [(2**31 - 1, torch.int32), (2**31, torch.int64), (0, torch.int32)]
)
def test_int32_ends_where_its_numbers_do(largest: int, dtype: torch.dtype) -> None:
    assert choose_index_dtype(None, largest) is dtype


def test_a_bool_is_no_count() -> None:
    with pytest.raises(GraphError, match="`n` must be a whole number from 0 on, got True"):
        require_count("n", True)
    assert require_count("n", np.int64(3)) == 3
