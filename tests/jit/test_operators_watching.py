"""Whether anybody looks on."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import shorthaul as sh
from shorthaul.jit.operators import are_ordinary, is_plain, is_watched, needs_gradient


def test_nobody_looks_on() -> None:
    x = torch.ones(2)
    assert not is_watched()
    assert is_plain(x, None)


def test_who_looks_on() -> None:
    seen = []
    torch.func.vmap(lambda x: seen.append(is_watched()) or x)(torch.ones(2))
    with torch.profiler.profile():
        seen.append(is_watched())
    with torch.autograd.forward_ad.dual_level():
        seen.append(is_watched())
    make_fx(lambda x: seen.append(is_watched()) or x)(torch.ones(2))
    assert seen == [True] * 4
    assert not is_watched()


def test_gradients_are_needed_where_they_are_recorded() -> None:
    x, y = torch.ones(2), torch.ones(2, requires_grad=True)
    assert needs_gradient(x, y)
    assert not needs_gradient(x, None)
    assert not is_plain(x, y)
    with torch.no_grad():
        assert not needs_gradient(x, y)
        assert is_plain(x, y)


def test_other_kinds_of_tensors() -> None:
    class Own(torch.Tensor):
        pass

    assert are_ordinary(torch.ones(1), None, torch.nn.Parameter(torch.ones(1)))
    assert not are_ordinary(torch.ones(1).as_subclass(Own))
    assert not are_ordinary(torch.ones(1, device="meta"))


def test_a_pending_negation_is_resolved() -> None:
    image = torch.randn(1, 3, 8, 8)
    weight = torch.randn(4, 3, 3, 3, dtype=torch.complex64).conj().imag
    assert weight.is_neg()
    assert not are_ordinary(weight)
    expected = torch.conv2d(image, weight)
    for _ in range(2):  # the second call might be known
        torch.testing.assert_close(sh.conv2d(image, weight), expected)
