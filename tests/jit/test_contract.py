"""What a kernel accepts: the caller that is written out, and a sentence for every violation."""

import ctypes
import inspect
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from shorthaul.errors import KernelArgumentError
from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    KernelFunction,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
    load_kernel,
)
from shorthaul.jit.contract import emit_caller, passed_arguments, real, refuse
from tests.jit.sources import SCALE, SCALE_FUNCTION

# ---- the text


def test_the_caller_of_the_docstring_is_what_is_written() -> None:
    shown = inspect.getdoc(emit_caller) or ""
    example = shown.partition("::\n\n")[2].partition("\n\nNames")[0]
    assert join_lines(inspect.cleandoc(example)) == join_lines(emit_caller(SCALE_FUNCTION))


def join_lines(text: str) -> str:
    return " ".join(text.split())


def test_the_caller_of_every_kind_of_argument() -> None:
    function = Function(
        "gather",
        (
            TensorArgument("table", torch.bfloat16, ("rows", 64)),
            TensorArgument("square", torch.int64, ("n", "n", "rows", None)),
            TensorArgument("mask", torch.bool, ("n", None), is_optional=True),
            TensorArgument("out", torch.float64, None, is_written=True, is_contiguous=False),
            NumberArgument("start", "int64"),
            NumberArgument("ring", "address"),
            DimensionArgument("n"),
            ThreadsArgument(),
        ),
    )
    assert emit_caller(function) == (
        "def caller(*_values):\n"
        "    try:\n"
        "        (table, square, mask, out, start, ring, ) = _values\n"
        "        _table_pointer = table.data_ptr()\n"
        "        _table_shape = table.shape\n"
        "        rows = _table_shape[0]\n"
        "        _square_pointer = square.data_ptr()\n"
        "        _square_shape = square.shape\n"
        "        n = _square_shape[0]\n"
        "        _mask_pointer = None if mask is None else mask.data_ptr()"
        " or (mask.numel() == 0 and 64)\n"
        "        _mask_shape = None if mask is None else mask.shape\n"
        "        _out_pointer = out.data_ptr()\n"
        "        start = _whole(start)\n"
        "        ring = _whole(ring)\n"
        "        _holds = (\n"
        "            table.dtype is _torch.bfloat16 and table.is_cpu"
        " and (_table_pointer or not table.numel()) and not table.is_neg()\n"
        "            and table.is_contiguous() and len(_table_shape) == 2"
        " and _table_shape[1] == 64\n"
        "            and square.dtype is _torch.int64 and square.is_cpu"
        " and (_square_pointer or not square.numel()) and not square.is_neg()\n"
        "            and square.is_contiguous() and len(_square_shape) == 4"
        " and _square_shape[1] == n and _square_shape[2] == rows\n"
        "            and (mask is None or (mask.dtype is _torch.bool and mask.is_cpu"
        " and (_mask_pointer or not mask.numel()) and not mask.is_neg() and mask.is_contiguous()"
        " and len(_mask_shape) == 2 and _mask_shape[0] == n))\n"
        "            and out.dtype is _torch.float64 and out.is_cpu"
        " and (_out_pointer or not out.numel()) and not out.is_neg()\n"
        "            and -(2**63) <= start < 2**63\n"
        "            and 0 <= ring < 2**64\n"
        "        )\n"
        "    except Exception as _error:\n"
        "        _refuse(_values, _error)\n"
        "    if not _holds:\n"
        "        _refuse(_values)\n"
        "    if _listening:\n"
        "        _record_launch()\n"
        "    return _compiled(_table_pointer, _square_pointer, _mask_pointer, _out_pointer, start,"
        " ring, n, _kernel_threads())\n"
    )


def test_a_function_without_arguments_has_a_caller_too() -> None:
    assert emit_caller(Function("tick", ())) == (
        "def caller(*_values):\n"
        "    try:\n"
        "        () = _values\n"
        "        _holds = (\n"
        "            True\n"
        "        )\n"
        "    except Exception as _error:\n"
        "        _refuse(_values, _error)\n"
        "    if not _holds:\n"
        "        _refuse(_values)\n"
        "    if _listening:\n"
        "        _record_launch()\n"
        "    return _compiled()\n"
    )


