"""Shared tables are mapped by other processes, never copied, however these were started."""

import multiprocessing
import pickle
import re
from pathlib import Path

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import UnifiedSourceError
from shorthaul.tensors.memory.shared_memory import MAPPING_NAME, SharedBlock
from shorthaul.tensors.unified_tensor import UnifiedTensor

ROWS, WIDTH = 4096, 256  # 4 MiB


def count_mapped() -> dict[str, int]:
    """Bytes of shared tables that this process has mapped, by what the kernel says of them."""
    totals = {"Size": 0, "Private_Clean": 0, "Private_Dirty": 0, "Rss": 0, "Pss": 0}
    is_ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_ours = MAPPING_NAME in line
        name, _, rest = line.partition(":")
        if is_ours and name in totals:
            totals[name] += int(rest.split()[0]) * 1024
    return totals


def visit(table, received, answers) -> None:
    """In the child: touch all rows, tell what they cost, then write and read when told to."""
    torch.set_num_threads(1)  # as loader workers do: OpenMP's threads do not survive a fork
    total = table.cpu().sum().item()
    answers.put((type(table).__name__, table.kind, total, count_mapped()))
    received.get()  # the parent has written
    answers.put(table[torch.tensor([5])][0, 0].item())
    table[7].fill_(11)
    answers.put("written")
    view = received.get()
    answers.put((view.shape, view.stride(), view[0].tolist(), view.propagate))
    view[1].fill_(-3)
    answers.put("written")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_maps_the_table_and_both_see_writes(method: str) -> None:
    context = multiprocessing.get_context(method)
    table = sh.unified(torch.ones(ROWS, WIDTH), shared=True, propagate=True)
    received, answers = context.Queue(), context.Queue()
    child = context.Process(target=visit, args=(table, received, answers), daemon=True)
    child.start()
    kind, where, total, mapped = answers.get(timeout=100)
    assert (kind, where, total) == ("UnifiedTensor", "shared", ROWS * WIDTH)
    assert mapped["Size"] == table.nbytes  # one mapping of the whole table,
    assert mapped["Rss"] == table.nbytes  # all of it touched,
    assert mapped["Private_Clean"] + mapped["Private_Dirty"] == 0  # and no byte of its own
    assert mapped["Pss"] <= table.nbytes * 0.51
    table[5].fill_(42)
    received.put("go")
    assert answers.get(timeout=100) == 42
    assert answers.get(timeout=100) == "written"
    assert table[torch.tensor([7])][0, 0] == 11
    received.put(table[5:10:2, 250:])  # a view travels through the queue by descriptor
    assert answers.get(timeout=100) == ((3, 6), (512, 1), [42] * 6, True)
    assert answers.get(timeout=100) == "written"
    assert table[7].tolist() == [11] * 250 + [-3] * 6
    child.join(100)
    assert child.exitcode == 0


class TableRows(torch.utils.data.Dataset):
    def __init__(self, table: UnifiedTensor) -> None:
        self.table = table

    def __len__(self) -> int:
        return self.table.shape[0] // 1024

    def __getitem__(self, batch: int) -> torch.Tensor:
        mapped = count_mapped()
        own = mapped["Private_Clean"] + mapped["Private_Dirty"]
        rows = self.table[torch.arange(batch, self.table.shape[0], 4)]
        return torch.cat([rows[:1, 0], torch.tensor([float(own)])])


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_loader_workers_read_the_same_memory(method: str) -> None:
    table = sh.unified(torch.arange(4096.0)[:, None].expand(-1, 64), shared=True)
    loader = torch.utils.data.DataLoader(
        TableRows(table), batch_size=None, num_workers=2, multiprocessing_context=method
    )
    assert [batch.tolist() for batch in loader] == [[0, 0], [1, 0], [2, 0], [3, 0]]


def test_blocks_are_zeros_and_outlive_their_handle() -> None:
    tensor = SharedBlock(1000).tensor(torch.int16, (10, 3), offset=4)
    assert torch.equal(tensor, torch.zeros(10, 3, dtype=torch.int16))
    tensor.fill_(1)
    assert SharedBlock(0).tensor(torch.float32, (0, 3)).shape == (0, 3)


def test_a_block_does_not_fit_into_an_ordinary_pickle() -> None:
    with pytest.raises(UnifiedSourceError, match="through a multiprocessing queue"):
        pickle.dumps(SharedBlock(8))


def test_no_descriptor_is_left_behind() -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(20):
        sh.unified_zeros(100, 10, shared=True)[torch.tensor([1])]
    assert len([*Path("/proc/self/fd").iterdir()]) == before
