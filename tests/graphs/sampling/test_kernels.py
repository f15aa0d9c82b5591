from pathlib import Path

import pytest
import torch

from shorthaul.graphs.sampling.kernels import SamplingMemory, emit_sampler
from shorthaul.jit import load_kernel


@pytest.mark.parametrize("is_hashed", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_source_says_what_it_is_for(dtype: torch.dtype, is_hashed: bool) -> None:
    source = emit_sampler(dtype, is_hashed=is_hashed)
    width = {torch.int32: "int32", torch.int64: "int64"}[dtype]
    assert source.name == f"sample_neighbors_{width}_{'hash' if is_hashed else 'direct'}"
    assert f"ids of {width}_t" in source.text
    assert "shorthaul/graphs/sampling/sampler.h" in source.headers()
    assert load_kernel(source).functions.keys() == {
        "create",
        "destroy",
        "sample",
        "copy_nodes",
        "copy_trees",
        "copy_hop",
        # and one by one, for graphs on disk
        "start",
        "start_hop",
        "draw_hop",
        "copy_positions",
        "relabel_hop",
    }


class Seeds:
    """Samples of seeds alone: what is left is the relabeling."""

    def __init__(self, nodes: int, *, is_hashed: bool) -> None:
        self.memory = SamplingMemory(torch.int64, nodes, is_hashed=is_hashed)
        self.pointers = torch.zeros(nodes + 1, dtype=torch.int64)
        self.empty = torch.empty(0, dtype=torch.int64)
        self.counts = torch.empty(1, dtype=torch.int64)

    def relabel(self, ids: torch.Tensor) -> torch.Tensor:
        rows = torch.empty_like(ids)
        graph = (self.pointers, self.empty, None, None, None, None, None)
        fans = (self.empty.view(0, 1), self.empty, self.counts)
        numbers = (
            0,
            0,
            1,
            1,
            0,
            0,
            1,
        )  # uniform, without replacement, equal times; all anew, no trees
        status = self.memory.kernel.sample(
            self.memory.address, *graph, ids, None, self.empty, rows, *fans, *numbers
        )
        assert status == 0
        return rows


@pytest.mark.parametrize("is_hashed", [False, True])
def test_ids_are_given_in_the_order_of_appearance(is_hashed: bool) -> None:
    seeds = Seeds(100, is_hashed=is_hashed)
    for ids in ([7, 3, 7, 99], [99, 3], [], [5, 5, 5], list(range(100))):
        places = {node: place for place, node in enumerate(dict.fromkeys(ids))}
        got = seeds.relabel(torch.tensor(ids, dtype=torch.int64))
        assert got.tolist() == [places[each] for each in ids]
        assert seeds.counts.item() == len(places)


@pytest.mark.slow
@pytest.mark.parametrize("is_hashed", [False, True])
def test_stamps_start_again_when_they_run_out(is_hashed: bool) -> None:
    # 2**32 stamps; the hash table starts again at half of them.
    nodes = 2**20
    seeds = Seeds(nodes, is_hashed=is_hashed)
    ids, expected = torch.arange(nodes).flip(0).contiguous(), torch.arange(nodes)
    for _ in range((2**31 if is_hashed else 2**32) // nodes + 3):
        rows = seeds.relabel(ids)
        assert rows[-1].item() == nodes - 1
    assert torch.equal(rows, expected)


def test_memory_is_given_back() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def use() -> None:
        seeds = Seeds(2**22, is_hashed=False)  # a table of 16 MiB
        seeds.relabel(torch.arange(0, 2**22, 64))

    use()
    before = resident_bytes()
    for _ in range(12):
        use()
    assert resident_bytes() - before < 6 * 2**24
