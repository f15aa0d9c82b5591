"""Programs in which a pool is open: it stays for as long as a process lives, so each has one of its own."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

from shorthaul.allocator.tensor_pool import PoolUnavailableError, TensorPool
from shorthaul.host_memory import give_memory_back, resident_bytes

MIB = 2**20


def whole(size_bytes: int) -> int:
    """Bytes of the granules of a block."""
    return -(-size_bytes // 65536) * 65536


def filled(size_bytes: int, value: int) -> torch.Tensor:
    """A block that says whose it is, at its ends and in each of its pages."""
    block = torch.empty(size_bytes, dtype=torch.uint8)
    view = block.numpy()
    view[::4096] = view[-1] = value
    return block


def holds(block: torch.Tensor, value: int) -> bool:
    """Whether nobody else wrote into it."""
    view = block.numpy()
    return bool((view[::4096] == value).all()) and view[-1] == value


def drawn() -> None:
    """Blocks of drawn sizes come and go: none is handed out twice, and the counts are theirs."""
    pool = TensorPool.open()
    draw = numpy.random.default_rng(int(sys.argv[2]))
    blocks: list[tuple[torch.Tensor, int]] = []
    for turn in range(4000):
        if turn % 1000 == 999:
            give_memory_back()
            assert pool.look().idle_bytes == 0
        if blocks and draw.random() < 0.5:
            block, value = blocks.pop(int(draw.integers(len(blocks))))
            assert holds(block, value)
            del block
        else:
            size_bytes = int(MIB * 2 ** (4 * draw.random() if draw.random() < 0.8 else 0))
            value = int(draw.integers(1, 256))
            blocks.append((filled(size_bytes + int(draw.integers(2)), value), value))
        if len(blocks) > 40:
            blocks = blocks[::2]
        facts = pool.look()
        assert facts.live_bytes == sum(whole(len(each)) for each, _ in blocks)
        assert facts.live_bytes + facts.idle_bytes <= facts.peak_live_bytes
        assert facts.fresh_bytes - facts.returned_bytes == facts.live_bytes + facts.idle_bytes
        assert all(each.data_ptr() % 64 == 0 for each, _ in blocks)
    assert all(holds(*each) for each in blocks)
    assert pool.look().fresh_bytes < pool.look().allocations * MIB  # most were served by freed ones


def steady() -> None:
    """A loop that frees what it makes maps next to nothing after its first rounds, whatever the sizes."""
    pool = TensorPool.open()
    for turn in range(8):
        before_bytes = pool.look().fresh_bytes
        kept = [torch.empty(k * MIB // 2 + 5000, dtype=torch.uint8) for k in range(2, 30)]
        large = torch.empty(100 * MIB, dtype=torch.uint8)
        del kept[::2]
        again = [torch.empty(k * MIB // 3 + 9000, dtype=torch.uint8) for k in range(3, 40)]
        del kept, large, again
        fresh_bytes = pool.look().fresh_bytes - before_bytes
        assert turn < 3 or fresh_bytes < 100 * MIB  # of 700 that are asked for


def resident() -> None:
    """Pages that are returned leave the process, and those of absent addresses never were in it."""
    pool = TensorPool.open()
    empty_bytes = resident_bytes()
    blocks = [filled(4 * MIB, 7) for _ in range(32)]
    full_bytes = resident_bytes()
    assert full_bytes - empty_bytes > 120 * MIB
    del blocks[1::2]
    assert pool.look().idle_bytes == 64 * MIB
    pool.return_idle()
    assert full_bytes - resident_bytes() > 56 * MIB
    assert all(holds(each, 7) for each in blocks)


def windows() -> None:
    """A peak that does not come again is forgotten, and its pages go back."""
    pool = TensorPool.open()
    del [torch.empty(64 * MIB, dtype=torch.uint8) for _ in range(4)][:]
    assert pool.look().idle_bytes == 256 * MIB
    for _ in range(2 * 2**15):
        torch.empty(2 * MIB, dtype=torch.uint8)
    assert pool.look().idle_bytes <= 2 * MIB


def threads() -> None:
    """Several threads allocate and free at once, each what another made, too."""
    pool = TensorPool.open()
    shelf: list[tuple[torch.Tensor, int]] = []
    wrong: list[int] = []

    def work(seed: int) -> None:
        draw = numpy.random.default_rng(seed)
        for _ in range(800):
            value = int(draw.integers(1, 256))
            shelf.append((filled(int(draw.integers(MIB, 3 * MIB)), value), value))
            if len(shelf) > 12:
                try:
                    taken = shelf.pop(int(draw.integers(4)))
                except IndexError:
                    continue
                if not holds(*taken):
                    wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert wrong == []
    shelf.clear()
    assert pool.look().live_bytes == 0


def forked() -> None:
    """A child has blocks of its own, also when another thread allocates while it is made."""
    pool = TensorPool.open()
    block, is_over = filled(8 * MIB, 3), threading.Event()

    def churn() -> None:
        while not is_over.is_set():
            filled(2 * MIB, 1)

    worker = threading.Thread(target=churn)
    worker.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            mine = [filled(3 * MIB, 9) for _ in range(3)]
            block.numpy()[:] = 5
            pool.return_idle()
            os._exit(0 if all(holds(each, 9) for each in mine) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    is_over.set()
    worker.join()
    assert holds(block, 3)


def surroundings() -> None:
    """What else is done with memory of tensors."""
    before = filled(2 * MIB, 4)  # made by malloc, and freed when the pool is there
    pool = TensorPool.open()
    assert holds(before, 4)
    del before
    grown = torch.full((2 * MIB,), 6, dtype=torch.uint8)
    grown.untyped_storage().resize_(5 * MIB)
    assert holds(grown, 6)
    torch.empty(0), torch.empty(MIB - 1, dtype=torch.uint8)
    live_bytes = pool.look().live_bytes
    with torch.profiler.profile(profile_memory=True) as profile:
        filled(4 * MIB, 1)
    assert any(each.self_cpu_memory_usage == 4 * MIB for each in profile.key_averages())
    shared = filled(2 * MIB, 8).share_memory_()
    assert holds(shared, 8)
    assert pool.look().live_bytes == live_bytes  # a shared block is a file's
    array = filled(2 * MIB, 9).numpy()
    assert (array[::4096] == 9).all()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(grown, Path(folder) / "saved.pt")
        assert holds(torch.load(Path(folder) / "saved.pt")[: 2 * MIB], 6)
    assert holds(grown.clone()[: 2 * MIB], 6)
    with pytest.raises(RuntimeError, match="can't allocate memory"):  # in PyTorch's own words
        torch.empty(2**46, dtype=torch.uint8)
    torch.manual_seed(0)
    weight, values = torch.randn(512, 512, requires_grad=True), torch.randn(2048, 512)
    (values @ weight).relu().sum().backward()
    grad = weight.grad
    assert grad is not None
    torch.testing.assert_close(grad, values.T @ ((values @ weight) > 0).float())


def limited() -> None:
    """Where addresses are limited there is no pool, and tensors are made as before."""
    resource.setrlimit(resource.RLIMIT_AS, (32 * 2**30, 32 * 2**30))
    with pytest.raises(PoolUnavailableError, match="no addresses could be reserved"):
        TensorPool.open()
    assert holds(filled(2 * MIB, 1), 1)


PROGRAMS: tuple[Callable[[], None], ...] = (
    drawn,
    steady,
    resident,
    windows,
    threads,
    forked,
    surroundings,
    limited,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    next(each for each in PROGRAMS if each.__name__ == sys.argv[1])()
