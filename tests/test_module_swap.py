"""A swapped module keeps its parameters, hooks and mode; undoing leaves no trace."""

import copy

import torch
from torch import nn

from shorthaul.module_swap import swap_class


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * self.times


def test_everything_but_the_way_it_computes_stays():
    module = nn.Linear(2, 3).eval()
    seen, names = [], list(module.state_dict())
    module.register_forward_hook(lambda *_: seen.append(1))
    weight, x = module.weight, torch.randn(4, 2)
    before = module(x)
    swap = swap_class(module, Doubled, {"times": 2})
    assert torch.equal(module(x), before * 2)
    assert module.weight is weight
    assert not module.training
    assert list(module.state_dict()) == names
    assert len(seen) == 2
    assert torch.equal(copy.deepcopy(module)(x), before * 2)
    swap.undo()
    assert type(module) is nn.Linear
    assert torch.equal(module(x), before)


def test_attributes_come_back_as_they_were():
    module = nn.Linear(2, 3)
    module.times = 7
    attributes = dict(module.__dict__)
    swap_class(module, Doubled, {"times": 2, "in_features": 5, "more": 1}).undo()
    assert module.__dict__ == attributes
