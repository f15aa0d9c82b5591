"""Weights under the names of DGL's `TypedLinear`, so that its state_dicts fit."""

from __future__ import annotations

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError

REGULARIZERS = (None, "basis", "bdd")


class TypedWeights(nn.Module):
    """One matrix per type: whole, a mixture of bases (`coeff`), or blocks on the diagonal."""

    def __init__(
        self,
        in_size: int,
        out_size: int,
        num_types: int,
        regularizer: str | None = None,
        num_bases: int | None = None,
    ) -> None:
        super().__init__()
        if regularizer not in REGULARIZERS:
            raise LayerArgumentError(
                f"regularizer is {regularizer!r}", "it is None, 'basis' or 'bdd'"
            )
        self.in_size, self.regularizer = in_size, regularizer
        bases = num_types if num_bases is None else num_bases
        if regularizer == "basis":
            self.W = nn.Parameter(torch.empty(bases, in_size, out_size))
            self.coeff = nn.Parameter(torch.empty(num_types, bases))
        elif regularizer == "bdd":
            if in_size % bases or out_size % bases:
                raise LayerArgumentError(
                    f"{bases} blocks do not divide widths {in_size} and {out_size}",
                    "choose num_bases that divides both",
                )
            self.W = nn.Parameter(torch.empty(num_types, in_size * out_size // bases))
        else:
            self.W = nn.Parameter(torch.empty(num_types, in_size, out_size))
        self.rows = in_size // bases if regularizer == "bdd" else in_size
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """DGL's initial values."""
        limit = self.rows**-0.5
        nn.init.uniform_(self.W, -limit, limit)
        if self.regularizer == "basis":
            nn.init.xavier_uniform_(self.coeff, gain=nn.init.calculate_gain("relu"))
