"""What a row of the matrix is, and how two results of it are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

Tensors = Mapping[str, torch.Tensor]
Run = Callable[[], Tensors]


@dataclass(frozen=True)
class Operation:
    """A public operation: what it reads, how it is called, and what must come out.

    `prepare` makes what a user has before, such as a layer or a file, and returns the call. `plain`
    is the same in plain PyTorch; without one, the operation in plain surroundings is the measure.
    """

    name: str
    inputs: Callable[[], dict[str, torch.Tensor]]
    prepare: Callable[[Tensors, Path], Run]
    plain: Callable[[Tensors], Tensors] | None = None
    is_exact: bool = False  # bytes are only moved
    is_heavy: bool = False  # compiles kernels of its own, or several: left to `make test-all`
    tolerance: float | None = None  # instead of the dtype's own
    writes: str = ""  # the input that it writes to, and the call puts back

    def __str__(self) -> str:
        return self.name


def random_tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers around zero, the same for the same seed, whatever the surroundings."""
    generator = torch.Generator("cpu").manual_seed(seed + 17 * len(shape) + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")


def random_numbers(limit: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Whole numbers from 0 to `limit`, likewise."""
    generator = torch.Generator("cpu").manual_seed(seed + 31 * limit)
    return torch.randint(limit, shape, generator=generator, dtype=torch.int64, device="cpu")


def as_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as a leaf whose gradient is asked for, where there are gradients at all."""
    leaf = tensor.detach()
    return leaf.requires_grad_() if torch.is_grad_enabled() and not leaf.is_inference() else leaf


def with_gradients(out: torch.Tensor, **leaves: torch.Tensor) -> dict[str, torch.Tensor]:
    """`out`, and the gradients of a sum of it with weights that tell its values apart."""
    found = {"out": out.detach()}
    if not out.requires_grad:
        return found
    count = out.numel()
    factors = torch.linspace(-1.0, 2.0, count, dtype=torch.float64, device="cpu")
    (out * factors.to(out.dtype).reshape(out.shape)).sum().backward()
    for name, leaf in leaves.items():
        if leaf.grad is None:
            continue  # a parameter that no number depends on; which these are is compared as well
        grad = leaf.grad.to_dense() if leaf.grad.is_sparse else leaf.grad
        found[f"gradient of {name}"] = grad.detach()
    return found


def require_same(
    operation: Operation, expected: Tensors, found: Tensors, *, some: bool = False
) -> None:
    """Fail unless `found` is what was expected; with `some`, gradients may be left out."""
    missing = set(expected) - set(found)
    assert not set(found) - set(expected), (set(found), set(expected))
    assert not missing or (some and all(each.startswith("gradient of") for each in missing)), (
        f"{sorted(missing)} did not come out"
    )
    for name, got in found.items():
        want = expected[name]
        facts = [(each.dtype, tuple(each.shape), each.device.type) for each in (want, got)]
        assert facts[0] == facts[1], f"{name}: expected {facts[0]}, got {facts[1]}"
        if operation.is_exact or not want.is_floating_point():
            assert torch.equal(want, torch.as_tensor(got)), f"{name} differs"
            continue
        bounds = {}
        if operation.tolerance is not None and want.dtype is torch.float32:
            bounds = {"rtol": operation.tolerance, "atol": operation.tolerance}
        torch.testing.assert_close(got, want, **bounds, msg=f"{name} differs")
