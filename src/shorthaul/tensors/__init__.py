"""Unified tensors: rows read where they lie, in memory or on disk, by CPU or GPU."""

from shorthaul.tensors.constructors import unified, unified_empty, unified_zeros
from shorthaul.tensors.device_name import enable_unified_device
from shorthaul.tensors.open import open
from shorthaul.tensors.save_features import SavedTable, save_features
from shorthaul.tensors.tables.quantized import quantize
from shorthaul.tensors.unified_tensor import UnifiedTensor

__all__ = [
    "SavedTable",
    "UnifiedTensor",
    "enable_unified_device",
    "open",
    "quantize",
    "save_features",
    "unified",
    "unified_empty",
    "unified_zeros",
]
