"""What the data sheets of GPUs allow each kernel: a model from bytes and operations, in which nothing was measured.

A kernel takes at least as long as moving every array of it once, and as its operations at the peak of the units
that do them: those of float32 for the row loops and for exact products, tensor cores for convolutions of 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shorthaul.conv.planning.estimate import TWELVE_LAYERS
from shorthaul.relational import RGATConv, RGCNConv
from shorthaul.relational.compiler import compile_program
from shorthaul.relational.inspection.explain import guess_sizes
from shorthaul.relational.planning.estimate import Estimate, Machine, estimate
from shorthaul.units import format_bytes, format_seconds

IMAGES = 32


@dataclass(frozen=True)
class DataSheet:
    """NVIDIA's figures of one GPU: memory, and the peaks of its units without sparsity."""

    name: str
    bytes_per_second: float
    flops: float  # of float32
    tensor_flops: float  # of 16 bits, added up in float32

    def machine(self, dtype: torch.dtype) -> Machine:
        """As a machine that computes with numbers of this dtype."""
        return Machine(
            self.bytes_per_second, self.flops if dtype is torch.float32 else self.tensor_flops
        )


GPUS = (
    DataSheet("A100 SXM 80 GB", 2039e9, 19.5e12, 312e12),
    DataSheet("H100 SXM", 3350e9, 67e12, 989.4e12),
    DataSheet("RTX 4090", 1008e9, 82.6e12, 165.2e12),
)


def describe_bound(moved_bytes: int, flops: int, machine: Machine) -> str:
    """What bounds a kernel, and the time that it takes at least.

    >>> describe_bound(1_000_000, 1_000_000, Machine(1e12, 1e13))
    'memory, 1.0 us'
    >>> describe_bound(1_000_000, 100_000_000, Machine(1e12, 1e13))
    'operations, 10.0 us'
    """
    memory, operations = moved_bytes / machine.bytes_per_second, flops / machine.flops_per_second
    bound = "memory" if memory >= operations else "operations"
    return f"{bound}, {format_seconds(max(memory, operations))}"


def estimate_layers() -> dict[str, Estimate]:
    """Layers of 64 features on a graph of the sizes of FB15k-237 with inverse relations, in float32."""
    sizes = guess_sizes(nodes=14_541, edges=620_232, relations=474)
    layers = {"RGCN 64": RGCNConv(64, 64, 474), "RGAT 64, 4 heads": RGATConv(64, 16, 474, heads=4)}
    found = {}
    for name, layer in layers.items():
        program = layer.function.program
        inputs = [step.name for step in program.inputs]
        made = compile_program(program, sizes, torch.float32, torch.int32, inputs)
        found[name] = estimate(made.plan, sizes)
    return found


def render_relational_rooflines() -> str:
    """A line for each kernel of the layers, forward and backward."""
    lines = _headings("layer", "kernel")
    machines = [each.machine(torch.float32) for each in GPUS]
    for name, costs in estimate_layers().items():
        first = name
        for each in costs.kernels:
            cells = _cells(each.moved_bytes, each.flops, machines)
            lines.append(f"| {' | '.join([first, f'{each.direction}: {each.title}', *cells])} |")
            first = ""
    return "\n".join(lines)


def render_convolution_rooflines() -> str:
    """A line for each layer of the papers and dtype: any of its three kernels has these arrays and operations."""
    lines = _headings("layer", "dtype")
    for layer in TWELVE_LAYERS:
        first, problem = f"{layer.name}: {layer.problem.describe()}", layer.problem
        for dtype in (torch.float32, torch.float16):
            machines = [each.machine(dtype) for each in GPUS]
            pixels = IMAGES * torch.Size(layer.sizes).numel()
            outputs = IMAGES * torch.Size(problem.output_sizes(layer.sizes)).numel()
            numbers = pixels * problem.in_channels + outputs * problem.out_channels
            numbers += torch.Size(problem.weight_shape).numel()
            flops = problem.flops(IMAGES, layer.sizes)
            cells = _cells(numbers * dtype.itemsize, flops, machines)
            lines.append(f"| {' | '.join([first, str(dtype).removeprefix('torch.'), *cells])} |")
            first = ""
    return "\n".join(lines)


def _headings(*names: str) -> list[str]:
    headings = [*names, "moved", "MFLOP", "FLOP/byte", *(each.name for each in GPUS)]
    rule = ["---"] * len(names) + ["---:"] * (len(headings) - len(names))
    return [f"| {' | '.join(headings)} |", f"| {' | '.join(rule)} |"]


def _cells(moved_bytes: int, flops: int, machines: list[Machine]) -> list[str]:
    bounds = [describe_bound(moved_bytes, flops, each) for each in machines]
    return [
        format_bytes(moved_bytes),
        f"{flops / 1e6:,.1f}",
        f"{flops / moved_bytes:.2f}" if moved_bytes else "-",
        *bounds,
    ]
