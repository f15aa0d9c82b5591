"""`TableState`: a learnable table and what its optimizer knows of its rows, for `torch.distributed.checkpoint`.

Rows are saved by part and not by rank, so that any number of ranks may go on.
"""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.distributed.learning.learnable_table import LearnableTable
from shorthaul.errors import RowArgumentError


class TableState:
    """A table and an optimizer as one thing that `torch.distributed.checkpoint` saves and loads.

    >>> import tempfile, torch, torch.distributed.checkpoint as dcp, shorthaul as sh
    >>> graph = sh.RelationalGraph.from_edges([1, 2, 3, 0], [0, 0, 1, 2])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sh.distributed.partition(graph, folder, 2)
    ...     table = sh.distributed.LearnableTable(sh.distributed.open(folder), "node", 8)
    >>> optimizer = torch.optim.SparseAdam(table.parameters())
    >>> list(sh.distributed.TableState(table, optimizer).state_dict())[:2]
    ['weight of part 0', 'weight of part 1']

    `dcp.save({"table": TableState(table, optimizer), "loader": loader}, checkpoint_id=path)` writes it, and
    `dcp.load` of the same reads it into table, optimizer and loader, also on another number of ranks with
    the same parts.

    Args:
        table: The table.
        optimizer: One that has the table's `weight`; None (default) saves rows only.
    """

    def __init__(
        self, table: LearnableTable, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        if optimizer is not None and not any(
            each is table.weight for group in optimizer.param_groups for each in group["params"]
        ):
            raise RowArgumentError("optimizer", "one that has the table's weight", "another")
        self.table, self.optimizer = table, optimizer

    def state_dict(self) -> dict[str, Any]:
        """Rows by part, of the table and of all that the optimizer keeps for each row."""
        found = self._by_part("weight", self.table.weight.detach())
        for name, value in self._optimizer_state().items():
            if self._is_of_rows(value):
                found |= self._by_part(f"optimizer's {name}", value)
            else:
                found[f"optimizer's {name}"] = value
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over rows and the optimizer's knowledge of them.

        Args:
            state: What `state_dict` gave, on as many ranks as there were.
        """
        self._take("weight", self.table.weight.detach(), state)
        kept = self._optimizer_state()
        for name, value in kept.items():
            whole = f"optimizer's {name}"
            if self._is_of_rows(value):
                self._take(whole, value, state)
            elif isinstance(value, torch.Tensor):
                value.copy_(state[whole])
            else:
                kept[name] = state[whole]

    def _by_part(self, name: str, rows: torch.Tensor) -> dict[str, Any]:
        return {
            f"{name} of part {part}": rows[own.start : own.stop]
            for part, own in self.table.part_rows.items()
        }

    def _take(self, name: str, rows: torch.Tensor, state: dict[str, Any]) -> None:
        for key, own in self._by_part(name, rows).items():
            own.copy_(state[key])

    def _is_of_rows(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.shape == self.table.weight.shape

    def _optimizer_state(self) -> dict[str, Any]:
        """What the optimizer keeps for the table; made if there was no step yet."""
        if self.optimizer is None:
            return {}
        weight = self.table.weight
        if not self.optimizer.state.get(weight):
            _make_state(self.optimizer, weight)
        state: dict[str, Any] = self.optimizer.state[weight]
        return state


def _make_state(optimizer: torch.optim.Optimizer, weight: torch.nn.Parameter) -> None:
    """Have the optimizer make its state, by a step of zeros that changes nothing."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    gradients = [each.grad for each in parameters]
    rates = [group["lr"] for group in optimizer.param_groups]
    before = weight.detach().clone()
    try:
        for each in parameters:
            each.grad = None
        is_sparse = isinstance(optimizer, torch.optim.SparseAdam)
        zeros = torch.zeros_like(weight)
        weight.grad = zeros.to_sparse(1) if is_sparse else zeros
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros_like(group["lr"]) if torch.is_tensor(group["lr"]) else 0.0
        optimizer.step()
        for name, value in optimizer.state[weight].items():
            if torch.is_tensor(value):
                value.zero_()
            elif isinstance(value, int | float):
                optimizer.state[weight][name] = type(value)(0)
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for each, gradient in zip(parameters, gradients, strict=True):
            each.grad = gradient
        with torch.no_grad():
            weight.copy_(before)