def test_dimensions_and_threads_are_not_passed() -> None:
    assert [each.name for each in passed_arguments(SCALE_FUNCTION)] == ["x", "factor", "out"]


# ---- numbers

ECHO = CppSource(
    "echo",
    "int64_t echo_int(int64_t number) { return number; }\n"
    "void* echo_address(void* number) { return number; }\n"
    "void echo_float(double number, double* out) { *out = number; }",
    (
        Function("echo_int", (NumberArgument("number", "int64"),), returns="int64"),
        Function("echo_address", (NumberArgument("number", "address"),), returns="address"),
        Function(
            "echo_float",
            (
                NumberArgument("number", "float64"),
                TensorArgument("out", torch.float64, (1,), is_written=True),
            ),
        ),
    ),
)


def through_float(value: Any) -> float:
    out = torch.zeros(1, dtype=torch.float64)
    load_kernel(ECHO).echo_float(value, out)
    return float(out)


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_every_int64_arrives(number: int) -> None:
    assert load_kernel(ECHO).echo_int(number) == number


@settings(deadline=None)
@given(st.integers(1, 2**64 - 1))
def test_every_address_arrives(number: int) -> None:
    assert load_kernel(ECHO).echo_address(number) == number


@settings(deadline=None)
@given(st.floats())
def test_every_float_arrives(number: float) -> None:
    arrived = through_float(number)
    assert np.float64(arrived).tobytes() == np.float64(number).tobytes() or math.isnan(number)
    assert math.isnan(arrived) == math.isnan(number)


@pytest.mark.parametrize(
    "value", [3, True, np.int32(3), np.uint8(3), torch.tensor(3), torch.tensor([3])]
)
def test_whatever_is_a_whole_number_is_taken(value: Any) -> None:
    assert load_kernel(ECHO).echo_int(value) == int(value)


@pytest.mark.parametrize(
    "value",
    [3, True, np.float32(0.5), np.int64(3), torch.tensor(0.5), Fraction(1, 4), Decimal("0.5")],
)
def test_whatever_is_a_number_is_taken_as_a_float(value: Any) -> None:
    assert through_float(value) == float(value)


@pytest.mark.parametrize("text", ["3", "nan", b"3"])
def test_text_is_not_a_number(text: Any) -> None:
    with pytest.raises(TypeError):
        real(text)


@pytest.mark.parametrize(
    ("function", "value", "message"),
    [
        ("echo_int", 2**63, "must be a whole number that fits int64, got 9223372036854775808"),
        ("echo_int", -(2**63) - 1, "a whole number that fits int64, got -9223372036854775809"),
        ("echo_int", 2.0, "must be a whole number (int64), got 2.0"),
        ("echo_int", "3", "must be a whole number (int64), got '3'"),
        ("echo_int", None, "must be a whole number (int64), got None"),
        ("echo_address", -1, "must be a whole number that fits address, got -1"),
        (
            "echo_address",
            2**64,
            "must be a whole number that fits address, got 18446744073709551616",
        ),
        ("echo_float", "3", "must be a number, got '3'"),
        ("echo_float", None, "must be a number, got None"),
        ("echo_float", 1j, "must be a number, got 1j"),
        ("echo_float", 10**400, "must be a number, got 1000"),
    ],
)
def test_a_number_that_does_not_fit_is_explained(function: str, value: Any, message: str) -> None:
    out = () if function != "echo_float" else (torch.zeros(1, dtype=torch.float64),)
    with pytest.raises(KernelArgumentError) as caught:
        load_kernel(ECHO).functions[function](value, *out)
    assert str(caught.value).startswith(f"echo.{function}: argument `number` must be ")
    assert message in str(caught.value)


# ---- tensors


class Wrapper(torch.Tensor):
    """A subclass that stands for another tensor and has no memory of its own."""

    @staticmethod
    def __new__(cls, shape: tuple[int, ...]) -> "Wrapper":
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def fake_tensor() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


def nested_tensor() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


