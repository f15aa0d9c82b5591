"""Options that programs hold as numbers, such as a dropout: users set them between epochs."""

from __future__ import annotations

from typing import Any

from torch import nn

from shorthaul.jit.outside_graphs import outside_graphs


class TracedLayer(nn.Module):
    """A layer whose programs follow its options at the next call.

    >>> import torch, shorthaul as sh
    >>> attend = sh.relational.GATConv(8, 4, dropout=0.5)
    >>> attend.dropout = 0.0  # from now on nothing is dropped
    >>> x, edge_index = torch.randn(3, 8), torch.tensor([[0, 0, 1], [1, 2, 2]])
    >>> torch.equal(attend(x, edge_index), attend(x, edge_index))
    True
    """

    function: Any  # the compiled function of the usual call
    traced_options: tuple[Any, ...]  # as they were when the programs were traced

    def read_options(self) -> tuple[Any, ...]:
        """What the programs hold as numbers, as it is now."""
        raise NotImplementedError

    def make_functions(self) -> None:
        """Trace the programs with the options as they are now."""
        raise NotImplementedError

    def trace_options(self) -> None:
        """Trace the programs, and remember with what."""
        self.make_functions()
        self.traced_options = self.read_options()

    def follow_options(self) -> None:
        """Trace the programs again where an option has changed since."""
        if self.traced_options != self.read_options():
            self._trace_again()

    @outside_graphs
    def _trace_again(self) -> None:
        before = self.function
        self.trace_options()
        others = getattr(self, "functions", {}).values()
        for each in (self.function, *others):
            each.backend, each.memory_budget = before.backend, before.memory_budget
