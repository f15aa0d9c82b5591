from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shorthaul.offload.saved.identity import (
    StorageReference,
    VersionWitness,
    bytes_of_range,
    find_key,
    find_owner,
    find_view,
    why_not_movable,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.int64, torch.complex64]


def round_trip(tensor: torch.Tensor) -> torch.Tensor:
    """Copy the range somewhere else, as a spool does, and build the tensor again from there."""
    key = find_key(tensor)
    elsewhere = bytes_of_range(tensor, key).clone()
    return find_view(tensor, key).build(elsewhere.untyped_storage(), 0)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.data(),
)
def test_any_view_comes_back_from_its_range(dtype, shape, data):
    base = torch.randint(0, 2, [size + 3 for size in shape]).to(dtype)
    view = base[tuple(slice(data.draw(st.integers(0, 3)), None) for _ in shape)]
    view = view[tuple(slice(None, None, data.draw(st.integers(1, 2))) for _ in shape)]
    view = view.permute(data.draw(st.permutations(range(view.dim()))))
    back = round_trip(view)
    assert torch.equal(back, view)
    assert back.stride() == view.stride()


def test_conjugate_and_negative_views_stay_views():
    x = torch.randn(4, 4, dtype=torch.complex64)
    for view in (x.conj(), x.conj().imag, x.mH):
        back = round_trip(view)
        assert torch.equal(back, view)
        assert (back.is_conj(), back.is_neg()) == (view.is_conj(), view.is_neg())


def test_query_key_and_value_share_a_key_and_a_transpose_too():
    fused = torch.randn(8, 12)
    keys = {find_key(each) for each in (*fused.chunk(3, -1), fused, fused.t())}
    assert len(keys) == 1


def test_a_small_part_has_a_key_of_its_own():
    table = torch.randn(100, 16)
    key = find_key(table[10:20])
    assert (key.start_bytes, key.length_bytes) == (640, 640)
    assert find_key(table[10:20]) != find_key(table[20:30])


def test_another_version_is_another_key():
    x = torch.randn(4)
    before = find_key(x)
    x.add_(1)
    assert find_key(x) != before


def test_a_witness_sees_changes_without_keeping_the_memory():
    x = torch.randn(1000)
    reference = StorageReference(x.untyped_storage())
    witness = VersionWitness(x)
    view = x[10:20]
    view.mul_(2)
    assert (witness.version, witness.current_version) == (0, 1)
    assert witness.description == "torch.FloatTensor [1000]"
    assert reference.revive(4000) is not None
    assert reference.revive(4001) is None
    del x, view
    assert not reference.is_alive
    assert reference.revive(1) is None


def test_an_address_is_not_reused_while_it_is_referred_to():
    seen, references = set(), []
    for _ in range(200):
        storage = torch.randn(1000).untyped_storage()
        references.append(StorageReference(storage))
        seen.add(storage._cdata)
    assert len(seen) == 200


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Parameter(torch.ones(2, 2)), "parameter"),
        (lambda: nn.Parameter(torch.ones(2, 2)).t(), "parameter"),
        (lambda: torch.ones(2, requires_grad=True).view(1, 2), "parameter"),
        (lambda: torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {})), "subclass"),
        (lambda: torch.eye(2).to_sparse(), "no plain memory"),
        (lambda: torch.empty(2, device="meta"), "no plain memory"),
        (lambda: torch.ones(2), None),
        (lambda: torch.ones(2, requires_grad=True) * 2, None),
    ],
)
def test_what_has_to_stay(make, reason):
    tensor = make()
    assert why_not_movable(tensor) == reason


def test_views_have_the_owner_that_counts_their_versions():
    base = torch.randn(6, 6, requires_grad=True) * 2
    first, second = base.chunk(2)
    assert find_owner(base) is base
    assert find_owner(first) is base
    assert find_owner(second[1:].t()) is base
    apart = base.unsafe_chunk(2)[0]
    assert find_owner(apart) is apart
    assert find_owner(base.data) is not base
