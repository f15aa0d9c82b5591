"""Replaced layers under checkpoints and under other hooks: a layer may change its mind, and shows them nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import shorthaul as sh
from tests.conv.nothing_compiled import nothing_compiled
from tests.conv.test_checkpoint import (
    LAYERS,
    SAME_WARNING,
    expect_gradients,
    find_gradients,
    find_gradients_late,
    make,
    require_all_close,
)


@pytest.mark.filterwarnings(SAME_WARNING)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_decides_while_it_is_recomputed(tmp_path: Path, name: str) -> None:
    plain, _, image = make(name)
    expected = expect_gradients(plain, image)
    report = sh.replace_convs(plain)
    with nothing_compiled(tmp_path):
        require_all_close(find_gradients_late(tmp_path, plain, image), expected)
        require_all_close(find_gradients(plain, image), expected)
    assert set(report.layers[0].choices) <= {"training"}


@pytest.mark.filterwarnings(SAME_WARNING)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("policy", ["auto", "always"])
def test_a_checkpoint_around_a_replaced_layer(name: str, policy: str) -> None:
    plain, _, image = make(name)
    expected = expect_gradients(plain, image)
    report = sh.replace_convs(plain, policy=policy)
    for _ in range(2):
        require_all_close(find_gradients(plain, image), expected)
    if policy == "auto":
        # Whatever the other way is, it may be taken when the layer is recomputed.
        layer = report.layers[0]

        def change_its_mind() -> None:
            layer.revert("training")

        for change in (change_its_mind, lambda: layer.undo_revert("training")):
            require_all_close(find_gradients(plain, image, meanwhile=change), expected)


def test_to_measure_shows_hooks_nothing() -> None:
    plain, _, image = make("conv2d")
    expected = expect_gradients(plain, image)
    report = sh.replace_convs(plain)
    counts = []
    for _ in range(2):
        packed: list[Tensor] = []

        def pack(tensor: Tensor) -> Tensor:
            packed.append(tensor)  # noqa: B023
            return tensor

        leaves = [image.clone().requires_grad_(), *plain.parameters()]
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            output = plain(leaves[0])
        torch.autograd.grad(output.sum(), leaves)
        counts.append(len(packed))
    assert report.layers[0].choices["training"].origin in ("measured", "remembered")
    assert counts == [2, 2]
    with save_on_cpu(), sh.offload_activations(minimum_bytes=0):
        output = plain(leaves[0]).tanh().pow(2).sum()
    require_all_close(list(torch.autograd.grad(output, leaves)), expected)
