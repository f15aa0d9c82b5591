"""Everything that `shorthaul doctor` looks at, in the order in which it is shown."""

from shorthaul.cli.findings import Probe
from shorthaul.cli.probes import kernels, packages, storage

PROBES = (
    Probe("Kernels", "torch", kernels.look_for_torch, is_essential=True),
    Probe("Kernels", "compiler", kernels.look_for_compiler),
    Probe("Kernels", "processor", kernels.look_at_processor),
    Probe("Kernels", "cache", packages.look_at_cache, is_essential=True),
    Probe("Kernels", "generated kernels", kernels.try_kernel, is_essential=True),
    Probe("Kernels", "threads", kernels.look_at_threads),
    Probe("Kernels", "OpenMP", kernels.look_for_openmp),
    Probe("Kernels", "multiply-add peak", kernels.measure_arithmetic, is_measurement=True),
    Probe("Kernels", "memory bandwidth", kernels.measure_memory_bandwidth, is_measurement=True),
    Probe("Storage", "scratch directory", storage.look_at_scratch, is_essential=True),
    Probe("Storage", "storage engine", storage.try_storage, is_essential=True),
    Probe("Storage", "io_uring", storage.look_for_uring),
    Probe("Storage", "O_DIRECT", storage.look_for_direct),
    Probe("Storage", "disk bandwidth", storage.measure_scratch, is_measurement=True),
    Probe("Accelerators", "GPU", packages.look_for_gpu),
    Probe("Accelerators", "Triton", packages.look_for_triton),
    Probe("Optional packages", "extras", packages.look_for_extras),
    # Last: it lists what the probes above had to fall back on.
    Probe("Second-best ways taken", "fallbacks", packages.list_fallbacks),
)
