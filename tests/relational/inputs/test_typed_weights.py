"""DGL's shapes and initial values."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.inputs.typed_weights import TypedWeights


@pytest.mark.parametrize(
    ("regularizer", "shapes"),
    [
        (None, {"W": (5, 8, 4)}),
        ("basis", {"W": (2, 8, 4), "coeff": (5, 2)}),
        ("bdd", {"W": (5, 16)}),
    ],
)
def test_shapes(regularizer, shapes):
    weights = TypedWeights(8, 4, 5, regularizer, 2)
    assert {name: tuple(each.shape) for name, each in weights.named_parameters()} == shapes
    rows = 4 if regularizer == "bdd" else 8
    assert 0 < weights.W.abs().max() <= rows**-0.5


def test_as_many_bases_as_types_unless_told():
    assert TypedWeights(8, 4, 3, "basis").coeff.shape == torch.Size([3, 3])


def test_options_that_do_not_fit():
    with pytest.raises(LayerArgumentError, match="'l2'"):
        TypedWeights(8, 4, 5, "l2")
    with pytest.raises(LayerArgumentError, match="3 blocks do not divide widths 8 and 4"):
        TypedWeights(8, 4, 5, "bdd", 3)
