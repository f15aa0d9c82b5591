"""Whether values changed: of small tensors, of large ones, and where nobody can tell."""

import copy
import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.conv.execution import fingerprint as module
from shorthaul.conv.execution.fingerprint import (
    EXACT_BYTES,
    fingerprint,
    freeze,
    freeze_weights,
    look_at,
)
from shorthaul.conv.functional import conv2d
from shorthaul.settings import settings
from tests.conv.tolerances import require_close

LARGE = EXACT_BYTES // 4 + 1  # values of float32


class Wrapper(torch.Tensor):
    """A tensor of 100 values without memory of its own, as sharded parameters are."""

    @staticmethod
    def __new__(cls) -> torch.Tensor:
        made: torch.Tensor = torch.Tensor._make_wrapper_subclass(cls, (100,))  # type: ignore[attr-defined]
        return made

    @classmethod
    def __torch_dispatch__(cls, *arguments: object) -> None:
        raise NotImplementedError


class TestFingerprint:
    @pytest.mark.parametrize("values", [1, 2, 31, 4096])
    def test_small_tensors_are_their_own_bytes(self, values: int) -> None:
        tensor = torch.arange(float(values))
        assert fingerprint(tensor) == tensor.numpy().tobytes()

    def test_no_values(self) -> None:
        assert fingerprint(torch.empty(3, 0)) == b""

    def test_every_byte_of_a_large_tensor_counts(self) -> None:
        values = torch.randint(0, 256, (EXACT_BYTES + 77,), dtype=torch.uint8)
        seen = {fingerprint(values)}
        for position in range(0, values.numel(), 5):
            values[position] ^= 1 << position % 8
            seen.add(fingerprint(values))
        assert len(seen) == 1 + -(-values.numel() // 5)

    @given(st.data())
    def test_pairs_of_changes_do_not_cancel(self, data: st.DataObject) -> None:
        # Signs are single high bits, which a product alone would leave where they are.
        tensor = torch.full((1 << 16,), 1.5)
        before = fingerprint(tensor)
        first = data.draw(st.integers(0, tensor.numel() - 1))
        apart = data.draw(st.sampled_from((1, 2, 15, 16, 32, 8192, 16384)))
        tensor[first] *= -1
        tensor[(first + apart) % tensor.numel()] *= -1
        assert fingerprint(tensor) != before

    @pytest.mark.parametrize("values", [LARGE, 1 << 18, (1 << 20) + 3])
    def test_the_number_of_threads_changes_nothing(self, values: int) -> None:
        tensor = torch.randn(values)
        alone = fingerprint(tensor)
        torch.set_num_threads(2)
        assert fingerprint(tensor) == alone

    def test_memory_at_any_address(self) -> None:
        tensor = torch.randn(LARGE).to(torch.bfloat16)
        shifted = torch.cat((tensor[:1], tensor))[1:]
        assert shifted.data_ptr() % 8 == 2
        assert fingerprint(shifted) == fingerprint(tensor)

    @given(st.lists(st.integers(0, 6), max_size=4), st.data())
    def test_views_are_read_within_their_own_memory(
        self, sizes: list[int], data: st.DataObject
    ) -> None:
        whole = torch.zeros(sizes, dtype=torch.float64)
        for axis, size in enumerate(sizes):
            start = data.draw(st.integers(0, size))
            whole = whole.narrow(axis, start, size - start)
        turned = whole.permute(data.draw(st.permutations(range(len(sizes)))))
        seen = fingerprint(turned)
        assert isinstance(seen, bytes)
        assert set(seen) <= {0}

    def test_where_nobody_can_tell(self) -> None:
        assert fingerprint(torch.empty(100, device="meta")) is None
        released = torch.ones(100)
        released.untyped_storage().resize_(0)  # as sharding does between steps
        assert fingerprint(released) is None
        wrapped = Wrapper()
        assert wrapped.is_cpu
        assert fingerprint(wrapped) is None
        with settings.override(kernels="torch"):
            assert fingerprint(torch.ones(LARGE)) is None


class TestFreezing:
    def test_frozen_weights_are_known_by_their_version(self) -> None:
        weight = torch.zeros(LARGE)
        freeze(weight)
        seen = look_at(weight)
        assert look_at(weight) == seen
        weight.data[0] = 1  # what was promised not to happen
        assert look_at(weight) == seen
        weight[0] = 2
        assert look_at(weight) != seen
        weight.data = torch.zeros(LARGE)
        assert look_at(weight) != seen

    def test_what_needs_a_gradient_is_not_frozen(self) -> None:
        weight = torch.nn.Parameter(torch.zeros(LARGE))
        freeze(weight)
        seen = look_at(weight)
        weight.data[17] = 1
        assert look_at(weight) != seen

    def test_a_promise_goes_with_its_tensor(self) -> None:
        freeze_weights(torch.nn.Identity())  # forgets those that are gone
        before = len(module._frozen)
        weight = torch.zeros(3)
        freeze(weight)
        assert len(module._frozen) == before + 1
        del weight
        gc.collect()
        freeze_weights(torch.nn.Identity())
        assert len(module._frozen) == before

    def test_a_model(self) -> None:
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        freeze_weights(model)
        assert not any(each.requires_grad for each in model.parameters())
        image = torch.randn(1, 3, 6, 6)
        other = {name: torch.randn_like(each) for name, each in model[0].state_dict().items()}
        for _ in range(2):
            got = conv2d(image, model[0].weight, model[0].bias)
            require_close(got, torch.conv2d(image, model[0].weight, model[0].bias))
            model[0].load_state_dict(other)
        assert not isinstance(look_at(copy.deepcopy(model)[0].weight)[0], int)  # type: ignore[index]
