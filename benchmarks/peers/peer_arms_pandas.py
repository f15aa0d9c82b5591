"""Triples read by pandas, in the peers' environment: what most scripts for such files do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch


def make_n_triples(path: str) -> Callable[[], object]:
    """Split at spaces and number the terms; escapes, comments and malformed lines are not looked at."""

    def read() -> list[torch.Tensor]:
        table = pd.read_csv(path, sep=" ", header=None, usecols=[0, 1, 2], quoting=3)
        # Subject and object of each line in turn, so that nodes are numbered as they first appear.
        nodes, _ = pd.factorize(np.stack([table[0], table[2]], axis=1).ravel())
        relation, _ = pd.factorize(table[1])
        return [torch.from_numpy(each.copy()) for each in (nodes[::2], relation, nodes[1::2])]

    return read


def make_integers(path: str) -> Callable[[], object]:
    """Whole numbers, three to a line."""

    def read() -> list[torch.Tensor]:
        table = pd.read_csv(path, header=None).to_numpy()
        return [torch.from_numpy(each.copy()) for each in table.T]

    return read


ARMS = {"n_triples": make_n_triples, "integers": make_integers}
