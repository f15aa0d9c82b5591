"""The repeated blocks of a model: what can be computed again as a whole.

>>> layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(3)]
>>> blocks = find_blocks(torch.nn.Sequential(*layers, torch.nn.Linear(4, 1)))
>>> blocks.names, blocks.expression
(('0', '1', '2'), '[model.get_submodule(name) for name in ("0", "1", "2")]')
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Blocks:
    """Modules of one class that follow each other."""

    modules: tuple[torch.nn.Module, ...]
    names: tuple[str, ...]

    @property
    def expression(self) -> str:
        """What finds them in a user's model, as a line of Python."""
        parent, _, first = self.names[0].rpartition(".")
        container = f"model.{parent}" if parent else "model"
        kinds = {type(each) for each in self.modules}
        if len(kinds) == 1 and type(self.modules[0]).__module__ != "torch.nn.modules.container":
            if all(part.isidentifier() for part in parent.split(".")) and first.isdigit():
                return f"type({container}[{first}])"
            return f'type(model.get_submodule("{self.names[0]}"))'
        listed = ", ".join(f'"{name}"' for name in self.names)
        return f"[model.get_submodule(name) for name in ({listed})]"


def find_blocks(model: torch.nn.Module) -> Blocks | None:
    """The largest group of like children of one container, outermost first; None without any."""
    best: Blocks | None = None
    best_worth = 0
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList | torch.nn.Sequential):
            continue
        groups: dict[type, list[tuple[str, torch.nn.Module]]] = defaultdict(list)
        for child_name, child in module.named_children():
            if any(True for _ in child.children()):  # a layer alone saves little by itself
                path = f"{name}.{child_name}" if name else child_name
                groups[type(child)].append((path, child))
        for members in groups.values():
            worth = sum(each.numel() for _, child in members for each in child.parameters())
            if len(members) > 1 and worth > best_worth:
                best_worth = worth
                names, modules = zip(*members, strict=True)
                best = Blocks(tuple(modules), tuple(names))
    return best
