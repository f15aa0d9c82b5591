"""A tensor over an address keeps the memory's owner, and lets go of it once."""

import gc
import weakref

import pytest
import torch

from shorthaul.errors import CudaUnavailableError
from shorthaul.tensors.memory import dlpack
from shorthaul.tensors.memory.dlpack import tensor_at

CPU = torch.device("cpu")


class Owner:
    def __init__(self, content: torch.Tensor) -> None:
        self.content = content


def test_it_is_the_memory_and_no_copy() -> None:
    content = torch.arange(20, dtype=torch.uint8)
    seen = tensor_at(content.data_ptr(), 20, CPU, keeper=content)
    assert seen.data_ptr() == content.data_ptr()
    assert torch.equal(seen, content)
    seen[3] = 99
    assert content[3] == 99


def test_the_owner_lives_as_long_as_any_view() -> None:
    owner = Owner(torch.zeros(64, dtype=torch.uint8))
    alive = weakref.ref(owner)
    seen = tensor_at(owner.content.data_ptr(), 64, CPU, keeper=owner)
    view = seen.view(torch.float32)[3:]
    del owner, seen
    gc.collect()
    assert alive() is not None
    view.fill_(1)
    del view
    gc.collect()
    assert alive() is None
    assert not dlpack._held


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would take it")
def test_without_cuda_nothing_is_held() -> None:
    content = torch.zeros(8, dtype=torch.uint8)
    with pytest.raises(CudaUnavailableError):
        tensor_at(content.data_ptr(), 8, torch.device("cuda", 1), keeper=content)
    assert not dlpack._held
