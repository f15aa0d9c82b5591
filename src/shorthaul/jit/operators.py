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

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

NAMESPACE = "shorthaul"
_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_transforms: Any = torch._C._functorch


class Operator:
    """A defined operator, called as a function.

    `overload` is what graphs contain. Under transforms that differentiate (`torch.func.grad`,
    `jvp` and their like, or forward-mode automatic differentiation) the call goes through `function`
    instead: the gradient that `torch.library.register_autograd` attaches to an operator refuses the
    first and forgets tangents in the last, while an `autograd.Function` composes or says no.
    """

    def __init__(
        self,
        overload: torch._ops.OpOverload[..., Any],
        function: type[torch.autograd.Function] | None,  # None: it takes or returns lists
    ) -> None:
        self.overload = overload
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        """Run the operator, or record it in whatever graph is being traced."""
        if (
            torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
        ) and _is_differentiating():
            return self._differentiate(arguments)
        return self.overload(*arguments)

    def _differentiate(self, arguments: tuple[Any, ...]) -> Any:
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break()
        if self.function is not None:
            return self.function.apply(*arguments)  # type: ignore[no-untyped-call]
        # An autograd.Function does not look into lists: their gradients would silently be zero.
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


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_differentiating() -> bool:
    """Whether a transform that is active now differentiates; `vmap` and `functionalize` do not."""
    differentiating = (_transforms.TransformType.Grad, _transforms.TransformType.Jvp)
    return forward_ad._current_level >= 0 or any(
        each.key() in differentiating for each in _transforms.get_interpreter_stack() or ()
    )


def define_operator(
    schema: str,
    *,
    cpu: Callable[..., Any],
    fake: Callable[..., Any],
    cuda: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | None = None,
    autocast: torch.dtype | None = None,
) -> Operator:
    """Define `shorthaul::<schema>` and return the operator.

    `cpu` and `cuda` compute; `fake` returns empty tensors of the right shape, dtype and strides,
    from shapes alone. An operator with a gradient has `setup_context(ctx, inputs, output)` and
    `backward(ctx, *gradients)`, which itself is made of operators, so that it can be differentiated
    and compiled again; one without raises where a gradient would have to pass. `vmap(info, in_dims,
    *arguments)` is a batching rule as `torch.library.register_vmap` takes it; without one the batch
    is run element by element. `autocast` names the dtype that floating inputs are cast to inside an
    autocast region.

    Arguments have no defaults and no keywords: PyTorch leaves out an argument that equals its
    default, and every function here would have to repeat it. A Python function around the operator
    is the place for both.
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
    overload: torch._ops.OpOverload[..., Any] = getattr(getattr(torch.ops, NAMESPACE), name).default
    gradient = backward or _make_refusal(qualified)
    torch.library.register_autograd(qualified, gradient, setup_context=setup_context, lib=_library)
    batching_rule = vmap or _run_element_by_element(overload)
    torch.library.register_vmap(qualified, batching_rule, lib=_library)
    if autocast is not None:
        for device in ("cpu", "cuda"):
            torch.library.register_autocast(qualified, device, autocast, lib=_library)
    has_lists = any(
        "List[" in str(each.type) and "Tensor" in str(each.type)
        for each in (*parsed.arguments, *parsed.returns)
    )
    function = _make_function(overload, setup_context or _keep_nothing, gradient, batching_rule)
    _operators[name] = Operator(overload, None if has_lists else function)
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


def _make_function(
    overload: torch._ops.OpOverload[..., Any],
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
    vmap: Callable[..., Any],
) -> type[torch.autograd.Function]:
    """The operator as an `autograd.Function` in the form that `torch.func` accepts."""
    methods: dict[str, Any] = {
        "forward": staticmethod(lambda *arguments: overload(*arguments)),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(backward),
        "vmap": staticmethod(vmap),
    }
    return type(f"{overload._opname}_function", (torch.autograd.Function,), methods)


def _run_element_by_element(overload: torch._ops.OpOverload[..., Any]) -> Callable[..., Any]:
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
