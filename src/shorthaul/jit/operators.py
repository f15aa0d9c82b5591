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

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "shorthaul"
_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


class Operator:
    """A defined operator, called as a function.

    `overload` is what graphs contain. Under `torch.func` transforms the call goes through
    `function` instead: the gradient that `torch.library.register_autograd` attaches to an operator
    refuses `torch.func.grad`, while an `autograd.Function` with a batching rule composes.
    """

    def __init__(
        self, overload: torch._ops.OpOverload[..., Any], function: type[torch.autograd.Function]
    ) -> None:
        self.overload = overload
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        """Run the operator, or record it in whatever graph is being traced."""
        if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
            return self.function.apply(*arguments)  # type: ignore[no-untyped-call]
        return self.overload(*arguments)

    def __repr__(self) -> str:
        return f"Operator({self.overload})"


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
    and compiled again. `vmap(info, in_dims, *arguments)` is a batching rule as
    `torch.library.register_vmap` takes it; without one the batch is run element by element.
    `autocast` names the dtype that floating inputs are cast to inside an autocast region.
    """
    if (setup_context is None) != (backward is None):
        raise ValueError(f"{schema}: a gradient needs both `setup_context` and `backward`")
    name = schema.partition("(")[0].strip()
    qualified = f"{NAMESPACE}::{name}"
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, cpu, "CPU")
    if cuda is not None:
        _library.impl(name, cuda, "CUDA")
    torch.library.register_fake(qualified, fake, lib=_library)
    if backward is not None:
        torch.library.register_autograd(
            qualified, backward, setup_context=setup_context, lib=_library
        )
    overload: torch._ops.OpOverload[..., Any] = getattr(getattr(torch.ops, NAMESPACE), name).default
    batching_rule = vmap or _run_element_by_element(overload)
    torch.library.register_vmap(qualified, batching_rule, lib=_library)
    if autocast is not None:
        for device in ("cpu", "cuda"):
            torch.library.register_autocast(qualified, device, autocast, lib=_library)
    return Operator(overload, _make_function(overload, setup_context, backward, batching_rule))


def _make_function(
    overload: torch._ops.OpOverload[..., Any],
    setup_context: Callable[..., None] | None,
    backward: Callable[..., Any] | None,
    vmap: Callable[..., Any],
) -> type[torch.autograd.Function]:
    """The operator as an `autograd.Function` in the form that `torch.func` accepts."""
    methods: dict[str, Any] = {
        "forward": staticmethod(lambda *arguments: overload(*arguments)),
        "setup_context": staticmethod(setup_context or (lambda *_: None)),
        "vmap": staticmethod(vmap),
    }
    if backward is not None:
        methods["backward"] = staticmethod(backward)
    return type(f"{overload._opname}_function", (torch.autograd.Function,), methods)


def _run_element_by_element(overload: torch._ops.OpOverload[..., Any]) -> Callable[..., Any]:
    """A batching rule for operators that have none of their own: correct, not fast."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        results = [
            overload(
                *(
                    value if dim is None else value.select(dim, index)
                    for value, dim in zip(arguments, in_dims, strict=True)
                )
            )
            for index in range(info.batch_size)
        ]
        if isinstance(results[0], tuple):
            return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])
        return torch.stack(results), 0

    return rule
