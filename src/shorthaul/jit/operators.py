"""The one way in which shorthaul's kernels become PyTorch operators.

A model never calls a kernel, it calls an operator: `torch.compile`, `torch.export`, autocast and
`torch.func` then know its shapes and its gradient, and meet no surprise.

>>> import torch
>>> twice = define_operator(
...     "doctest_twice(Tensor x) -> Tensor",
...     cpu=lambda x: x + x,
...     fake=torch.empty_like,
...     setup_context=lambda ctx, inputs, output: None,
...     backward=lambda ctx, gradient: 2 * gradient,
... )
>>> x = torch.ones(2, requires_grad=True)
>>> twice(x).sum().backward()
>>> x.grad
tensor([2., 2.])
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

NAMESPACE = "shorthaul"
_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_transforms: Any = torch._C._functorch

Overload: TypeAlias = "torch._ops.OpOverload[..., Any]"

# What the dispatcher looks at in an ordinary CPU tensor. Fake, sparse, quantized, negated, tracked
# and wrapped tensors have more, or others. Should PyTorch's change, every call is dispatched.
_dispatch_keys: Any = torch._C._dispatch_keys
_is_profiling: Any = torch._C._autograd._profiler_enabled

# Whether a transform of `torch.func` is at work, and how many modes of the dispatcher are: PyTorch's own functions,
# because small calls ask.
is_functional: Callable[[], bool] = torch._C._are_functorch_transforms_active
count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack

# What `torch.autograd.Function` itself stands on; it would look for transforms, of which there are none where
# nothing watches.
if TYPE_CHECKING:
    SingleLevelFunction = torch.autograd.Function
else:
    SingleLevelFunction = torch.autograd.function._SingleLevelFunction

_KEYS = torch._C.DispatchKey
_PLAIN_CPU = (
    torch._C.DispatchKeySet(_KEYS.CPU)
    .add(_KEYS.ADInplaceOrView)
    .add(_KEYS.AutogradCPU)
    .add(_KEYS.AutocastCPU)
    .raw_repr()
)


def is_transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is at work."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_pushed_forward() -> bool:
    """Whether forward-mode differentiation is at work."""
    return forward_ad._current_level >= 0


def is_traced() -> bool:
    """Whether something traces what is called: tensors may have no values then."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


def is_watched() -> bool:
    """Whether something traces, transforms, records or profiles what is called."""
    # As `is_traced() or is_transformed() or _is_profiling()`, without the calls: everything asks this first.
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _is_profiling()
    )


def are_ordinary(*tensors: torch.Tensor | None) -> bool:
    """Whether the tensors are PyTorch's own, and their values what lies in a CPU's or CUDA's memory."""
    for each in tensors:
        if each is not None and (
            type(each) not in (torch.Tensor, torch.nn.Parameter)
            or not (each.is_cpu or each.is_cuda)
            or each.is_neg()  # as `x.conj().imag` is: the dispatcher resolves it
        ):
            return False
    return True


