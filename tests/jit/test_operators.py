"""Operators meet every part of PyTorch that a model may meet, and lose no gradient in silence."""

import copy
import importlib
import pickle
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    NumberArgument,
    TensorArgument,
    define_operator,
    load_kernel,
)
from shorthaul.jit.operators import _operators

# PyTorch's forward mode scripts its own decompositions at its first use.
forward_mode = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

# ---- a cube: a kernel for each dtype, and a gradient that is an operator again


def cube_source(dtype: torch.dtype, name: str) -> CppSource:
    return CppSource(
        f"cube_{name}",
        f"void cube(const {name}* x, double factor, {name}* out, int64_t n) {{\n"
        f"  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<{name}>(x[i] * x[i] * x[i] * factor);\n"
        "}",
        (
            Function(
                "cube",
                (
                    TensorArgument("x", dtype, ("n",)),
                    NumberArgument("factor", "float64"),
                    TensorArgument("out", dtype, ("n",), is_written=True),
                    DimensionArgument("n"),
                ),
            ),
        ),
    )


SOURCES = {
    torch.float32: cube_source(torch.float32, "float"),
    torch.float64: cube_source(torch.float64, "double"),
}


def compute_cube(x: torch.Tensor, factor: float) -> torch.Tensor:
    values = x.contiguous()
    out = torch.empty_like(values)
    load_kernel(SOURCES[x.dtype]).cube(values.view(-1), factor, out.view(-1))
    return out


def fake_cube(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def save_cube(ctx: Any, inputs: Any, output: Any) -> None:
    x, factor = inputs
    ctx.save_for_backward(x)
    ctx.factor = factor


def cube_backward(ctx: Any, gradient: torch.Tensor) -> Any:
    (x,) = ctx.saved_tensors
    return gradient * (3 * ctx.factor) * x * x, None


cube = define_operator(
    "test_cube(Tensor x, float factor) -> Tensor",
    cpu=compute_cube,
    fake=fake_cube,
    setup_context=save_cube,
    backward=cube_backward,
)

X = torch.tensor([1.0, -2.0, 0.5])


def total(x: torch.Tensor) -> torch.Tensor:
    return cube(x, 2.0).sum()


def plain_total(x: torch.Tensor) -> torch.Tensor:
    return (2.0 * x**3).sum()


def test_it_computes() -> None:
    assert cube(X, 2.0).equal(2 * X**3)
    assert repr(cube) == "Operator(shorthaul.test_cube.default)"
    assert cube.overload is torch.ops.shorthaul.test_cube.default


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("shape", [(3,), (0,), (), (2, 3)])
def test_opcheck(shape: tuple[int, ...], requires_grad: bool) -> None:
    x = torch.randn(shape, requires_grad=requires_grad)
    torch.library.opcheck(cube.overload, (x, 2.0))


def test_opcheck_of_a_view() -> None:
    torch.library.opcheck(cube.overload, (torch.randn(4, 3).t()[1:], 2.0))


def test_gradients_of_any_order() -> None:
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: cube(x, 1.5), (x,))
    assert gradgradcheck(lambda x: cube(x, 1.5), (x,))


