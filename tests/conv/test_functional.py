"""`sh.conv1d`, `conv2d` and `conv3d` against ATen, over everything that they take."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.testing._internal.common_methods_invocations import op_db

from shorthaul.conv import aten, functional
from shorthaul.conv.functional import conv1d, conv2d, conv3d
from shorthaul.conv.problem import PADDING_MODES
from shorthaul.conv.transposed import conv_transpose2d
from shorthaul.errors import ConvolutionError
from shorthaul.fallbacks import taken_fallbacks
from tests.conv.problems import ACTIVATION_LAYOUTS, Case, cases, in_double
from tests.conv.tolerances import require_close

NAMES = ("conv1d", "conv2d", "conv3d")
INFOS = {each.name.rpartition(".")[2]: each for each in op_db if each.name.endswith(NAMES)}
# PyTorch's own "same" padding warns about a copy that ours does not make.
SAME_WARNING = "ignore:Using padding='same' with even kernel lengths:UserWarning"


@pytest.mark.filterwarnings(SAME_WARNING)
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.complex128, pytest.param(torch.float64, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", NAMES)
def test_all_samples_of_torch(name: str, dtype: torch.dtype) -> None:
    samples = list(INFOS[name].sample_inputs("cpu", dtype, requires_grad=True))
    assert len(samples) >= 10
    for sample in samples:
        arguments = (sample.input, *sample.args)
        expected = INFOS[name].op(*arguments, **sample.kwargs)
        got = getattr(functional, name)(*arguments, **sample.kwargs)
        leaves = [each for each in arguments if isinstance(each, torch.Tensor)]
        gradient = torch.randn_like(expected)
        pairs = zip(
            (got, *torch.autograd.grad(got, leaves, gradient)),
            (expected, *torch.autograd.grad(expected, leaves, gradient)),
            strict=True,
        )
        for one, other in pairs:
            if dtype.is_complex:
                torch.testing.assert_close(one, other)
            else:
                require_close(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_get_the_words_of_torch(name: str) -> None:
    errors = list(INFOS[name].error_inputs("cpu"))
    assert len(errors) >= 10
    for error in errors:
        sample = error.sample_input
        with pytest.raises(ConvolutionError, match=error.error_regex):
            getattr(functional, name)(sample.input, *sample.args, **sample.kwargs)


def _flat(case: Case) -> tuple[Any, dict[str, Any], int]:
    """A case as a caller would write it, with as few dimensions as it has."""
    problem = case.problem
    dimensions = 3
    for axis in range(2):
        is_trivial = case.sizes[axis] == problem.kernel[axis] == problem.stride[axis] == 1
        if not is_trivial or dimensions < 3 - axis or problem.padding[axis] != (0, 0):
            break
        dimensions -= 1
    first = 3 - dimensions
    options = {
        "stride": problem.stride[first:],
        "padding": problem.padding[first:],
        "dilation": problem.dilation[first:],
        "groups": problem.groups,
        "padding_mode": problem.padding_mode,
    }
    return (conv1d, conv2d, conv3d)[dimensions - 1], options, first


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_images_without_channels_give_what_they_give_in_torch(mode: str, groups: int) -> None:
    # No channels either, although the weight and the bias have some.
    leaves = [
        torch.randn(shape, requires_grad=True) for shape in ((2, 0, 6, 5), (4, 0, 3, 3), (4,))
    ]
    expected = torch.conv2d(*leaves, padding=(2, 1), groups=groups)
    options: dict[str, Any] = {"padding": (2, 1), "padding_mode": mode, "groups": groups}
    got = conv2d(*leaves, **options)
    assert got.shape == expected.shape
    for one, other in zip(
        torch.autograd.grad(got.sum(), leaves),
        torch.autograd.grad(expected.sum(), leaves),
        strict=True,
    ):
        assert torch.equal(one, other)
    with torch.no_grad():
        assert conv2d(*leaves, **options).shape == expected.shape
        out = torch.empty_like(expected)
        assert conv2d(*leaves, **options, out=out) is out


LOW_AND_HIGH = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _check(case: Case) -> None:
    image, weight, bias = case.tensors()
    run, options, first = _flat(case)
    axes = tuple(range(2, 2 + first))
    arguments = [image.squeeze(axes), weight.squeeze(axes), bias]
    double = [None if each is None else each.double() for each in (image, weight, bias)]
    expected = aten.run_forward(in_double(case.problem), *double).squeeze(axes)
    with torch.no_grad():
        require_close(run(*arguments, **options), expected)


@settings(deadline=None, max_examples=80)
@given(cases(is_quick=True))
def test_any_problem(case: Case) -> None:
    _check(case)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(deadline=None, max_examples=3000)
@given(cases(LOW_AND_HIGH))
def test_very_many_problems(case: Case) -> None:
    _check(case)


def test_gradients_and_second_gradients() -> None:
    torch.manual_seed(0)
    arguments = [
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 4, 5, 4), (4, 2, 3, 2), (4,), (2, 4, 3, 3))
    ]

    def run(
        image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        return conv2d(
            image, weight, bias, stride=2, padding=((1, 1), (1, 2)), groups=2,
            padding_mode="reflect", activation="tanh", residual=residual,
        )  # fmt: skip

    assert torch.autograd.gradcheck(run, arguments, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, arguments, fast_mode=True)


@pytest.mark.parametrize("mode", PADDING_MODES)
@pytest.mark.parametrize("run", [conv1d, conv2d, conv3d])
def test_gradients_through_every_padding_mode(run: Any, mode: str) -> None:
    torch.manual_seed(0)
    dimensions = int(run.__name__[4])
    image = torch.randn(1, 2, *(4,) * dimensions, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 2, *(2,) * dimensions, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *each: run(*each, padding=((1, 2),), padding_mode=mode),
        (image, weight),
        fast_mode=True,
    )


@pytest.mark.parametrize(("activation", "layout"), ACTIVATION_LAYOUTS)
def test_a_fused_activation_is_the_separate_one(activation: str, layout: str) -> None:
    image, weight, bias = torch.randn(2, 5, 6, 13), torch.randn(19, 5, 3, 3), torch.randn(19)
    if layout == "channels_last":
        image = image.to(memory_format=torch.channels_last)
    expected = getattr(torch.nn.functional, activation)(torch.conv2d(image, weight, bias))
    require_close(conv2d(image, weight, bias, activation=activation), expected)
    weight.requires_grad_()
    require_close(conv2d(image, weight, bias, activation=activation), expected)


def test_only_input_and_weight_are_saved() -> None:
    image = torch.randn(2, 3, 8, 8, requires_grad=True)
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    bias = torch.randn(4, requires_grad=True)
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        conv2d(image, weight, bias)
    storages = {each.untyped_storage().data_ptr() for each in saved}
    assert storages == {image.data_ptr(), weight.data_ptr()}


class TestLayouts:
    image = torch.randn(2, 3, 6, 5)
    weight = torch.randn(4, 3, 3, 3)

    def test_channels_last_comes_from_the_input(self) -> None:
        got = conv2d(self.image.to(memory_format=torch.channels_last), self.weight)
        assert got.is_contiguous(memory_format=torch.channels_last)
        require_close(got, torch.conv2d(self.image, self.weight))

    def test_or_from_the_weight(self) -> None:
        got = conv2d(self.image, self.weight.to(memory_format=torch.channels_last))
        assert got.is_contiguous(memory_format=torch.channels_last)
        require_close(got, torch.conv2d(self.image, self.weight))

    def test_or_from_a_slice_of_it(self) -> None:
        image = self.image.to(memory_format=torch.channels_last)[:, :, ::2]
        got = conv2d(image, self.weight)
        assert got.is_contiguous(memory_format=torch.channels_last)
        require_close(got, torch.conv2d(image, self.weight))

    def test_contiguous_otherwise(self) -> None:
        image = self.image.transpose(2, 3)
        got = conv2d(image, self.weight)
        assert got.is_contiguous()
        require_close(got, torch.conv2d(image, self.weight))

    def test_three_dimensions(self) -> None:
        image, weight = torch.randn(2, 3, 4, 6, 5), torch.randn(4, 3, 3, 3, 3)
        got = conv3d(image.to(memory_format=torch.channels_last_3d), weight)
        assert got.is_contiguous(memory_format=torch.channels_last_3d)
        require_close(got, torch.conv3d(image, weight))

    @pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
    def test_backward_in_both(self, layout: torch.memory_format) -> None:
        image = self.image.detach().to(memory_format=layout).requires_grad_()
        weight = self.weight.clone().requires_grad_()
        expected = torch.autograd.grad(torch.conv2d(image, weight).pow(2).sum(), (image, weight))
        got = torch.autograd.grad(conv2d(image, weight).pow(2).sum(), (image, weight))
        for one, other in zip(got, expected, strict=True):
            require_close(one, other)


class TestOut:
    image = torch.randn(2, 3, 6, 6)
    weight = torch.randn(4, 3, 3, 3)

    @pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
    def test_prefilled_with_nan_and_in_any_layout(self, layout: torch.memory_format) -> None:
        out = torch.full((2, 4, 4, 4), torch.nan).to(memory_format=layout)
        assert conv2d(self.image, self.weight, out=out) is out
        require_close(out, torch.conv2d(self.image, self.weight))

    def test_unbatched(self) -> None:
        out = torch.full((4, 4, 4), torch.nan)
        conv2d(self.image[0], self.weight, out=out)
        require_close(out, torch.conv2d(self.image[0], self.weight))

    def test_of_an_empty_batch(self) -> None:
        out = torch.empty(0, 4, 4, 4)
        assert conv2d(self.image[:0], self.weight, out=out) is out

    @pytest.mark.parametrize(
        "out", [torch.empty(2, 4, 4, 5), torch.empty(2, 4, 4, 4, dtype=torch.float64)]
    )
    def test_of_another_shape_or_dtype_is_refused(self, out: torch.Tensor) -> None:
        with pytest.raises(ConvolutionError, match=r"`out` must be torch\.float32 of shape"):
            conv2d(self.image, self.weight, out=out)

    def test_has_no_gradient(self) -> None:
        weight = self.weight.clone().requires_grad_()
        with pytest.raises(ConvolutionError, match="has no gradient and no graph"):
            conv2d(self.image, weight, out=torch.empty(2, 4, 4, 4))


def test_a_batch_of_no_images() -> None:
    image = torch.zeros(0, 3, 5, 5, requires_grad=True)
    weight, bias = torch.ones(4, 3, 3, 3, requires_grad=True), torch.ones(4, requires_grad=True)
    output = conv2d(image, weight, bias)
    assert output.shape == (0, 4, 3, 3)
    output.sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.zeros_like(weight))
    assert bias.grad is not None
    assert bias.grad.tolist() == [0.0] * 4


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf, 1e-40, -1e-40])
@pytest.mark.parametrize("where", ["image", "weight"])
def test_special_values_behave_as_in_aten(special: float, where: str) -> None:
    torch.manual_seed(0)
    image, weight = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3)
    (image if where == "image" else weight)[0, 1, 1, 2] = special
    require_close(conv2d(image, weight, padding=1), torch.conv2d(image, weight, padding=1))


def test_denormal_results_are_kept() -> None:
    image, weight = torch.full((1, 1, 3, 3), 1e-20), torch.full((1, 1, 3, 3), 1e-20)
    got = conv2d(image, weight)
    assert got.item() == pytest.approx(9e-40, rel=1e-4)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("channels", "groups"), [((5, 19), 1), ((24, 40), 1), ((8, 8), 8), ((8, 16), 2)]
)
def test_bits_do_not_depend_on_threads_or_batch(
    channels: tuple[int, int], groups: int, layout: torch.memory_format, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    image = torch.randn(8, channels[0], 23, 31).to(dtype).to(memory_format=layout)
    weight = torch.randn(channels[1], channels[0] // groups, 3, 3).to(dtype)
    one = conv2d(image, weight, padding=1, groups=groups)
    torch.set_num_threads(2)
    two = conv2d(image, weight, padding=1, groups=groups)
    alone = conv2d(image[3:4], weight, padding=1, groups=groups)
    assert torch.equal(one, two)
    assert torch.equal(one[3:4], alone)


def test_changed_weights_are_seen() -> None:
    image, weight = torch.randn(1, 3, 6, 6), torch.nn.Parameter(torch.randn(4, 3, 3, 3))
    with torch.no_grad():
        for _ in range(3):
            require_close(conv2d(image, weight), torch.conv2d(image, weight))
            weight.mul_(2).add_(1)
        weight.data = torch.randn(4, 3, 3, 3)  # no version is counted for this
        require_close(conv2d(image, weight), torch.conv2d(image, weight))


class TestCompiled:
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_whole_graph_forward_and_backward(self, dynamic: bool) -> None:
        torch._dynamo.reset()
        weight = torch.randn(4, 3, 3, 3, requires_grad=True)

        def run(image: torch.Tensor) -> torch.Tensor:
            return conv2d(image, weight, padding="same", padding_mode="circular", activation="relu")

        compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for size in (6, 9):
            image = torch.randn(2, 3, size, size).to(memory_format=torch.channels_last)
            got, expected = compiled(image), run(image)
            require_close(got, expected)
            assert got.stride() == expected.stride()
            one, other = (torch.autograd.grad(each.sum(), weight)[0] for each in (got, expected))
            require_close(one, other)
            with torch.no_grad():
                require_close(compiled(image), expected)

    def test_autocast_inside(self) -> None:
        torch._dynamo.reset()
        image, weight = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3)

        def run(image: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.float16):
                return conv2d(image, weight)

        assert torch.compile(run, fullgraph=True, backend="aot_eager")(image).dtype == torch.float16

    def test_exported_with_dynamic_sizes(self) -> None:
        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(4, 3, 3, 3))

            def forward(self, image: torch.Tensor) -> torch.Tensor:
                return conv2d(image, self.weight, stride=2, padding=1)

        model = Model()
        sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=4)}
        exported = torch.export.export(model, (torch.randn(2, 3, 8, 8),), dynamic_shapes=(sizes,))
        image = torch.randn(5, 3, 13, 8)
        require_close(exported.module()(image), model(image))


class TestAutocast:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_casts_as_it_does_for_torch(self, dtype: torch.dtype) -> None:
        image, weight, bias = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randn(4)
        weight.requires_grad_()
        with torch.autocast("cpu", dtype=dtype):
            got = conv2d(image, weight, bias)
        assert got.dtype == dtype
        expected = torch.conv2d(image.double(), weight.double(), bias.double())
        require_close(got, expected, 4 * 2.0 ** (-8 if dtype == torch.bfloat16 else -11))
        got.float().sum().backward()
        assert weight.grad is not None
        assert weight.grad.dtype == torch.float32

    def test_leaves_double_alone(self) -> None:
        image, weight = (torch.randn(1, 3, 6, 6).double() for _ in range(2))
        with torch.autocast("cpu"):
            assert conv2d(image, weight).dtype == torch.float64


def test_integers_are_left_to_aten_and_noted() -> None:
    image, weight = torch.ones(1, 2, 4, 4, dtype=torch.int64), torch.ones(1, 2, 3, 3).long()
    assert conv2d(image, weight).unique().tolist() == [18]
    reasons = {each.reason for each in taken_fallbacks() if each.what == "convolution"}
    assert "torch.int64 has no generated kernel" in reasons


def test_a_kernel_larger_than_the_image_is_refused() -> None:
    with pytest.raises(ConvolutionError, match="can't be greater than actual input size"):
        conv2d(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 5, 5))


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ConvolutionError, match="activation must be None or one of relu"):
        conv2d(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 3, 3), activation="mish")


def test_an_unknown_padding_mode_is_refused() -> None:
    with pytest.raises(ConvolutionError, match="padding_mode must be one of zeros"):
        conv2d(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 3, 3), padding_mode="wrap")


def test_shapes_on_the_meta_device() -> None:
    image, weight = torch.empty(2, 3, 8, 8, device="meta"), torch.empty(4, 3, 3, 3, device="meta")
    assert conv2d(image, weight, stride=2, padding=1).shape == (2, 4, 4, 4)


LAYINGS = {
    "contiguous": lambda tensor: tensor.contiguous(),
    "channels_last": lambda tensor: tensor.contiguous(memory_format=torch.channels_last).clone(),
    "slice": lambda tensor: torch.cat((tensor, tensor), 1).contiguous(
        memory_format=torch.channels_last
    )[:, : tensor.shape[1]],
    "turned": lambda tensor: tensor.transpose(2, 3).contiguous().transpose(2, 3),
}


@pytest.mark.parametrize("of_weight", ["contiguous", "channels_last"])
@pytest.mark.parametrize("of_image", list(LAYINGS))
def test_outputs_lie_as_pytorch_lays_them(of_image: str, of_weight: str) -> None:
    sizes = itertools.product((1, 2), (1, 2, 8), (1, 4), (1, 3, 8), (1, 3), (False, True))
    for batch, channels, out, size, kernel, is_transposed in sizes:
        if kernel > size:
            continue
        shape = (
            (channels, out, kernel, kernel) if is_transposed else (out, channels, kernel, kernel)
        )
        image = LAYINGS[of_image](torch.randn(batch, channels, size, size))
        weight = LAYINGS[of_weight](torch.randn(shape))
        convolve = (
            (conv_transpose2d, torch.conv_transpose2d) if is_transposed else (conv2d, torch.conv2d)
        )
        got, expected = (each(image, weight) for each in convolve)
        # Strides of dimensions of one value are not compared: no value is reached by them.
        strides = [
            [stride for stride, length in zip(each.stride(), each.shape, strict=True) if length > 1]
            for each in (got, expected)
        ]
        assert strides[0] == strides[1], (image.shape, weight.shape, is_transposed)
        for last in (torch.contiguous_format, torch.channels_last):
            assert got.is_contiguous(memory_format=last) == expected.is_contiguous(
                memory_format=last
            )


@pytest.mark.parametrize("given", ["image", "weight", "residual"])
def test_out_may_be_what_is_read(given: str) -> None:
    tensors = {name: torch.randn(3, 3, 3, 3) for name in ("image", "weight", "residual")}
    image, weight, residual = (tensors[name].clone() for name in ("image", "weight", "residual"))
    expected = torch.conv2d(image, weight, padding=1) + residual
    got = conv2d(
        tensors["image"],
        tensors["weight"],
        padding=1,
        residual=tensors["residual"],
        out=tensors[given],
    )
    assert got is tensors[given]
    require_close(got, expected)


def test_a_graph_that_kept_out_notices_that_it_was_written() -> None:
    buffer = torch.ones(1, 2, 2, 2)
    squared = torch.ones(1, 2, 2, 2, requires_grad=True) * buffer
    with torch.no_grad():
        conv2d(torch.randn(1, 1, 4, 4), torch.randn(2, 1, 3, 3), out=buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


def test_out_of_other_dimensions_is_refused() -> None:
    with pytest.raises(
        ConvolutionError, match=r"`out` must be torch\.float32 of shape \(1, 2, 2, 2\)"
    ):
        conv2d(torch.randn(1, 1, 4, 4), torch.randn(2, 1, 3, 3), out=torch.empty(8))


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_result_is_not_written_to_memory_that_is_mapped_for_reading(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 2, 2, 2), np.float32))
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r"))
    with pytest.raises(ConvolutionError, match="`out` lies in read-only memory"):
        conv2d(torch.randn(1, 1, 4, 4), torch.randn(2, 1, 3, 3), out=mapped)
