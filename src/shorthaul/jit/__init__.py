"""Generated source to running kernel: emit -> compile -> cache -> call."""

from shorthaul.jit.autotune import Candidate, Choice, autotune
from shorthaul.jit.kernel import Kernel, KernelFunction, can_use_kernels, load_kernel
from shorthaul.jit.kernel_cache import CacheEntry, KernelCache
from shorthaul.jit.operators import define_operator
from shorthaul.jit.source import (
    CppSource,
    DimensionArgument,
    Function,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
)
from shorthaul.jit.toolchain import Toolchain, find_toolchain

__all__ = [
    "CacheEntry",
    "Candidate",
    "Choice",
    "CppSource",
    "DimensionArgument",
    "Function",
    "Kernel",
    "KernelCache",
    "KernelFunction",
    "NumberArgument",
    "TensorArgument",
    "ThreadsArgument",
    "Toolchain",
    "autotune",
    "can_use_kernels",
    "define_operator",
    "find_toolchain",
    "load_kernel",
]
