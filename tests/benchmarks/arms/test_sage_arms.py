import os
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.arms import sage_arms
from benchmarks.peers.arxiv import Arxiv


@pytest.mark.parametrize("name", ["memory.max", "memory.limit_in_bytes"])
def test_a_limit_is_joined_when_it_is_below_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(sage_arms.CGROUP, str(tmp_path))
    own = tmp_path / "disk"
    own.mkdir()
    (own / name).write_text("1000\n")
    sage_arms.limit_memory("disk", 1001)
    assert (own / "cgroup.procs").read_text() == str(os.getpid())
    with pytest.raises(ValueError, match="may use 1000 bytes, but the table has only 1,000"):
        sage_arms.limit_memory("disk", 1000)
    (own / name).write_text("max\n")
    if name == "memory.max":
        with pytest.raises(ValueError, match="may use max bytes"):
            sage_arms.limit_memory("disk", 1000)


def test_the_larger_table_has_every_row_where_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = torch.randn(50, 3)
    ids = torch.arange(50)
    small = Arxiv(torch.stack([ids, ids]), features, ids, ids, ids)
    monkeypatch.setattr(sage_arms, "load_arxiv", lambda: small)
    sage_arms.write_spread_table(tmp_path / "table.npy", features)
    table = torch.from_numpy(np.load(tmp_path / "table.npy"))
    rows = sage_arms.spread_rows()
    assert len(table) == sage_arms.SPREAD * 50
    assert len(set(rows.tolist())) == 50
    assert torch.equal(table[rows], features)
    assert sage_arms.make_graph(small, rows).num_nodes == len(table)
