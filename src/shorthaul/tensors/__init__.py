"""Unified tensors: rows read where they lie, in memory or on disk, by CPU or GPU."""

from shorthaul.tensors.device_name import enable_unified_device
from shorthaul.tensors.unified import unified, unified_empty, unified_zeros
from shorthaul.tensors.unified_tensor import UnifiedTensor

__all__ = [
    "UnifiedTensor",
    "enable_unified_device",
    "unified",
    "unified_empty",
    "unified_zeros",
]
