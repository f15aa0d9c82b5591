"""How long do rows of a table in host memory take to a GPU?

Tables and ids are drawn at random; ids lie on the host for who gathers there, and on the device for who reads
from there. All bring the same bits.
"""

from __future__ import annotations

import torch

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.device_arm import Run, Way, compare_ways, find_device
from benchmarks.measuring.measure import same_bits

PLAIN = "PyTorch, gathered by the CPU, pinned copy"


def measure(answer: Answer) -> None:
    """Widths of the paper's kind, of whole lines and of others."""
    device = find_device()
    rows, count = (1_000, 8) if answer.is_quick else (2_000_000, 65_536)
    for width in (100, 128, 602):
        draw = torch.Generator().manual_seed(0)
        plain = torch.rand(rows, width, generator=draw)
        ids = torch.randint(rows, (count,), generator=draw)
        compare_ways(
            answer,
            f"{count:,} of {rows:,} rows of {width} float32",
            _list_ways(plain, ids, device),
            baseline=PLAIN,
            same=same_bits,
            device=device,
        )


def _list_ways(plain: torch.Tensor, ids: torch.Tensor, device: torch.device) -> list[Way]:
    on_device, table = ids.to(device), sh.unified(plain)

    def pinned() -> Run:
        staging = torch.empty(len(ids), plain.shape[1], pin_memory=True)

        def run() -> torch.Tensor:
            torch.index_select(plain, 0, ids, out=staging)
            copied = staging.to(device, non_blocking=True)
            torch.cuda.current_stream(device).synchronize()  # the staging memory is used again
            return copied

        return run

    def graphbolt() -> Run:
        from dgl import graphbolt

        feature = graphbolt.TorchBasedFeature(plain.clone()).pin_memory_()
        return lambda: feature.read(on_device)

    def dgl() -> Run:
        from dgl.utils import gather_pinned_tensor_rows, pin_memory_inplace

        pinned_rows = plain.clone()
        keeper = pin_memory_inplace(pinned_rows)

        def run(keeper: object = keeper) -> object:
            del keeper  # it is kept as long as the function
            return gather_pinned_tensor_rows(pinned_rows, on_device)

        return run

    return [
        Way(PLAIN, pinned),
        Way("PyTorch, whole table on the GPU", lambda: _resident(plain.to(device), on_device)),
        Way("DGL, pinned rows", dgl),
        Way("DGL GraphBolt, UVA", graphbolt),
        Way("shorthaul", lambda: lambda: table.gather(on_device, device=device)),
        Way("shorthaul, ids on the host", lambda: lambda: table.gather(ids, device=device)),
    ]


def _resident(table: torch.Tensor, ids: torch.Tensor) -> Run:
    return lambda: table.index_select(0, ids)


if __name__ == "__main__":
    answer_question(measure)
