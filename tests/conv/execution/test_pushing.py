"""Forward-mode derivatives: against numbers, PyTorch's own, and each order of nesting against the others."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import jacfwd, jacrev, jvp, linearize, vmap

from shorthaul.conv.execution.operators import convolution_grad_input, convolution_grad_weight
from shorthaul.conv.functional import conv1d, conv2d, conv3d
from shorthaul.conv.transposed import conv_transpose1d, conv_transpose2d

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)

Transform = Callable[..., Callable[..., Tensor]]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


IMAGE, WEIGHT, BIAS = normal(1, 4, 3, 4), normal(6, 2, 3, 3, seed=1), normal(6, seed=2)


def ours(image: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return conv2d(image, weight, bias, stride=2, padding=1, groups=2)


def plain(image: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.conv2d(image, weight, bias, 2, 1, 1, 2)


def agree(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


class TestNumbers:
    """Against finite differences, and forward over reverse."""

    @pytest.mark.parametrize(
        ("function", "shapes"),
        [
            (ours, ((1, 4, 3, 4), (6, 2, 3, 3), (6,))),
            (lambda *each: conv1d(*each, dilation=2), ((2, 2, 7), (3, 2, 3), (3,))),
            (lambda *each: conv3d(*each, padding=1), ((1, 2, 2, 2, 3), (3, 2, 2, 3, 1), (3,))),
            (
                lambda *each: conv2d(*each, padding=((0, 1), (2, 1)), padding_mode="circular"),
                ((1, 2, 3, 4), (3, 2, 2, 3), (3,)),
            ),
            (
                lambda image, weight, added: conv2d(image, weight, activation="silu", residual=added),
                ((1, 2, 3, 4), (3, 2, 2, 3), (1, 3, 2, 2)),
            ),
            (lambda *each: conv_transpose1d(*each, stride=2), ((2, 3, 4), (3, 2, 3), (2,))),
            (
                lambda *each: conv_transpose2d(*each, stride=2, padding=1, groups=2),
                ((1, 4, 3, 3), (4, 3, 3, 3), (6,)),
            ),
        ],
    )  # fmt: skip
    def test_of(self, function: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]) -> None:
        tensors = tuple(
            normal(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)
        )
        assert gradcheck(function, tensors, check_forward_ad=True, fast_mode=True)
        assert gradgradcheck(
            function, tensors, check_fwd_over_rev=True, check_rev_over_rev=True, fast_mode=True
        )

    @pytest.mark.slow
    def test_batched_in_full(self) -> None:
        tensors = tuple(each.clone().requires_grad_() for each in (IMAGE, WEIGHT, BIAS))
        checks = {"check_batched_grad": True}
        assert gradcheck(
            ours, tensors, check_forward_ad=True, check_batched_forward_grad=True, **checks
        )
        assert gradgradcheck(ours, tensors, check_fwd_over_rev=True, **checks)


class TestOrders:
    """Products of tensors that depend on the same values, differentiated in each order of modes."""

    PRODUCTS = (
        (lambda x: conv2d(x, x) ** 2, lambda x: (x * x).sum() ** 2),
        (
            lambda x: convolution_grad_weight(_square(x), x.unsqueeze(2), (2, 2), *GEOMETRY),
            lambda x: x * x.sum() ** 2,
        ),
        (
            lambda x: convolution_grad_input(_square(x), x, (1, 2, 2), *GEOMETRY),
            lambda x: x * x.sum() ** 2,
        ),
    )

    @pytest.mark.parametrize("which", range(len(PRODUCTS)))
    @pytest.mark.parametrize("order", list(itertools.product((jacfwd, jacrev), repeat=2)))
    def test_twice(self, which: int, order: tuple[Transform, ...]) -> None:
        self.compare(which, order)

    @pytest.mark.parametrize("which", range(len(PRODUCTS)))
    def test_forward_three_times(self, which: int) -> None:
        self.compare(which, (jacfwd, jacfwd, jacfwd))

    @pytest.mark.slow
    @pytest.mark.parametrize("which", range(len(PRODUCTS)))
    @pytest.mark.parametrize("order", list(itertools.product((jacfwd, jacrev), repeat=3)))
    def test_three_times(self, which: int, order: tuple[Transform, ...]) -> None:
        self.compare(which, order)

    def compare(self, which: int, order: tuple[Transform, ...]) -> None:
        got, expected = self.PRODUCTS[which]
        for transform in order:
            got, expected = transform(got), transform(expected)
        image = normal(1, 1, 2, 2)
        agree(got(image).flatten(), expected(image).flatten())


GEOMETRY = ((1, 1, 1), (0,) * 6, (1, 1, 1), 1, "zeros", "contiguous", True)


def _square(x: Tensor) -> Tensor:
    return (x.sum() ** 2).view(1, 1, 1, 1, 1)


class TestSurroundings:
    def test_under_vmap_and_around_it(self) -> None:
        tangents = normal(3, *IMAGE.shape, seed=3)
        for function in (
            lambda convolve: vmap(
                lambda tangent: jvp(lambda x: convolve(x, WEIGHT, BIAS), (IMAGE,), (tangent,))[1]
            )(tangents),
            lambda convolve: jvp(
                vmap(lambda x: convolve(x, WEIGHT, BIAS)), (tangents,), (tangents**2,)
            )[1],
        ):
            agree(function(ours), function(plain))

    @pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
    def test_linearized(self) -> None:
        _, push = linearize(lambda x: ours(x, WEIGHT), IMAGE)
        agree(push(IMAGE**2), plain(IMAGE**2, WEIGHT))

    def test_without_gradients_activations_are_differentiated_too(self) -> None:
        with torch.no_grad(), forward_ad.dual_level():
            dual = forward_ad.make_dual(IMAGE, IMAGE**2)
            got = conv2d(dual, WEIGHT, groups=2, activation="relu")
            expected = torch.relu(torch.conv2d(dual, WEIGHT, groups=2))
            agree(forward_ad.unpack_dual(got).tangent, forward_ad.unpack_dual(expected).tangent)

    @pytest.mark.parametrize("which", list(itertools.product((False, True), repeat=3)))
    def test_tangents_of_any_argument(self, which: tuple[bool, ...]) -> None:
        with forward_ad.dual_level():
            arguments = [
                forward_ad.make_dual(each, each.cos()) if is_dual else each
                for each, is_dual in zip((IMAGE, WEIGHT, BIAS), which, strict=True)
            ]
            got = forward_ad.unpack_dual(ours(*arguments)).tangent
            expected = forward_ad.unpack_dual(plain(*arguments)).tangent
            assert (got is None) == (expected is None) == (not any(which))
            if any(which):
                agree(got, expected)

    def test_reverse_over_forward(self) -> None:
        found = []
        for convolve in (ours, plain):
            image, weight = IMAGE.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(image, image.cos())
                turned = forward_ad.make_dual(weight, weight.sin())
                tangent = forward_ad.unpack_dual(convolve(dual, turned)).tangent
                found.append(torch.autograd.grad(tangent.pow(2).sum(), (image, weight)))
        for got, expected in zip(*found, strict=True):
            agree(got, expected)

    def test_a_known_call_does_not_lose_tangents(self) -> None:
        for _ in range(3):
            ours(IMAGE, WEIGHT)
        _, tangent = jvp(lambda x: ours(x, WEIGHT), (IMAGE,), (IMAGE**2,))
        agree(tangent, plain(IMAGE**2, WEIGHT))
