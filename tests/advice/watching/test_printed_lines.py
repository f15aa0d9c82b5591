"""What is printed runs as it stands, and gives the gradients of the step that it stands for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.advice.watching.printed_lines import write_loss, write_micro_batches


class Output:
    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.linear = kind, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        result = self.linear(x) * scale
        if self.kind == "loss":
            return Output(result.square().mean())
        return (result, None) if self.kind == "tuple" else result


X = torch.randn(6, 4)


@pytest.mark.parametrize(
    ("kind", "batch", "loss"),
    [
        ("tensor", X, None),
        ("tensor", X, lambda output: output.square().mean()),
        ("tensor", (X, 2.0), None),
        ("loss", {"x": X, "scale": 2.0}, None),
        ("tuple", X, None),
    ],
    ids=["sum", "loss given", "positional", "own loss", "tuple"],
)
def test_lines_run_and_give_the_gradients_of_the_whole_batch(kind, batch, loss) -> None:
    model = Model(kind)
    script = {"sh": sh, "torch": torch, "model": model, "batch": batch, "loss": loss}
    exec(f"{write_loss(model, batch, loss)}.backward()", script)
    whole = model.linear.weight.grad.clone()
    model.zero_grad()
    exec(write_micro_batches(model, batch, loss, 3), script)
    torch.testing.assert_close(model.linear.weight.grad, whole)
