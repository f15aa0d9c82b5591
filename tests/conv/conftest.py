"""One thread for convolutions of a few values, and kernels compiled while other tests run."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from shorthaul.conv.execution.execute import run_forward, run_grad_input, run_grad_weight
from shorthaul.conv.problem import LAYOUTS, ConvProblem
from shorthaul.jit.compiling.loading import compiling
from tests.conv.problems import ACTIVATION_LAYOUTS, QUICK, Case


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Handing a few values to more threads takes far longer than to convolve them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def compiled_ahead() -> Iterator[list[Future[None]]]:
    """With a cold cache most of the time goes to the compiler, which leaves one of two cores idle.

    What the last tests need is compiled first, so that this and the tests meet in the middle.
    """
    executor = ThreadPoolExecutor(1, "compile-ahead")
    yield [executor.submit(_compile, problem) for problem in _shared_problems()]
    executor.shutdown(wait=True, cancel_futures=True)


def _shared_problems() -> Iterator[ConvProblem]:
    """Problems whose kernels several tests share; `test_kernels.py` has the ones of 24 channels."""
    around = ((0, 0), (1, 1), (1, 1))
    for layout in LAYOUTS:
        yield ConvProblem(24, 40, (1, 3, 3), padding=around, layout=layout)
        yield ConvProblem(20, 20, (1, 3, 3), groups=20, layout=layout)
    for activation, layout in reversed(ACTIVATION_LAYOUTS):
        plain = ConvProblem(5, 19, (1, 3, 3), padding=around, layout=layout, has_bias=True)
        yield replace(plain, activation=activation)
    for dtype, layout in reversed(QUICK):
        for channels in ((4, 9), (2, 2), (4, 4)):
            yield ConvProblem(*channels, (1, 3, 3), dtype=dtype, layout=layout)


def _compile(problem: ConvProblem) -> None:
    """Everything once, on an image that is large enough for a specialized kernel."""
    case = Case(problem, 4, (1, 21, 23))
    image, weight, bias = case.tensors()
    with compiling("wait"):
        output = run_forward(problem, image, weight, bias)
        if problem.activation is None:
            run_grad_input(problem, output, weight, case.sizes)
            run_grad_weight(problem, output, image)