X = torch.ones(3)
OUT = torch.zeros(3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make_values", "message"),
    [
        (lambda: (X, 2.0), "`*` must be 3 values (x, factor, out), got 2"),
        (lambda: (X, 2.0, OUT, 3), "`*` must be 3 values (x, factor, out), got 4"),
        (lambda: (), "`*` must be 3 values (x, factor, out), got 0"),
        (lambda: ([1.0], 2.0, OUT), "`x` must be a tensor, got list"),
        (lambda: (None, 2.0, OUT), "`x` must be a tensor, got NoneType"),
        (lambda: (X.numpy(), 2.0, OUT), "`x` must be a tensor, got ndarray"),
        (lambda: (X.double(), 2.0, OUT), "`x` must be of torch.float32, got torch.float64"),
        (lambda: (X, 2.0, OUT.int()), "`out` must be of torch.float32, got torch.int32"),
        (
            lambda: (X.to("meta"), 2.0, OUT),
            "`x` must be a dense CPU tensor, got torch.strided on meta",
        ),
        (
            lambda: (X.to_sparse(), 2.0, OUT),
            "`x` must be a dense CPU tensor, got torch.sparse_coo on cpu",
        ),
        (
            lambda: (nested_tensor(), 2.0, OUT),
            "`x` must be a dense CPU tensor, got nested torch.strided on cpu",
        ),
        (
            lambda: (fake_tensor(), 2.0, OUT),
            "`x` must be a tensor with memory of its own, got a FakeTensor without",
        ),
        (
            lambda: (Wrapper((3,)), 2.0, OUT),
            "`x` must be a tensor with memory of its own, got a Wrapper without",
        ),
        (
            lambda: (torch._efficientzerotensor(3), 2.0, OUT),
            "`x` must be a tensor with memory of its own, got a Tensor without",
        ),
        (
            lambda: (torch.ones(6)[::2], 2.0, OUT),
            "`x` must be contiguous, got shape (3,), strides (2,)",
        ),
        (lambda: (torch.ones(3, 1), 2.0, OUT), "`x` must be of shape (n), got (3, 1)"),
        (lambda: (torch.ones(()), 2.0, OUT), "`x` must be of shape (n), got ()"),
        (
            lambda: (X, 2.0, torch.zeros(4)),
            "`out` must be of shape (n) with n = 3, got (4,)",
        ),
        (lambda: (X, "2", OUT), "`factor` must be a number, got '2'"),
        # The first wrong value is named, also when a number of an unusual kind is among the right.
        (
            lambda: (X, np.float32(2), torch.zeros(4)),
            "`out` must be of shape (n) with n = 3, got (4,)",
        ),
    ],
)
def test_every_violation_has_its_sentence(make_values: Any, message: str) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        load_kernel(SCALE).scale(*make_values())
    assert str(caught.value) == f"scale.scale: argument {message}."
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.__suppress_context__  # the caller's own stumbling is of no interest


def test_nothing_runs_when_a_contract_is_broken() -> None:
    out = torch.full((4,), 7.0)
    with pytest.raises(KernelArgumentError):
        load_kernel(SCALE).scale(X, 2.0, out)
    assert out.tolist() == [7.0] * 4


def test_a_tensor_that_torch_func_tracks_is_refused() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        load_kernel(SCALE).scale(x, 2.0, torch.zeros(3))
        return x.sum()

    with pytest.raises(KernelArgumentError, match=r"got one of a torch\.func transform"):
        torch.func.grad(run)(X)


def test_a_value_that_changes_its_mind_is_refused_with_the_reason() -> None:
    class Fickle:
        asked = 0

        def __float__(self) -> float:
            self.asked += 1
            if self.asked == 1:
                raise OverflowError("not now")
            return 2.0

    with pytest.raises(KernelArgumentError) as caught:
        load_kernel(SCALE).scale(X, Fickle(), OUT)
    assert str(caught.value) == (
        "scale.scale: argument `*` must be values that stay as they are, "
        "got OverflowError('not now')."
    )
    assert isinstance(caught.value.__cause__, OverflowError)


