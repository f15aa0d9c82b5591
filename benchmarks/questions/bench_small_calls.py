"""What do calls cost that are too small to take time themselves, beside PyTorch's own?

A convolution of 8 channels on 8 x 8 values and a step of training it, ten rows of a table, a relational layer on 100 edges, a
step with one small saved tensor under offloading. The goal is PyTorch's own time and 10 microseconds more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, same_bits, same_within

TORCH, OURS = "PyTorch", "shorthaul"
SAME = same_within(relative=1e-5, absolute=1e-5)  # sums in another order
EDGES, NODES, RELATIONS, WIDTH = 100, 50, 3, 16


def measure(answer: Answer) -> None:
    torch.manual_seed(0)
    answer.state(threads=str(torch.get_num_threads()), values="float32, in the cache")
    _measure_convolution(answer)
    _measure_rows(answer)
    _measure_relational(answer)
    _measure_saved_tensor(answer)


def _measure_convolution(answer: Answer) -> None:
    plain = nn.Conv2d(8, 8, 3, padding=1)
    ours = sh.Conv2d(8, 8, 3, padding=1, wait=True)
    ours.load_state_dict(plain.state_dict())
    image = torch.randn(1, 8, 8, 8)

    def infer(layer: nn.Module) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with torch.no_grad():
                output: Tensor = layer(image)
            return output

        return run

    def compiled() -> Tensor:
        """Through the dispatcher, as graphs call it."""
        with torch.no_grad():
            output: Tensor = torch.ops.shorthaul.convolution(*operands, None, None)
        return output

    geometry = (1, 1, 1), (0, 0, 1, 1, 1, 1), (1, 1, 1), 1, "zeros", "contiguous", True
    operands = (image, ours.weight, ours.bias, *geometry)
    answer.compare(
        "a convolution",
        [
            Arm(TORCH, infer(plain)),
            Arm(OURS, infer(ours)),
            Arm(f"{OURS}, through the dispatcher", compiled),
        ],
        baseline=TORCH,
        same=SAME,
    )
    answer.compare(
        "a step of training a convolution",
        [Arm(TORCH, _step(plain, image)), Arm(OURS, _step(ours, image))],
        baseline=TORCH,
        same=SAME,
    )


def _step(layer: nn.Module, *inputs: Tensor) -> Callable[[], Tensor]:
    """Forwards and backwards, with a gradient of the first input; what comes back is that gradient."""
    first = inputs[0].clone().requires_grad_()
    gradient = torch.ones_like(layer(first, *inputs[1:]))

    def run() -> Tensor:
        first.grad = None
        layer.zero_grad(set_to_none=True)
        layer(first, *inputs[1:]).backward(gradient)
        assert first.grad is not None
        return first.grad

    return run


def _measure_rows(answer: Answer) -> None:
    plain, ids = torch.randn(1000, 16), torch.arange(10)
    table = sh.unified(plain)
    answer.compare(
        "ten rows of a table",
        [Arm(TORCH, lambda: plain[ids]), Arm(OURS, lambda: table[ids])],
        baseline=TORCH,
        same=same_bits,
    )


class _PlainRGCN(nn.Module):
    """R-GCN's sums over typed edges, relation by relation, in plain PyTorch, with the weights of ours."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, features: Tensor, edges: Tensor, types: Tensor) -> Tensor:
        """New features of the nodes: averages per relation, and the node's own."""
        layer = self.layer
        output = features @ layer.root + layer.bias
        for relation in range(RELATIONS):
            source, target = edges[:, types == relation]
            degree = torch.zeros(NODES).index_add(0, target, torch.ones(len(target)))
            sums = torch.zeros(NODES, WIDTH).index_add(0, target, features[source])
            output = output + sums / degree.clamp(min=1)[:, None] @ layer.weight[relation]
        return output


def _measure_relational(answer: Answer) -> None:
    edges, types = torch.randint(0, NODES, (2, EDGES)), torch.randint(0, RELATIONS, (EDGES,))
    ours, features = sh.relational.RGCNConv(WIDTH, WIDTH, RELATIONS), torch.randn(NODES, WIDTH)
    plain = _PlainRGCN(ours)

    def infer(layer: nn.Module) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with torch.no_grad():
                output: Tensor = layer(features, edges, types)
            return output

        return run

    for case, make in (
        ("a relational layer on 100 edges", infer),
        (
            "a step of training a relational layer on 100 edges",
            lambda layer: _step(layer, features, edges, types),
        ),
    ):
        arms = [Arm(TORCH, make(plain)), Arm(OURS, make(ours))]
        answer.compare(case, arms, baseline=TORCH, same=SAME)


def _measure_saved_tensor(answer: Answer) -> None:
    weight, factor = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)
    gradient, offload = torch.ones(64, 64), sh.offload_activations()

    def plain() -> Tensor:
        weight.grad = None
        (weight * factor).backward(gradient)
        assert weight.grad is not None
        return weight.grad

    def ours() -> Tensor:
        with offload:
            return plain()

    answer.compare(
        "a step with one small saved tensor",
        [Arm(TORCH, plain), Arm(f"{OURS}, under offloading", ours)],
        baseline=TORCH,
        same=same_bits,
    )


if __name__ == "__main__":
    answer_question(measure)
