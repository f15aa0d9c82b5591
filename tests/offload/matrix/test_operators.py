"""PyTorch's own samples of every operator, with and without offloading, to the last bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import shorthaul as sh

pytestmark = pytest.mark.filterwarnings("ignore")  # the samples reach into every old corner

# In `make test` every so-many-th operator has this many of its samples run.
STRIDES = {torch.float32: 4, torch.float64: 16, torch.complex64: 8, torch.bfloat16: 12}
SAMPLES = 2
PARTS = 8  # of the exhaustive run, so that each is over in some minutes


def list_operators(dtype: torch.dtype) -> list[Any]:
    """The operators that have a gradient in `dtype`."""
    # Here and not above: this import takes longer than most test files.
    from torch.testing._internal.common_methods_invocations import op_db

    for each in op_db:
        if each.name == "index_select":
            # Where a test imported PyG before, it put another function in place of PyTorch's, which
            # does not take scalars.
            each.op = torch._C._VariableFunctions.index_select
    return [
        each
        for each in op_db
        if each.supports_autograd and dtype in each.supported_backward_dtypes("cpu")
    ]


def gradients_of_sample(operator: Any, sample: Any, offload: Any = None) -> list[Any] | None:
    """The gradients of everything that asks for one; `None` where the result has no gradient."""
    torch.manual_seed(0)
    if offload is None:
        result = operator(sample.input, *sample.args, **sample.kwargs)
    else:
        with offload:
            result = operator(sample.input, *sample.args, **sample.kwargs)
        offload.store.wait_until_idle()  # or most would be used before they have left memory
    given = tree_leaves((sample.input, sample.args, sample.kwargs))
    leaves = [each for each in given if isinstance(each, torch.Tensor) and each.requires_grad]
    outputs = [
        each
        for each in tree_leaves(sample.output_process_fn_grad(result))
        if isinstance(each, torch.Tensor) and each.requires_grad
    ]
    if not outputs or not leaves:
        return None
    seeds = [torch.randn_like(each.detach()) for each in outputs]
    return list(torch.autograd.grad(outputs, leaves, seeds, allow_unused=True))


def are_same(wanted: list[Any] | None, got: list[Any] | None) -> bool:
    """Whether gradients are equal, where not-a-number equals itself."""
    if wanted is None or got is None:
        return wanted is got
    for want, have in zip(wanted, got, strict=True):
        if want is None or have is None:
            if want is not have:
                return False
        elif (want.dtype, want.shape) != (have.dtype, have.shape) or not torch.allclose(
            want.to_dense(), have.to_dense(), rtol=0, atol=0, equal_nan=True
        ):
            return False
    return True


def compare_samples(samples: Iterable[tuple[Any, Any]], offload: Any) -> tuple[int, list[str]]:
    """How many samples were compared, and which came out otherwise."""
    compared, problems = 0, []
    for operator, sample in samples:
        wanted = gradients_of_sample(operator, sample)
        if not are_same(wanted, gradients_of_sample(operator, sample)):
            continue  # it does not even agree with itself
        compared += wanted is not None
        if not are_same(wanted, gradients_of_sample(operator, sample, offload)):
            problems.append(f"{operator.full_name} {sample.summary()}")
    return compared, problems


def samples_of(
    operators: Iterable[Any], dtype: torch.dtype, limit: int | None
) -> Iterator[tuple[Any, Any]]:
    for operator in operators:
        samples = operator.sample_inputs("cpu", dtype, requires_grad=True)
        for sample in itertools.islice(samples, limit):
            yield operator, sample


def require_bit_equal_samples(directory: Any, samples: Iterable[tuple[Any, Any]]) -> int:
    offload = sh.offload_activations(directory, minimum_bytes=1)
    compared, problems = compare_samples(samples, offload)
    assert not problems, "\n".join(problems)
    offload.store.wait_until_idle()
    report = offload.report()
    assert (report.live_bytes, report.disk_bytes) == (0, 0)
    assert report.counts.offloaded > compared / 4
    return compared


@pytest.mark.parametrize("dtype", STRIDES, ids=str)
def test_some_operators(dtype, tmp_path):
    operators = list_operators(dtype)[:: STRIDES[dtype]]
    compared = require_bit_equal_samples(tmp_path, samples_of(operators, dtype, SAMPLES))
    assert compared > len(operators)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_sample_of_every_operator(part, tmp_path):
    operators = list_operators(torch.float32)[part::PARTS]
    compared = require_bit_equal_samples(tmp_path, samples_of(operators, torch.float32, None))
    assert compared > 5 * len(operators)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", [each for each in STRIDES if each != torch.float32], ids=str)
def test_every_operator_in_other_types(dtype, tmp_path):
    require_bit_equal_samples(tmp_path, samples_of(list_operators(dtype), dtype, 3))


def test_the_comparison_of_gradients_fails_on_unequal_ones():
    one = torch.tensor([1.0, float("nan")])
    assert are_same([one, None], [one.clone(), None])
    assert not are_same([one], [torch.tensor([1.0 + 1e-7, float("nan")])])
    assert not are_same([one], [torch.tensor([1.0, 2.0])])
    assert not are_same([one], [None])
    assert not are_same([one], [one.double()])
    assert not are_same(None, [one])


def test_samples_that_differ_are_named():
    class Scaling:
        """An operator, its sample and its context: entered, it gives twice the gradient."""

        full_name, factor = "scaling", 1
        input, args, kwargs = torch.ones(4, requires_grad=True), (), {}

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

        def __enter__(self) -> None:
            self.factor = 2

        def __exit__(self, *error: object) -> None:
            self.factor = 1

        def output_process_fn_grad(self, result: torch.Tensor) -> torch.Tensor:
            return result

        def summary(self) -> str:
            return "of four"

        @property
        def store(self) -> Scaling:
            return self

        def wait_until_idle(self) -> None:
            """Nothing is under way."""

    scaling = Scaling()
    assert compare_samples([(scaling, scaling)], scaling) == (1, ["scaling of four"])
