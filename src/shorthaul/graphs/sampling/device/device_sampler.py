"""Whether a device can draw a sampler's samples, and the graph's topology as it sees it.

| samples                                | are drawn by                                                    |
| uniform, fan-outs for all relations    | the device, from topology in mapped memory or copied there      |
| by weight, time, relation or tree      | the CPU, and copied, which is noted as a fallback               |
| of a graph on disk                     | the same                                                        |
| without edges that are left out        | the same                                                        |
| in a worker's process                  | the CPU; whoever completes the sample copies it                 |

Whoever draws, they are the same samples.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from shorthaul.errors import CudaUnavailableError, SamplingError
from shorthaul.fallbacks import note_fallback
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.sampling.blocks import NeighborSample
from shorthaul.graphs.sampling.candidates.rules import Rule
from shorthaul.jit.launching.device_guard import with_number
from shorthaul.jit.launching.triton_at_hand import require_triton, why_no_triton
from shorthaul.meter import record_move
from shorthaul.settings import settings
from shorthaul.tensors import UnifiedTensor
from shorthaul.tensors.cuda.gather import view_for_device
from shorthaul.tensors.tables.table import HostTable

if TYPE_CHECKING:
    from shorthaul.graphs.sampling.device.hops import DeviceTopology

WHAT = "neighbor sampling on a GPU"
INSTEAD = "sampling by the CPU, and copies"
MOST_DRAWN = 1024  # neighbors of one target, none of them twice, that a kernel holds at once
TOPOLOGIES = ("mapped", "copied")


class DeviceSampler:
    """Draws a sampler's samples on a CUDA device, as long as it can."""

    def __init__(
        self,
        graph: RelationalGraph,
        fan_outs: Sequence[Sequence[int]],
        rule: Rule,
        *,
        resample: bool,
        device: torch.device | str,
        topology: str,
    ) -> None:
        if topology not in TOPOLOGIES:
            raise SamplingError(
                f"topology must be one of {', '.join(TOPOLOGIES)}, got {topology!r}."
            )
        if torch.device(device).type != "cuda":
            raise SamplingError(
                f"a sampler's device is a CUDA device, or None for the CPU; got {str(device)!r}."
            )
        if not torch.cuda.is_available():
            raise CudaUnavailableError("PyTorch finds no CUDA device that could draw samples.")
        self.device, self.topology = with_number(device), topology
        self.graph, self.fan_outs, self.rule, self.resample = graph, fan_outs, rule, resample
        self._lock = threading.Lock()
        self._found: DeviceTopology | None = None
        self._is_looked_for = False
        self._process = os.getpid()

    @property
    def is_elsewhere(self) -> bool:
        """Whether another process wants the sample: CUDA does not outlive a fork, and batches do not travel."""
        is_forked = self._process != os.getpid()
        return is_forked or torch.utils.data.get_worker_info() is not None

    def draw(self, seeds: torch.Tensor, key: int, number: int) -> NeighborSample | None:
        """The sample around `seeds`, ids in range; `None` where the CPU has to draw it."""
        if self.is_elsewhere:
            return None
        reason = why_by_cpu(self.fan_outs, self.rule) or why_no_triton()
        topology = None
        if reason is None and settings.kernels != "torch":
            topology, reason = self._find_topology()
        if topology is None:
            self._note(reason or "SHORTHAUL_KERNELS=torch")
            return None
        from shorthaul.graphs.sampling.device.drawing import draw_sample  # Triton is optional

        return draw_sample(
            topology,
            self.graph.by_target(),
            seeds.to(self.device),
            [each for (each,) in self.fan_outs],
            key,
            number,
            replace=self.rule.replace,
            resample=self.resample,
        )

    def bring(self, sample: NeighborSample) -> NeighborSample:
        """What the CPU drew, on the device; a worker leaves that to whoever completes the sample."""
        return sample if self.is_elsewhere else sample.to(self.device)

    def note_exclusion(self) -> None:
        """Edges are left out of a sample, which the CPU therefore draws."""
        self._note("edges are left out")

    def _note(self, reason: str) -> None:
        if settings.kernels == "generated":
            if why_no_triton() is not None:
                require_triton(WHAT)
            raise SamplingError(
                f"the device was asked for by name, but cannot draw these samples: {reason}.\n"
                "  SHORTHAUL_KERNELS=auto lets the CPU draw them; leave `device` out otherwise."
            )
        note_fallback(WHAT, INSTEAD, reason)

    def _find_topology(self) -> tuple[DeviceTopology | None, str | None]:
        with self._lock:
            if not self._is_looked_for:  # memory that cannot be mapped is not tried at each sample
                self._found, self._is_looked_for = self._read_topology(), True
            return self._found, "the graph lies on disk, or its memory cannot be mapped"

    def _read_topology(self) -> DeviceTopology | None:
        from shorthaul.graphs.sampling.device.hops import DeviceTopology

        index = self.graph.by_target()
        columns = [
            _see(each, self.device, self.topology) for each in (index.pointers, index.sources)
        ]
        if columns[0] is None or columns[1] is None:
            return None
        return DeviceTopology(columns[0], columns[1])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None, "_found": None, "_is_looked_for": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock, self._process = threading.Lock(), os.getpid()


def why_by_cpu(fan_outs: Sequence[Sequence[int]], rule: Rule) -> str | None:
    """Why such samples are drawn by the CPU; `None` where a device can.

    >>> why_by_cpu([[15], [10]], Rule())
    >>> why_by_cpu([[15, 2]], Rule())
    'each relation has fan-outs of its own'
    """
    if rule.strategy != "uniform" or not rule.is_plain:
        return "weights, times and labor sampling are the CPU's"
    if rule.disjoint:
        return "every seed has a tree of its own"
    if any(len(each) != 1 for each in fan_outs):
        return "each relation has fan-outs of its own"
    if not rule.replace and any(each > MOST_DRAWN for (each,) in fan_outs):
        return f"a fan-out is more than {MOST_DRAWN:,}"
    return None


def _see(column: torch.Tensor, device: torch.device, topology: str) -> torch.Tensor | None:
    """A column of the index as the device sees it; `None` where it cannot."""
    if isinstance(column, UnifiedTensor):
        plain = column.table.tensor()
        if plain is None:
            return None
        column = plain
    if column.numel() == 0 or topology == "copied":
        record_move("memory", device.type, column.nbytes, "topology copied")
        return column.to(device)
    return view_for_device(HostTable(column), column, device)