def test_empty_tensors_are_taken() -> None:
    load_kernel(SCALE).scale(torch.ones(0), 2.0, torch.zeros(0))


def test_parameters_and_views_are_taken() -> None:
    out = torch.zeros(5)
    load_kernel(SCALE).scale(torch.nn.Parameter(X), 2.0, out[1:4])
    assert out.tolist() == [0, 2, 2, 2, 0]


# ---- the fast check and the explanation agree

SHAPED = Function(
    "shaped",
    (
        TensorArgument("table", torch.float32, ("rows", "columns", 2)),
        TensorArgument("ids", torch.int64, ("n",)),
        TensorArgument("mask", torch.bool, ("n",), is_optional=True),
        TensorArgument("any_rows", torch.float32, (None, "columns"), is_contiguous=False),
        NumberArgument("k", "int64"),
        DimensionArgument("rows"),
        DimensionArgument("columns"),
        DimensionArgument("n"),
    ),
    returns="int64",
)
SHAPED_SOURCE = CppSource(
    "shaped",
    "int64_t shaped(const float*, const int64_t*, const uint8_t* mask, const float*, int64_t k,\n"
    "               int64_t rows, int64_t columns, int64_t n) {\n"
    "  return rows * 1000000 + columns * 10000 + n * 100 + k * 10 + (mask != nullptr);\n"
    "}",
    (SHAPED,),
)

sizes = st.integers(0, 2)
tensors = st.builds(
    lambda shape, dtype, is_turned: (
        torch.zeros(shape, dtype=dtype).t()
        if is_turned and len(shape) == 2
        else torch.zeros(shape, dtype=dtype)
    ),
    st.lists(sizes, max_size=3),
    st.sampled_from([torch.float32, torch.int64, torch.bool]),
    st.booleans(),
)


@settings(deadline=None)
@given(
    st.one_of(tensors, st.builds(torch.zeros, sizes, sizes, st.just(2))),
    st.one_of(tensors, st.builds(lambda n: torch.zeros(n, dtype=torch.int64), sizes)),
    st.one_of(st.none(), tensors, st.builds(lambda n: torch.zeros(n, dtype=torch.bool), sizes)),
    st.one_of(tensors, st.builds(torch.zeros, sizes, sizes)),
    st.one_of(st.integers(0, 9), st.just(0.5)),
)
@example(  # neither values nor an address, but not absent
    torch.zeros(1, 1, 2),
    torch.zeros(0, dtype=torch.int64),
    torch.zeros(0, dtype=torch.bool),
    torch.zeros(1, 1),
    3,
)
def test_what_is_refused_is_explained_and_what_is_taken_arrives(
    table: torch.Tensor,
    ids: torch.Tensor,
    mask: torch.Tensor | None,
    any_rows: torch.Tensor,
    k: Any,
) -> None:
    values = (table, ids, mask, any_rows, k)
    holds = (
        (table.dtype, table.dim(), table.shape[2:]) == (torch.float32, 3, (2,))
        and table.is_contiguous()
        and (ids.dtype, ids.dim()) == (torch.int64, 1)
        and (mask is None or (mask.dtype, mask.shape) == (torch.bool, ids.shape))
        and (any_rows.dtype, any_rows.dim()) == (torch.float32, 2)
        and any_rows.shape[1] == table.shape[1]
        and isinstance(k, int)
    )
    function: KernelFunction = load_kernel(SHAPED_SOURCE).shaped
    if holds:
        rows, columns, _ = table.shape
        expected = rows * 1_000_000 + columns * 10_000 + len(ids) * 100 + k * 10
        assert function(*values) == expected + (mask is not None)
    else:
        with pytest.raises(KernelArgumentError) as caught:
            function(*values)
        assert "`*`" not in str(caught.value)  # one of the values is named


def test_refusing_is_by_argument_in_order() -> None:
    with pytest.raises(KernelArgumentError, match="argument `x`"):
        refuse("k", SCALE_FUNCTION, ("no", "no", "no"))


def test_ctypes_would_have_cut_the_number_off() -> None:
    assert ctypes.c_int64(2**64 + 5).value == 5  # which is why the caller looks at the range
