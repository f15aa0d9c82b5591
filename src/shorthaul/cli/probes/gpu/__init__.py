"""What `shorthaul doctor --gpu` tries: every kernel on the device against plain PyTorch on the CPU."""

from shorthaul.cli.findings import Probe
from shorthaul.cli.probes.gpu import devices, kernels, paths

GPU_PROBES = (
    Probe("GPU", "device", devices.look_at_devices, is_essential=True),
    Probe("GPU", "Triton", devices.look_at_triton, is_essential=True),
    Probe("Kernels on the GPU", "gathers", kernels.try_gathers, is_essential=True),
    Probe("Kernels on the GPU", "sums of rows", kernels.try_reductions, is_essential=True),
    Probe("Kernels on the GPU", "samples of neighbors", kernels.try_samples, is_essential=True),
    Probe("Kernels on the GPU", "relational layers", kernels.try_layers, is_essential=True),
    Probe("Kernels on the GPU", "convolutions", kernels.try_convolutions, is_essential=True),
    Probe("Paths", "mapped memory", paths.try_mapping, is_essential=True),
    Probe("Paths", "two streams", paths.try_streams, is_essential=True),
    Probe("Paths", "mini-batches", paths.try_loader, is_essential=True),
    Probe("Paths", "offloaded step", paths.try_offloading, is_essential=True),
    Probe("Paths", "every device", paths.try_every_device, is_essential=True),
    Probe("Bandwidth", "rows from host memory", paths.measure_gathers, is_measurement=True),
)