def test_double_backward() -> None:
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(total(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first.equal(6 * x * x)
    assert second.equal(12 * x)


def test_meta_tensors_have_shapes_only() -> None:
    out = cube(torch.empty(5, 2, device="meta"), 2.0)
    assert (out.shape, out.device.type, out.dtype) == ((5, 2), "meta", torch.float32)


# ---- torch.compile and torch.export


@pytest.fixture
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
def test_compile_makes_one_graph_with_its_gradient() -> None:
    compiled = torch.compile(lambda x: total(x) + 1, backend="aot_eager", fullgraph=True)
    x = X.clone().requires_grad_()
    result = compiled(x)
    result.backward()
    assert result.equal(plain_total(X) + 1)
    assert x.grad is not None
    assert x.grad.equal(6 * X * X)


@pytest.mark.usefixtures("fresh_compiler")
def test_compile_takes_sizes_as_they_come() -> None:
    compiled = torch.compile(total, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (3, 7, 1):
        x = torch.randn(size)
        assert torch.allclose(compiled(x), plain_total(x))


@pytest.mark.usefixtures("fresh_compiler")
def test_the_operator_stands_in_the_graph() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(total, backend=keep, fullgraph=True)(X)
    assert cube.overload in [node.target for node in graphs[0].graph.nodes]


class Cubed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cube(x, 2.0) + 1


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    exported = torch.export.export(Cubed(), (X,), strict=strict)
    assert "torch.ops.shorthaul.test_cube.default" in exported.graph_module.code
    assert exported.module()(X).equal(2 * X**3 + 1)


# ---- torch.func


def test_func_grad() -> None:
    assert torch.func.grad(total)(X).equal(6 * X * X)


def test_func_grad_of_grad() -> None:
    second = torch.func.grad(lambda x: torch.func.grad(total)(x).sum())
    assert second(X).equal(12 * X)


def test_vmap() -> None:
    batch = torch.randn(4, 3)
    assert torch.vmap(lambda x: cube(x, 2.0))(batch).equal(2 * batch**3)
    assert torch.vmap(lambda x: cube(x, 2.0), in_dims=1, out_dims=1)(batch).equal(2 * batch**3)
    assert torch.vmap(torch.vmap(lambda x: cube(x, 2.0)))(batch).equal(2 * batch**3)


def test_vmap_of_grad() -> None:
    batch = torch.randn(4, 3)
    assert torch.vmap(torch.func.grad(total))(batch).equal(6 * batch * batch)


def test_vmap_of_nothing() -> None:
    assert torch.vmap(lambda x: cube(x, 2.0))(torch.randn(0, 3)).shape == (0, 3)
    assert torch.vmap(lambda x: cube(x, 2.0), in_dims=1)(torch.randn(3, 0)).shape == (0, 3)


def test_jacobian() -> None:
    assert torch.func.jacrev(lambda x: cube(x, 2.0))(X).equal(torch.diag(6 * X * X))


def test_functionalize() -> None:
    assert torch.func.functionalize(lambda x: cube(x, 2.0))(X).equal(2 * X**3)


def test_functional_call_of_a_module() -> None:
    assert torch.func.functional_call(Cubed(), {}, (X,)).equal(2 * X**3 + 1)


@pytest.mark.usefixtures("fresh_compiler")
def test_compile_of_vmap_is_one_graph() -> None:
    batch = torch.randn(4, 3)
    compiled = torch.compile(
        torch.vmap(lambda x: cube(x, 2.0)), backend="aot_eager", fullgraph=True
    )
    assert compiled(batch).equal(2 * batch**3)


@pytest.mark.usefixtures("fresh_compiler")
def test_compile_of_func_grad_breaks_the_graph_and_is_right() -> None:
    compiled = torch.compile(torch.func.grad(total), backend="aot_eager")
    assert compiled(X).equal(6 * X * X)
    batched = torch.compile(torch.vmap(torch.func.grad(total)), backend="aot_eager")
    assert batched(X[None]).equal(6 * X[None] * X[None])


@pytest.mark.usefixtures("fresh_compiler")
def test_func_grad_of_a_compiled_function() -> None:
    assert torch.func.grad(torch.compile(total, backend="aot_eager"))(X).equal(6 * X * X)


def test_a_batching_rule_of_its_own_is_used() -> None:
    batches: list[int] = []

    def rule(info: Any, in_dims: Any, x: torch.Tensor, factor: float) -> Any:
        batches.append(info.batch_size)
        return cube(x, factor), in_dims[0]

    batched = define_operator(
        "test_batched(Tensor x, float factor) -> Tensor",
        cpu=compute_cube,
        fake=fake_cube,
        setup_context=save_cube,
        backward=cube_backward,
        vmap=rule,
    )
    batch = torch.randn(4, 3)
    assert torch.vmap(lambda x: batched(x, 2.0))(batch).equal(2 * batch**3)
    gradient = torch.vmap(torch.func.grad(lambda x: batched(x, 2.0).sum()))
    assert gradient(batch).equal(6 * batch * batch)
    assert batches == [4, 4]


# ---- nothing is lost in silence


@forward_mode
def test_forward_mode_says_that_there_is_none() -> None:
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(total, (X,), (torch.ones(3),))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        cube(forward_ad.make_dual(X, torch.ones(3)), 2.0)


@forward_mode
def test_forward_mode_leaves_other_tensors_alone() -> None:
    with forward_ad.dual_level():
        assert cube(X, 2.0).equal(2 * X**3)
    x = X.clone().requires_grad_()
    with forward_ad.dual_level():
        total(x).backward()
    assert x.grad is not None
    assert x.grad.equal(6 * X * X)


ranked = define_operator(
    "test_ranked(Tensor x) -> Tensor",
    cpu=lambda x: torch.from_numpy(x.detach().numpy().argsort().argsort().astype("float32")),
    fake=torch.empty_like,
)


def test_an_operator_without_a_gradient_computes_with_inputs_that_need_one() -> None:
    x = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    assert ranked(x).tolist() == [2, 0, 1]
    assert torch.func.vmap(ranked)(x.detach()[None]).tolist() == [[2, 0, 1]]
    torch.library.opcheck(ranked.overload, (x.detach(),))
    (ranked(x).detach() * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda x: (ranked(x.requires_grad_()) * x).sum().backward(),
        torch.func.grad(lambda x: (ranked(x) * x).sum()),
    ],
    ids=["backward", "torch.func"],
)
def test_a_gradient_that_would_have_to_pass_it_is_an_error(differentiate: Any) -> None:
    with pytest.raises(NotImplementedError) as caught:
        differentiate(X.clone())
    assert str(caught.value) == (
        "shorthaul::test_ranked has no gradient, but backward reached it.\n"
        "  Detach its inputs, or its result, if it is meant to be a constant."
    )


# ---- whoever watches sees the operator, although a plain call goes past the dispatcher


class Watching(TorchDispatchMode):
    """Keeps the operators that pass by."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class WatchingFunctions(TorchFunctionMode):
    """Keeps the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("mode", [Watching, WatchingFunctions])
def test_modes_see_it(mode: type[Any], requires_grad: bool) -> None:
    with mode() as watching:
        cube(X.clone().requires_grad_(requires_grad), 2.0)
    assert cube.overload in watching.seen


@pytest.mark.parametrize("requires_grad", [False, True])
def test_profiles_show_it(requires_grad: bool) -> None:
    x = X.clone().requires_grad_(requires_grad)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        cube(x, 2.0)
    assert "shorthaul::test_cube" in [event.key for event in profile.key_averages()]


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_traces_hold_it() -> None:
    traced = torch.jit.trace(lambda x: cube(x, 2.0), (X,), check_trace=False)
    assert "shorthaul::test_cube" in str(traced.graph)


def test_symbolic_traces_hold_it() -> None:
    assert "test_cube" in torch.fx.symbolic_trace(Cubed()).code


def test_fake_tensors_stay_fake() -> None:
    with FakeTensorMode() as mode:
        out = cube(torch.empty(3), 2.0)
    assert out.fake_mode is mode
    assert cube(out, 2.0).fake_mode is mode  # also outside of the mode


def test_a_subclass_sees_it() -> None:
    seen: list[Any] = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    assert isinstance(cube(X.as_subclass(Watched), 2.0), Watched)
    assert cube.overload in seen


def test_a_negated_view_is_resolved_first() -> None:
    assert cube(torch._neg_view(X), 2.0).equal(-2 * X**3)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_no_gradient_is_kept_where_none_is_wanted(guard: Any) -> None:
    x = X.clone().requires_grad_()
    with guard():
        assert not cube(x, 2.0).requires_grad
        assert cube(torch.ones(2), 2.0).tolist() == [2, 2]
    assert not cube(X, 2.0).requires_grad
    assert cube(x, 2.0).requires_grad


def test_saved_tensors_go_through_their_hooks() -> None:
    saved: list[torch.Tensor] = []
    x = X.clone().requires_grad_()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        cube(x, 2.0).sum().backward()
    assert len(saved) == 1
    assert saved[0].data_ptr() == x.data_ptr()


@pytest.mark.parametrize("way", ["dispatched", "straight"])
def test_both_ways_keep_the_same_gradient(way: str) -> None:
    x = X.clone().requires_grad_()
    out = cube(x, 2.0) if way == "straight" else cube.overload(x, 2.0)
    assert out.equal(2 * X**3)
    assert (type(out.grad_fn).__name__ == "test_cube_recordedBackward") is (way == "straight")
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert gradient.equal(6 * X * X)


def test_an_operator_without_tensors_is_dispatched() -> None:
    counted = define_operator(
        "test_counted(int k) -> Tensor", cpu=torch.ones, fake=lambda k: torch.empty(k)
    )
    with pytest.raises(NotImplementedError, match="no tensor arguments"):
        counted(3)


# ---- several tensors, lists, and none

both = define_operator(
    "test_both(Tensor x, Tensor? y, int k) -> (Tensor, Tensor)",
    cpu=lambda x, y, k: (x * k, x + (0 if y is None else y)),
    fake=lambda x, y, k: (torch.empty_like(x), torch.empty_like(x)),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "facts", (inputs[1] is None, inputs[2])),
    backward=lambda ctx, one, other: (
        one * ctx.facts[1] + other,
        None if ctx.facts[0] else other,
        None,
    ),
)


def test_two_results_and_an_absent_input() -> None:
    batch = torch.randn(4, 3)
    one, other = torch.vmap(lambda x: both(x, None, 3))(batch)
    assert one.equal(batch * 3)
    assert other.equal(batch)
    one, other = torch.vmap(lambda x: both(x, X, 3))(batch)  # X is the same for all
    assert other.equal(batch + X)
    gradients = torch.func.grad(lambda x, y: sum(each.sum() for each in both(x, y, 3)), (0, 1))
    assert [each.tolist() for each in gradients(X, X)] == [[4, 4, 4], [1, 1, 1]]
    one, other = torch.vmap(lambda x: both(x, None, 3))(torch.randn(0, 3))
    assert one.shape == other.shape == (0, 3)


doubled = define_operator(
    "test_doubled(Tensor[] tensors) -> Tensor[]",
    cpu=lambda tensors: [each * 2 for each in tensors],
    fake=lambda tensors: [torch.empty_like(each) for each in tensors],
    setup_context=lambda ctx, inputs, output: None,
    backward=lambda ctx, gradients: [each * 2 for each in gradients],
)


def test_lists_of_tensors() -> None:
    x = X.clone().requires_grad_()
    one, other = doubled([x, x + 1])
    assert other.equal(2 * X + 2)
    (one + other).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4, 4, 4]
    batch = torch.randn(4, 3)
    one, other = torch.vmap(lambda x: doubled([x, X]))(batch)
    assert one.equal(2 * batch)
    assert other.equal((2 * X).expand(4, 3))


