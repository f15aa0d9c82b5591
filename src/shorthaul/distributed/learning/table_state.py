"""`TableState`: a learnable table and what its optimizer knows of its rows, for `torch.distributed.checkpoint`.

Rows are saved by part and not by rank, so that any number of ranks may go on.
"""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.distributed.learning.learnable_table import LearnableTable
from shorthaul.distributed.learning.optimizer_state import (
    find_group,
    is_of_rows,
    plan_state,
    require_rows,
)
from shorthaul.errors import CheckpointError, RowArgumentError

_HAS_STATE = "the optimizer has made a step"
_NUMBERING = "numbering"
_SAME_PARTS = "Open the parts that it was saved with, or cut the graph in the same way again."


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
    the same parts. The optimizer is one that keeps single numbers and tensors of the weight's shape.

    Args:
        table: The table.
        optimizer: One that has the table's `weight`; None (default) saves rows only.
    """

    def __init__(
        self, table: LearnableTable, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        if optimizer is not None:
            group = find_group(optimizer, table.weight)
            if group is None:
                raise RowArgumentError("optimizer", "one that has the table's weight", "another")
            if isinstance(optimizer, torch.optim.SGD) and group["momentum"] and table.sparse:
                raise RowArgumentError(
                    "optimizer",
                    "one that keeps dense numbers; make the table with sparse=False",
                    "SGD with momentum of sparse gradients, whose `momentum_buffer` is sparse",
                )
        self.table, self.optimizer = table, optimizer
        self._planned: dict[str, Any] | None = None  # room for what the optimizer does not have yet

    def state_dict(self) -> dict[str, Any]:
        """Rows by part, of the table and of all that the optimizer keeps for each row.

        Before the optimizer's first step there is room for that, so that a checkpoint can be read into it.
        """
        found = self._by_part("weight", self.table.weight.detach())
        for name, value in self._optimizer_state().items():
            if is_of_rows(value, self.table.weight):
                found |= self._by_part(f"optimizer's {name}", value)
            else:
                found[f"optimizer's {name}"] = value
        return {**found, _HAS_STATE: self._has_state, _NUMBERING: self.table.numbering}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over rows and the optimizer's knowledge of them.

        Args:
            state: What `state_dict` gave, on as many ranks as there were.
        """
        saved, here = state.get(_NUMBERING), self.table.numbering
        if saved != here:
            raise CheckpointError("the numbering of these parts", saved, here, _SAME_PARTS)
        self._take("weight", self.table.weight.detach(), state)
        if self.optimizer is None:
            return
        kept = self._optimizer_state()
        if not state[_HAS_STATE]:
            self.optimizer.state.pop(self.table.weight, None)
            return
        if (
            not kept
            and not self._has_state
            and plan_state(self.optimizer, self.table.weight) is None
        ):
            raise CheckpointError(
                f"a {type(self.optimizer).__name__} before its first step",
                "what the optimizer kept",
                "no room for it",
                "Have the optimizer make a step, then load.",
            )
        for name, value in kept.items():
            whole = f"optimizer's {name}"
            if is_of_rows(value, self.table.weight):
                self._take(whole, value, state)
            elif isinstance(value, torch.Tensor):
                value.copy_(state[whole])
            else:
                kept[name] = state[whole]
        if kept:
            self.optimizer.state[self.table.weight] = kept
        self._planned = None

    def _by_part(self, name: str, rows: torch.Tensor) -> dict[str, Any]:
        return {
            f"{name} of part {part}": rows[own.start : own.stop]
            for part, own in self.table.part_rows.items()
        }

    def _take(self, name: str, rows: torch.Tensor, state: dict[str, Any]) -> None:
        for key, own in self._by_part(name, rows).items():
            own.copy_(state[key])

    @property
    def _has_state(self) -> bool:
        return self.optimizer is not None and bool(self.optimizer.state.get(self.table.weight))

    def _optimizer_state(self) -> dict[str, Any]:
        """What the optimizer keeps for the table, or room for it."""
        optimizer, weight = self.optimizer, self.table.weight
        if optimizer is None:
            return {}
        if not self._has_state:
            if self._planned is None:
                self._planned = plan_state(optimizer, weight)
            return self._planned or {}
        self._planned = None
        state: dict[str, Any] = optimizer.state[weight]
        require_rows(optimizer, weight, state)
        return state
