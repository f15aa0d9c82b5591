"""Tables of reports, for a terminal of 80 columns: a line that sums up, then a row for each layer.

A layer's name is never cut: one that does not fit goes on in the next line.

>>> import rich
>>> table = layer_table("2 layers, 1 changed", "layer", "now")
>>> table.add_row("encoder.block.0", "compiled")
>>> rich.print(table)
2 layers, 1 changed
<BLANKLINE>
  layer             now
 ────────────────────────────
  encoder.block.0   compiled
<BLANKLINE>
"""

from __future__ import annotations

from rich import box
from rich.table import Table


def layer_table(summary: str, *headings: str, numbers: frozenset[str] = frozenset()) -> Table:
    """A table without rows, headed by its summary; the columns in `numbers` are aligned right."""
    table = Table(title=summary, title_justify="left", title_style="bold", box=box.SIMPLE)
    for heading in headings:
        is_number = heading in numbers
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    return table