def needs_gradient(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd has to record what is made of the tensors."""
    if torch.is_grad_enabled():
        for each in tensors:
            if each is not None and each.requires_grad:
                return True
    return False


def is_plain(*tensors: torch.Tensor | None) -> bool:
    """Whether nothing watches: no gradient, no tracing, no transform, no tensor subclass."""
    return not is_watched() and are_ordinary(*tensors) and not needs_gradient(*tensors)


def has_saving_hooks() -> bool:
    """Whether somebody is handed what autograd saves: a checkpoint, or what offloads it."""
    # A PyTorch that does not say may have some.
    find_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return find_hooks is None or find_hooks(False) is not None


@contextlib.contextmanager
def hidden_from_hooks() -> Iterator[None]:
    """What autograd saves inside is handed to nobody: a checkpoint counts what a step of the model saves.

    >>> seen = []
    >>> x = torch.ones(2, requires_grad=True)
    >>> with torch.autograd.graph.saved_tensors_hooks(seen.append, lambda _: x), hidden_from_hooks():
    ...     y = x.exp()
    >>> seen
    []
    """
    if not has_saving_hooks():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is):
        yield


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@dataclass(frozen=True)
class Gradient:
    """What PyTorch must know of an operator to differentiate and to batch it."""

    setup_context: Callable[..., None]
    backward: Callable[..., Any]
    batching_rule: Callable[..., Any]
    forward_derivative: Callable[..., Any] | None = None


class Operator:
    """A defined operator, called as a function.

    `overload` is what graphs contain and what anything that watches PyTorch meets. How a call gets
    to its kernel depends on what is going on:

    ==========================================  ===================================================
    plain CPU tensors, and nobody watches       the kernel itself, or `recorded` if a gradient is
                                                needed: the dispatcher would take the same way,
                                                several times slower (docs/jit.md)
    anything else: tracing, other devices,      `overload`, by the dispatcher
    subclasses, modes, autocast, profiling
    `torch.func.grad`, `jvp`, forward mode      `transformed`: the gradient that the dispatcher
                                                knows refuses the first and forgets the tangents
                                                of the last
    ==========================================  ===================================================
    """

    def __init__(
        self, overload: Overload, cpu: Callable[..., Any], gradient: Gradient, *, has_autocast: bool
    ) -> None:
        self.overload = overload
        self.cpu = cpu
        self.has_autocast = has_autocast
        types = [
            str(each.type) for each in (*overload._schema.arguments, *overload._schema.returns)
        ]
        # An autograd.Function does not look into lists: their gradients would silently be zero.
        self.has_lists = any("List[" in each and "Tensor" in each for each in types)
        self.recorded = _make_recorded(overload, cpu, gradient)
        self.transformed = _make_transformed(overload, gradient)

    def __call__(self, *arguments: Any) -> Any:
        """Run the operator, or record it in whatever graph is being traced."""
        if is_transformed():
            return self._transform(arguments)
        if self._needs_dispatch(arguments):
            return self.overload(*arguments)
        is_plain = needs_gradient = False
        for each in arguments:
            if isinstance(each, torch.Tensor):
                is_plain = _dispatch_keys(each).raw_repr() == _PLAIN_CPU
                if not is_plain:
                    break
                needs_gradient = needs_gradient or each.requires_grad
        if not is_plain:
            return self.overload(*arguments)
        if needs_gradient and torch.is_grad_enabled():
            return self.recorded.apply(*arguments)
        return self.cpu(*arguments)

    def _needs_dispatch(self, arguments: tuple[Any, ...]) -> bool:
        """Whether somebody would miss the call if the dispatcher did not see it."""
        return (
            self.has_lists
            or is_watched()
            or torch._C._has_torch_function(arguments)
            or (self.has_autocast and torch._C._is_any_autocast_enabled())
        )

    def _transform(self, arguments: tuple[Any, ...]) -> Any:
        if not _is_differentiating():
            return self.overload(*arguments)
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break()
        if not self.has_lists:
            return self.transformed.apply(*arguments)  # type: ignore[no-untyped-call]
        if forward_ad._current_level >= 0:
            raise NotImplementedError(f"{self.overload} has no forward-mode derivative")
        return self.overload(*arguments)  # PyTorch refuses if a gradient has to pass

    def __reduce__(self) -> tuple[Any, ...]:
        # A saved model, or a worker that is handed one, finds its operators by their names.
        return _find_operator, (self.overload._opname,)

    def __repr__(self) -> str:
        return f"Operator({self.overload})"


_operators: dict[str, Operator] = {}


def _find_operator(name: str) -> Operator:
    return _operators[name]


def _is_differentiating() -> bool:
    """Whether a transform that is active now differentiates; `vmap` and `functionalize` do not."""
    differentiating = (_transforms.TransformType.Grad, _transforms.TransformType.Jvp)
    return forward_ad._current_level >= 0 or any(
        each.key() in differentiating for each in _transforms.get_interpreter_stack() or ()
    )


# As `torch.compiler.assume_constant_result` marks a function, which takes a second to import what compiles graphs.
_is_differentiating._dynamo_marked_constant = True  # type: ignore[attr-defined]


def define_operator(
    schema: str,
    *,
    cpu: Callable[..., Any],
    fake: Callable[..., Any],
    cuda: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    autocast: torch.dtype | None = None,
) -> Operator:
    """Define `shorthaul::<schema>` and return the operator.

    Arguments have no defaults and no keywords: PyTorch leaves out an argument that equals its
    default, and every function here would have to repeat it. A Python function around the operator
    is the place for both.

    Args:
        schema: Name, arguments and results, as `torch.library` writes them.
        cpu: Computes, from values as the caller gave them: a tuple may arrive as a tuple or as the
            schema's list.
        fake: Returns empty tensors of the right shape, dtype and strides, from shapes alone.
        cuda: As `cpu`, for CUDA tensors; None (default) where there is none.
        setup_context: `setup_context(ctx, inputs, output)` of an operator with a gradient; None by
            default.
        backward: `backward(ctx, *gradients)`, made of operators, so that it can be differentiated
            and compiled again. Without one (default), a gradient that would have to pass raises.
        vmap: A batching rule `vmap(info, in_dims, *arguments)` as `torch.library.register_vmap`
            takes it. Without one (default), the batch is run element by element.
        jvp: `jvp(arguments, tangents)`, the forward-mode derivative of an operator that returns one
            tensor, made of operators; `tangents` has an entry per argument, None where there is
            none. Without one (default), forward mode is refused.
        autocast: The dtype that floating inputs are cast to inside an autocast region; None
            (default) casts nothing.
    """
    if (setup_context is None) != (backward is None):
        raise ValueError(f"{schema}: a gradient needs both `setup_context` and `backward`")
    parsed: Any = torch._C.parse_schema(f"{NAMESPACE}::{schema}")
    if parsed.is_mutable:
        raise ValueError(f"{schema}: an operator returns new tensors, it does not write to others")
    for each in parsed.arguments:
        if each.has_default_value() or each.kwarg_only:
            raise ValueError(f"{schema}: `{each.name}` must have no default and be positional")
    name = schema.partition("(")[0].strip()
    qualified = f"{NAMESPACE}::{name}"
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, cpu, "CPU")
    if cuda is not None:
        _library.impl(name, cuda, "CUDA")
    torch.library.register_fake(qualified, fake, lib=_library)
    overload: Overload = getattr(getattr(torch.ops, NAMESPACE), name).default
    batching_rule = vmap or _run_element_by_element(overload)
    gradient = Gradient(
        setup_context or _keep_nothing, backward or _make_refusal(qualified), batching_rule, jvp
    )
    torch.library.register_autograd(
        qualified, gradient.backward, setup_context=gradient.setup_context, lib=_library
    )
    torch.library.register_vmap(qualified, batching_rule, lib=_library)
    if autocast is not None:
        for device in ("cpu", "cuda"):
            torch.library.register_autocast(qualified, device, autocast, lib=_library)
    _operators[name] = Operator(overload, cpu, gradient, has_autocast=autocast is not None)
    return _operators[name]


def _keep_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    """What an operator without a gradient keeps for its backward."""


def _make_refusal(qualified: str) -> Callable[..., NoReturn]:
    """The gradient of an operator that has none. PyTorch's own would be a warning and a zero."""

    def refuse(*_: Any) -> NoReturn:
        raise NotImplementedError(
            f"{qualified} has no gradient, but backward reached it.\n"
            "  Detach its inputs, or its result, if it is meant to be a constant."
        )

    return refuse


def _make_recorded(overload: Overload, cpu: Callable[..., Any], gradient: Gradient) -> type[Any]:
    """The CPU kernel as an `autograd.Function`."""

    def forward(ctx: Any, *arguments: Any) -> Any:
        output = cpu(*arguments)
        gradient.setup_context(ctx, arguments, output)
        return output

    methods = {"forward": staticmethod(forward), "backward": staticmethod(gradient.backward)}
    return type(f"{overload._opname}_recorded", (SingleLevelFunction,), methods)


def _make_transformed(overload: Overload, gradient: Gradient) -> type[torch.autograd.Function]:
    """The operator as an `autograd.Function` in the form that `torch.func` accepts."""
    methods: dict[str, Any] = {
        "forward": staticmethod(lambda *arguments: overload(*arguments)),
        "setup_context": staticmethod(gradient.setup_context),
        "backward": staticmethod(gradient.backward),
        "vmap": staticmethod(gradient.batching_rule),
    }
    if gradient.forward_derivative is not None:
        methods |= _make_forward_mode(gradient, gradient.forward_derivative)
    return type(f"{overload._opname}_transformed", (torch.autograd.Function,), methods)


def _make_forward_mode(
    gradient: Gradient, derivative: Callable[..., Any]
) -> dict[str, staticmethod[..., Any]]:
    """How an `autograd.Function` keeps its arguments for forward mode, and what it makes of tangents."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        gradient.setup_context(ctx, inputs, output)
        if forward_ad._current_level >= 0:  # else they would be kept for nothing
            ctx.set_materialize_grads(False)
            ctx.arguments = [None if _is_tensor(each) else each for each in inputs]
            ctx.save_for_forward(*(each if _is_tensor(each) else None for each in inputs))

    def jvp(ctx: Any, *tangents: Any) -> Any:
        arguments = [
            other if tensor is None else tensor
            for tensor, other in zip(ctx.saved_tensors, ctx.arguments, strict=True)
        ]
        return derivative(arguments, tangents)

    return {"setup_context": staticmethod(setup_context), "jvp": staticmethod(jvp)}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _run_element_by_element(overload: Overload) -> Callable[..., Any]:
    """A batching rule for operators that have none of their own: correct, not fast."""

    def rule(info: Any, in_dims: Sequence[Any], *arguments: Any) -> Any:
        if info.batch_size == 0:  # only shapes are wanted
            results = [overload(*_element(arguments, in_dims, None))]
        else:
            results = [
                overload(*_element(arguments, in_dims, index)) for index in range(info.batch_size)
            ]
        if isinstance(results[0], torch.Tensor):
            return _stack(results, arguments), 0
        stacked = tuple(_stack(each, arguments) for each in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


def _element(value: Any, dim: Any, index: int | None) -> Any:
    """Element `index` of what is batched in `value`; without an index, its shape on no device."""
    if isinstance(value, list | tuple):
        dims = [None] * len(value) if dim is None else dim
        return [_element(each, where, index) for each, where in zip(value, dims, strict=True)]
    if not isinstance(value, torch.Tensor):
        return value
    if index is None:
        whole = value.to("meta")
        return whole if dim is None else whole.new_empty(whole.movedim(dim, 0).shape[1:])
    return value if dim is None else value.select(dim, index)


def _stack(results: Sequence[torch.Tensor], arguments: Sequence[Any]) -> torch.Tensor:
    if not results[0].is_meta:
        return torch.stack(tuple(results))
    tensors = (each for each in tree_leaves(arguments) if isinstance(each, torch.Tensor))
    return results[0].new_empty((0, *results[0].shape), device=next(tensors).device)