@forward_mode
def test_lists_have_no_derivative_under_transforms_rather_than_a_wrong_one() -> None:
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: doubled([x])[0].sum())(X)
    assert torch.func.grad(lambda x: (x * doubled([X])[0]).sum())(X).equal(2 * X)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode"):
        doubled([forward_ad.make_dual(X, X)])


# ---- autocast

lowered = define_operator(
    "test_lowered(Tensor x, Tensor ids) -> Tensor",
    cpu=lambda x, ids: torch.from_numpy(x.detach().float().numpy()[ids.numpy()]).to(x.dtype),
    fake=lambda x, ids: x.new_empty(ids.shape),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "facts", (inputs[0].shape, inputs[1])),
    backward=lambda ctx, gradient: (
        gradient.new_zeros(ctx.facts[0]).index_add(0, ctx.facts[1], gradient),
        None,
    ),
    autocast=torch.bfloat16,
)


def test_autocast_casts_floating_inputs_and_their_gradients_back() -> None:
    x, ids = X.clone().requires_grad_(), torch.tensor([2, 0, 0])
    assert lowered(x, ids).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = lowered(x, ids)
    assert out.dtype is torch.bfloat16
    out.float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.float32
    assert x.grad.tolist() == [2, 0, 1]


def test_autocast_under_torch_func() -> None:
    ids = torch.tensor([2, 0, 0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradient = torch.func.grad(lambda x: lowered(x, ids).float().sum())(X)
        batched = torch.vmap(lambda x: lowered(x, ids))(X[None])
    assert gradient.tolist() == [2, 0, 1]
    assert batched.dtype is torch.bfloat16


def test_without_a_word_on_autocast_dtypes_stay() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cube(X, 2.0).dtype is torch.float32


# ---- copies and definitions


def test_an_operator_is_copied_and_pickled_by_name() -> None:
    assert copy.deepcopy(cube) is cube
    assert pickle.loads(pickle.dumps(cube)) is cube


@pytest.mark.parametrize(
    ("schema", "further", "message"),
    [
        ("a(Tensor x) -> Tensor", {"backward": lambda ctx, g: g}, "needs both `setup_context` and"),
        ("a(Tensor x) -> Tensor", {"setup_context": save_cube}, "needs both `setup_context` and"),
        ("a(Tensor x, int k=3) -> Tensor", {}, "`k` must have no default and be positional"),
        ("a(Tensor x, *, int k) -> Tensor", {}, "`k` must have no default and be positional"),
        ("a(Tensor(a!) x) -> ()", {}, "an operator returns new tensors"),
    ],
)
def test_a_definition_that_would_surprise_is_refused(
    schema: str, further: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        define_operator(schema, cpu=lambda x: x, fake=torch.empty_like, **further)
    assert not hasattr(torch.ops.shorthaul, "a")


def test_every_operator_of_shorthaul_runs_on_cuda() -> None:
    importlib.import_module("shorthaul")
    ours = [
        f"shorthaul::{name}"
        for name, each in _operators.items()
        if each.cpu.__module__.startswith("shorthaul.") and not name.startswith("doctest")
    ]
    assert len(ours) > 4
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert [name for name in ours if not has_kernel(name, "CUDA")] == []
