"""One table of bytes for all views of a memory, as long as it is that memory."""

import torch

import shorthaul as sh
from shorthaul.tensors.tables.whole_memory import WholeMemory


def test_views_share_it_and_exchanged_memory_has_its_own() -> None:
    u = sh.unified(torch.randn(6, 4))
    whole = u.table.memory
    assert whole is not None
    assert whole.shape == (96,)
    assert u[2:].table.memory is whole
    assert u[:, 1:].table.memory is whole
    u.data = torch.randn(5, 4)
    assert u.table.memory is not whole


def test_results_of_operators_and_copies_have_their_own() -> None:
    u = sh.unified(torch.randn(6, 4), propagate=True)
    whole = u.table.memory
    assert (u * 2).table.memory is not whole
    assert u.__deepcopy__({}).table.memory is not whole


def test_it_begins_where_the_storage_begins() -> None:
    values = torch.arange(12.0)
    table = WholeMemory().table_of(values[3:])
    assert table.stored.values.data_ptr() == values.data_ptr()
