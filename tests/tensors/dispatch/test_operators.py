"""Where operators run and what they give back, and torch's own samples of them, to the last bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import shorthaul as sh
from shorthaul.errors import PlacementError
from shorthaul.tensors import UnifiedTensor
from shorthaul.tensors.dispatch.operators import describe_operator

aten = torch.ops.aten

# Placement, with `meta` as the device that this machine has no other of.


def test_operands_on_a_device_take_the_operation_there() -> None:
    u, there = sh.unified(torch.ones(4, 3)), torch.ones(4, 3, device="meta")
    for made in (u + there, there * u, torch.cat([u, there]), torch.where(there > 0, u, u)):
        assert type(made) is torch.Tensor
        assert made.device.type == "meta"
    one = torch.tensor(2.0)
    assert torch.addcmul(u, there, one).device.type == "meta"  # a CPU scalar comes along


def test_a_cpu_tensor_keeps_the_operation_on_the_cpu() -> None:
    u = sh.unified(torch.ones(4, 3))
    assert (u + torch.ones(4, 3)).device.type == "cpu"
    with pytest.raises(PlacementError, match=r"`addcmul` .* on cpu and meta"):
        torch.addcmul(u, torch.ones(4, 3), torch.ones(4, 3, device="meta"))


@pytest.mark.parametrize("propagate", [False, True])
def test_results_propagate_when_asked(propagate: bool) -> None:
    kind = UnifiedTensor if propagate else torch.Tensor
    u = sh.unified(torch.rand(4, 3), propagate=propagate)
    alone = (u + 1, u * torch.tensor(2.0), u.sum(0), u @ u.t(), torch.zeros_like(u), u.half())
    for made in (*alone, *torch.sort(u), u.new_ones(3)):
        assert type(made) is kind
    assert type(u + torch.ones(3)) is torch.Tensor
    assert (u + torch.ones(4, 3, device="meta")).device.type == "meta"
    if propagate:
        assert (u + 1).propagate


def test_what_is_written_to_decides_the_place() -> None:
    x, other = torch.rand(4, 3), torch.rand(4, 3)
    u = sh.unified(x.clone())
    out = sh.unified_empty(4, 3)
    assert torch.add(u, other, out=out) is out
    assert torch.equal(out, x + other)
    assert torch.mul(x, 2, out=out) is out
    plain = torch.empty(4, 3)
    assert type(torch.add(u, u, out=plain)) is torch.Tensor
    assert torch.equal(plain, x + x)
    assert u.add_(other) is u
    assert torch.equal(u, x + other)
    resized = sh.unified_empty(0)
    torch.add(x, 1, out=resized)
    assert torch.equal(resized[torch.tensor([3, 0])], (x + 1)[[3, 0]])


def test_a_device_asked_for_by_name_is_obeyed() -> None:
    u = sh.unified(torch.ones(2, 3), propagate=True)
    assert u.to("meta").device.type == "meta"
    assert torch.zeros_like(u, device="meta").device.type == "meta"
    assert type(torch.zeros_like(u, device="cpu")) is torch.Tensor
    assert u.new_empty(2, device="meta").device.type == "meta"


def test_the_schema_tells_views_and_writes() -> None:
    assert describe_operator(aten.transpose.int).is_view
    assert not describe_operator(aten.add.Tensor).is_view
    assert describe_operator(aten.add_.Tensor).written == (0,)
    assert describe_operator(aten.add.out).written == ("out",)
    assert describe_operator(aten.sort.values).written == ("values", "indices")


# Torch's samples.

POINTWISE_AND_INDEXING = [
    "__getitem__",
    "index_select",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "gather",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "take",
    "take_along_dim",
    "masked_select",
    "masked_fill",
    "masked_scatter",
    "where",
    "nonzero",
    "cat",
    "stack",
    "split",
    "chunk",
    "narrow",
    "select",
    "unbind",
    "diagonal",
    "expand",
    "permute",
    "t",
    "unfold",
    "view",
    "reshape",
    "flatten",
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "exp",
    "log",
    "sqrt",
    "sigmoid",
    "tanh",
    "clamp",
    "maximum",
    "minimum",
    "fmod",
    "remainder",
    "abs",
    "neg",
    "sign",
    "lerp",
    "addcmul",
    "addcdiv",
    "eq",
    "lt",
    "isnan",
    "logical_and",
    "bitwise_and",
    "nn.functional.relu",
    "nn.functional.gelu",
    "nn.functional.embedding",
    "nn.functional.embedding_bag",
    "nn.functional.softmax",
    "sum",
    "mean",
    "amax",
    "cumsum",
    "sort",
    "topk",
    "matmul",
    "nn.functional.linear",
    "roll",
    "flip",
    "repeat",
    "tile",
    "clone",
    "to",
    "type_as",
    "copysign",
    "searchsorted",
]
# Equal but for the last bits. Torch computes the gradients of the first two otherwise for any
# subclass of tensors, without shapes that depend on values; why two drivers of lstsq give other last
# bits in the forward pass is not known.
OTHER_FORMULA = {"prod", "masked_fill", "linalg.lstsq"}
UNREPEATABLE = {
    "empty",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "empty_strided",
    "empty_permuted",
}
PARTS = 6


def list_operators(dtype: torch.dtype) -> list[Any]:
    # Here and not above: this import takes longer than most test files.
    from torch.testing._internal.common_methods_invocations import op_db

    return [each for each in op_db if dtype in each.dtypes and each.name not in UNREPEATABLE]


def copied(values: Any, *, unify: bool) -> Any:
    """New leaves with the same values: unified, or plain."""

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        made = value.detach().clone(memory_format=torch.preserve_format)
        if unify and not (made.is_conj() or made.is_neg()):
            made = sh.unified(made)
        return made.requires_grad_(value.requires_grad)

    return tree_map(copy, values)


def run_sample(operator: Any, sample: Any, *, unify: bool) -> list[Any]:
    """The results and all gradients, or the kind of error."""
    first, args, kwargs = copied((sample.input, sample.args, sample.kwargs), unify=unify)
    torch.manual_seed(0)
    try:
        result = operator(first, *args, **kwargs)
        outputs = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        wanted = [each for each in outputs if each.requires_grad]
        leaves = [
            each
            for each in tree_leaves((first, args, kwargs))
            if isinstance(each, torch.Tensor) and each.requires_grad
        ]
        gradients: Iterable[Any] = ()
        if wanted and leaves:
            seeds = [torch.randn(each.shape, dtype=each.dtype) for each in wanted]
            gradients = torch.autograd.grad(wanted, leaves, seeds, allow_unused=True)
        return [each.detach() for each in outputs] + [*gradients]
    except Exception as error:
        return [type(error)]


def are_same(wanted: list[Any], got: list[Any], tolerance: float = 0.0) -> bool:
    """Whether results are equal, to the last bit but for the payload of not-a-number."""
    if len(wanted) != len(got):
        return False
    for want, have in zip(wanted, got, strict=True):
        if not isinstance(want, torch.Tensor) or not isinstance(have, torch.Tensor):
            if want is not have:
                return False
            continue
        want, have = (
            each.cpu() if isinstance(each, UnifiedTensor) else each for each in (want, have)
        )
        if (want.dtype, want.shape, want.layout) != (have.dtype, have.shape, have.layout):
            return False
        want, have = want.resolve_conj().to_dense(), have.resolve_conj().to_dense()
        if not torch.allclose(want, have, rtol=tolerance, atol=tolerance, equal_nan=True):
            return False
    return True


def draw_samples(operators: Iterable[Any], dtype: torch.dtype, count: int | None) -> Iterator[Any]:
    for operator in operators:
        records = operator.supports_autograd and dtype in operator.supported_backward_dtypes("cpu")
        torch.manual_seed(0)
        samples = operator.sample_inputs("cpu", dtype, requires_grad=records)
        yield from ((operator, sample) for sample in itertools.islice(samples, count))


def compare(samples: Iterable[Any]) -> tuple[int, list[str]]:
    """How many samples were compared, and which came out otherwise."""
    compared, problems = 0, []
    for operator, sample in samples:
        wanted = run_sample(operator, sample, unify=False)
        if not are_same(wanted, run_sample(operator, sample, unify=False)):
            continue  # it does not even agree with itself
        compared += 1
        is_wide = not any(getattr(each, "dtype", None) == torch.bfloat16 for each in wanted)
        last_bits = 1e-5 if is_wide else 2e-2
        tolerance = last_bits if operator.name in OTHER_FORMULA else 0.0
        got = run_sample(operator, sample, unify=True)
        if not are_same(wanted, got, tolerance):
            problems.append(f"{operator.name}{operator.variant_test_name}: {wanted} {got}"[:400])
    return compared, problems


@pytest.mark.filterwarnings("ignore")  # the samples reach into every old corner
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_indexing_and_pointwise_samples_agree_to_the_bit(dtype: torch.dtype) -> None:
    chosen = [each for each in list_operators(dtype) if each.name in POINTWISE_AND_INDEXING]
    assert len({each.name for each in chosen}) > 50
    compared, problems = compare(draw_samples(chosen, dtype, 3))
    assert not problems
    assert compared > 120


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool], ids=str)
def test_all_samples_agree_to_the_bit(dtype: torch.dtype, part: int) -> None:
    count = 12 if dtype == torch.float32 else 4
    compared, problems = compare(draw_samples(list_operators(dtype)[part::PARTS], dtype, count))
    assert not problems
    assert compared > 0


def test_the_comparison_finds_differences() -> None:
    one, other = torch.ones(2), torch.tensor([1.0, 1.0000001])
    nan = torch.tensor([1.0, float("nan")])
    assert are_same([one, ValueError], [sh.unified(one), ValueError])
    assert are_same([nan], [nan.clone()])
    assert not are_same([one], [other])
    assert not are_same([one], [one.double()])
    assert not are_same([one], [one, one])
    assert not are_same([one], [ValueError])
    assert not are_same([one.requires_grad_().sum()], [None])
