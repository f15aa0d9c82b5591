"""The rows of a table in host memory, as a CUDA device sees them: no copy, the same bytes.

A mapped table is `StoredRows` again, over a CUDA tensor. Any CUDA operator can read it; the gather
kernels read it well. The tensor holds the lease on the mapping, and the lease holds the memory, so
nothing is unmapped or freed while anybody can still read it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from shorthaul.errors import CudaMappingError
from shorthaul.tensors.cuda.registration import HostRegistry
from shorthaul.tensors.kernels.stored_rows import StoredRows

# Of a row that is read on the device when a table is mapped, to see that it reads the same.
PROBE_BYTES = 4096


def map_rows(rows: StoredRows, device: torch.device, registry: HostRegistry) -> StoredRows:
    """Map the rows into `device`. Scales are copied: four bytes of a row are no read of their own.

    Where confidential computing or a broken driver lets a device read something else than the host
    wrote, this is a `CudaMappingError`, found by reading the first and the last row.
    """
    values = rows.values
    address = values.data_ptr()
    if values.numel() == 0:
        seen = torch.empty_like(values, device=device)
        return StoredRows(seen, rows.dtype, _copy_scales(rows, device))
    steps = zip(values.shape, values.stride(), strict=True)
    extent = 1 + sum((size - 1) * step for size, step in steps)
    extent_bytes = extent * values.element_size()
    lease = registry.lease(address, extent_bytes, values)
    lease.devices.add(device)
    # From the beginning of a page, so that words of any size can be counted from there.
    lead_bytes = address % registry.page_bytes
    if lead_bytes % values.element_size():
        lead_bytes = 0
    flat = registry.runtime.view(
        lease.pointer - lead_bytes, lead_bytes + extent_bytes, device, lease
    )
    seen = torch.empty(0, dtype=values.dtype, device=flat.device).set_(
        flat.untyped_storage(),
        lead_bytes // values.element_size(),
        values.shape,
        values.stride(),
    )
    for start in _probes(extent_bytes):
        _require_same(values, flat[lead_bytes + start :], start)
    return StoredRows(seen, rows.dtype, _copy_scales(rows, device))


def _copy_scales(rows: StoredRows, device: torch.device) -> torch.Tensor | None:
    return None if rows.scales is None else rows.scales.to(device)


def _probes(extent_bytes: int) -> Iterable[int]:
    return sorted({0, max(0, extent_bytes - PROBE_BYTES)})


def _require_same(values: torch.Tensor, flat: torch.Tensor, start: int) -> None:
    """Compare what the device and the host read, from byte `start` of the table on."""
    # An operator, not a copy: copies are made by another engine, which may read where kernels cannot.
    seen = (flat[:PROBE_BYTES] ^ 0).cpu()
    host = torch.empty(0, dtype=torch.uint8, device="cpu").set_(
        values.untyped_storage(),
        int(values.storage_offset()) * values.element_size() + start,
        (len(seen),),
        (1,),
    )
    if not torch.equal(seen, host):
        raise CudaMappingError(
            "use",
            values.data_ptr() + start,
            len(seen),
            "the device reads other bytes there than the host",
            "Confidential computing and some virtual machines cannot map host memory; rows are "
            "gathered by the CPU and copied instead.",
        )
