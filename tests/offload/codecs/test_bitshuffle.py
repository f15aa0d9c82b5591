"""The kernel and its plain twin: the same planes, and back again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.offload.codecs.bitshuffle import BLOCK_ELEMENTS, ELEMENT_BYTES, shuffle, unshuffle
from shorthaul.settings import settings as shorthaul_settings


def random_bytes(size: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8))


@settings(deadline=None)
@given(
    st.sampled_from(ELEMENT_BYTES),
    st.integers(0, 3),
    st.integers(0, 300),
    st.integers(0, 2**32 - 1),
)
def test_both_ways_make_the_same_planes_and_undo_them(
    element_bytes: int, blocks: int, rest: int, seed: int
) -> None:
    source = random_bytes(blocks * BLOCK_ELEMENTS * element_bytes + rest, seed)
    made = []
    for kernels in ("generated", "torch"):
        with shorthaul_settings.override(kernels=kernels):
            planes, back = torch.empty_like(source), torch.empty_like(source)
            shuffle(source, element_bytes, planes)
            unshuffle(planes, element_bytes, back)
        assert torch.equal(back, source)
        made.append(planes)
    assert torch.equal(*made)


@pytest.mark.parametrize("element_bytes", ELEMENT_BYTES)
def test_plane_i_holds_bit_i_of_every_element(element_bytes: int) -> None:
    source = random_bytes(BLOCK_ELEMENTS * element_bytes, 7)
    planes = torch.empty_like(source)
    shuffle(source, element_bytes, planes)
    number = [
        int.from_bytes(row.tobytes(), "little") for row in source.view(-1, element_bytes).numpy()
    ]
    for bit in range(8 * element_bytes):
        plane = planes.view(8 * element_bytes, -1)[bit].numpy()
        shown = np.unpackbits(plane, bitorder="little").tolist()
        assert shown == [each >> bit & 1 for each in number]
