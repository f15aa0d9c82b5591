"""The drawn graph of IGBH's schema: from its seed, with its relations, with few popular nodes."""

from pathlib import Path

import numpy as np
import torch

from benchmarks.arms.igbh_graph import EDGES, NODES, draw_igbh, write_igbh


def test_a_seed_draws_one_graph():
    one, same, other = draw_igbh(20_000, 1), draw_igbh(20_000, 1), draw_igbh(20_000, 2)
    assert one.nodes == same.nodes
    assert all(torch.equal(one.edges[each], same.edges[each]) for each in one.edges)
    assert not all(torch.equal(one.edges[each], other.edges[each]) for each in one.edges)


def test_it_has_igbhs_schema_and_size():
    drawn = draw_igbh(100_000)
    assert abs(sum(each.shape[1] for each in drawn.edges.values()) - 100_000) < 100
    assert set(drawn.nodes) == set(NODES)
    backwards = {(target, f"rev_{name}", source) for source, name, target in EDGES}
    assert set(drawn.edges) == {*EDGES, *backwards}
    for (source, name, target), ends in drawn.edges.items():
        assert all(0 <= int(row.min()) <= int(row.max()) for row in ends)
        assert int(ends[0].max()) < drawn.nodes[source]
        assert int(ends[1].max()) < drawn.nodes[target]
        if not name.startswith("rev_"):
            assert torch.equal(ends.flip(0), drawn.edges[target, f"rev_{name}", source])


def test_degrees_fall_as_a_power_law_does():
    drawn = draw_igbh(1_000_000)
    cited = torch.bincount(drawn.edges["paper", "cites", "paper"][1]).sort(descending=True).values
    # Ranks to the power of -2/3: the first tenth has the third root of 0.1 of all, 46 per cent.
    share = float(cited[: drawn.nodes["paper"] // 10].sum() / cited.sum())
    assert 0.43 < share < 0.50
    assert int(cited[0]) > 50 * float(cited.float().mean())


def test_files_hold_what_libraries_read(tmp_path: Path):
    write_igbh(tmp_path, 5000, width=3)
    saved = torch.load(tmp_path / "graph.pt", weights_only=True)
    assert saved["nodes"] == draw_igbh(5000).nodes
    assert sorted(saved["seeds"].tolist()) == list(range(saved["nodes"]["paper"]))
    for kind, count in saved["nodes"].items():
        table = np.load(tmp_path / f"{kind}.npy")
        assert table.shape == (count, 3)
        assert table.dtype == np.float32
