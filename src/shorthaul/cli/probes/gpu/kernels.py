"""Every Triton kernel on the device, against plain PyTorch on the CPU."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from shorthaul.cli.findings import Finding
from shorthaul.cli.probes.gpu.devices import find_device, is_interpreted
from shorthaul.conv.problem import DEVICE_DTYPES, ConvProblem
from shorthaul.errors import KernelMismatchError
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.graphs.sampling.streams import choose_key
from shorthaul.relational.layers.rgat import RGATConv
from shorthaul.relational.layers.rgcn import RGCNConv
from shorthaul.tensors.kernels import plain_rows
from shorthaul.tensors.kernels.plain_rows import REDUCTIONS
from shorthaul.tensors.kernels.stored_rows import StoredRows

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Of the largest value: what rounding to a dtype, and sums of some hundred terms in another order, make.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass
class Trial:
    """Results that were compared so far, and the largest error among them."""

    name: str
    compared: int = 0
    worst: float = 0.0

    def require_equal(self, case: str, got: torch.Tensor, expected: torch.Tensor) -> None:
        """Bits that were only moved."""
        self.compared += 1
        if not torch.equal(got.cpu(), expected):
            raise KernelMismatchError(self.name, case, "the same bits", "others")

    def require_close(self, case: str, got: torch.Tensor, exact: torch.Tensor) -> None:
        """Sums, against float64."""
        tolerance = TOLERANCES[got.dtype]
        exact = exact.detach()
        scale = float(exact.abs().max().clamp(min=1e-30))
        error = float((got.detach().cpu().double() - exact.double()).abs().max()) / scale
        self.compared += 1
        self.worst = max(self.worst, error)
        if not error <= tolerance:  # a NaN is no small error
            wanted = f"at most {tolerance:g} of the largest value off"
            raise KernelMismatchError(self.name, case, wanted, f"{error:.3g}")

    def finding(self) -> Finding:
        """All of them agree."""
        told = f"{self.compared} results agree" + (
            f", at most {self.worst:.2g} of the largest value off" if self.worst else " bit by bit"
        )
        facts = {"compared": self.compared, "worst_error": self.worst}
        return Finding(self.name, "ok", told, facts=facts)


def try_gathers() -> Finding:
    """Rows of many widths and dtypes, at even and odd addresses, sorted and not."""
    from shorthaul.tensors.cuda.triton_launch import RangeFlag, gather_rows

    device, trial = find_device(), Trial("gathers")
    ids = torch.tensor([5, 0, -1, 36, 5, 17], dtype=torch.int64, device="cpu")
    dtypes = (torch.float32, torch.float16, torch.int8, torch.int64)
    for dtype, width, skipped in itertools.product(dtypes, (1, 7, 100, 128), (0, 1)):
        whole = torch.arange(37 * (width + skipped), device="cpu", dtype=torch.int64) % 101
        values = whole.to(dtype).view(37, width + skipped)[:, skipped:]
        rows = StoredRows(values.to(device), dtype)
        for is_sorted in (False, True):
            flag = RangeFlag(device)
            got = gather_rows(rows, ids.to(device), flag, is_sorted=is_sorted)
            flag.require_clear(ids, 37)
            trial.require_equal(f"{dtype} x {width}, sorted {is_sorted}", got, values[ids])
    return trial.finding()


def try_reductions() -> Finding:
    """Sums, means and maxima of segments, some of them empty."""
    from shorthaul.tensors.cuda.triton_launch import RangeFlag, reduce_rows

    device, trial = find_device(), Trial("sums of rows")
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(60, (90,), generator=draw, dtype=torch.int64, device="cpu")
    pointers = torch.tensor([0, 0, 1, 40, 40, 90], dtype=torch.int64, device="cpu")
    for dtype, op, width in itertools.product(FLOAT_DTYPES, REDUCTIONS, (3, 128)):
        values = torch.randn(60, width, generator=draw, dtype=torch.float32, device="cpu").to(dtype)
        exact = plain_rows.gather_reduce(
            StoredRows(values.double(), torch.float64), pointers, ids, op, None
        )
        rows = StoredRows(values.to(device), dtype)
        flag = RangeFlag(device)
        got = reduce_rows(rows, pointers.to(device), ids.to(device), op, flag)
        trial.require_close(f"{op} of {dtype} x {width}", got, exact)
    return trial.finding()


def try_samples() -> Finding:
    """Neighbors of three hops, drawn by the device from its own copy of a graph, against the CPU's."""
    from shorthaul.graphs.sampling.device.drawing import draw_sample
    from shorthaul.graphs.sampling.device.hops import DeviceTopology

    device, trial = find_device(), Trial("samples of neighbors")
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randint(80, (2, 900), generator=draw, dtype=torch.int64, device="cpu")
    seeds = torch.randint(80, (30,), generator=draw, dtype=torch.int64, device="cpu")
    for dtype, replace in itertools.product((torch.int32, torch.int64), (False, True)):
        graph = RelationalGraph.from_edges(source, target, num_nodes=80, index_dtype=dtype)
        index, sampler = graph.by_target(), NeighborSampler(graph, [9, -1, 4], replace=replace)
        expected = sampler.sample(seeds, number=0)
        got = draw_sample(
            DeviceTopology(index.pointers.to(device), index.sources.to(device)),
            index,
            seeds.to(dtype).to(device),
            [9, -1, 4],
            choose_key(sampler.seed, 0),
            0,
            replace=replace,
            resample=True,
        )
        for number, (mine, yours) in enumerate(zip(got.blocks, expected.blocks, strict=True)):
            for part in ("source_nodes", "pointers", "sources", "positions"):
                case = f"{dtype}, replace={replace}, block {number}, {part}"
                trial.require_equal(case, getattr(mine, part), getattr(yours, part))
    return trial.finding()


def try_layers() -> Finding:
    """RGCN and RGAT, forward and backward, against float64 in plain PyTorch."""
    device, trial = find_device(), Trial("relational layers")
    draw = torch.Generator().manual_seed(0)
    source, target, relation = torch.randint(
        23, (3, 90), generator=draw, dtype=torch.int64, device="cpu"
    )
    graph = RelationalGraph.from_edges(source, target, relation=relation % 3, num_nodes=23)
    x = torch.randn(23, 16, generator=draw, dtype=torch.float64, device="cpu")
    dtypes = (torch.float32,) if is_interpreted() else FLOAT_DTYPES
    for kind, dtype in itertools.product((RGCNConv, RGATConv), dtypes):
        given = kind(16, 8, 3).to(dtype)  # both compute with what the parameters are rounded to
        exact = kind(16, 8, 3).double()
        exact.load_state_dict({key: each.double() for key, each in given.state_dict().items()})
        exact.function.backend = "reference"
        rounded = x.to(dtype)
        expected = _step(exact, rounded.double(), graph)
        given = given.to(device)
        given.function.backend = "triton"
        found = _step(given, rounded.to(device), graph)
        for part, (got, wanted) in enumerate(zip(found, expected, strict=True)):
            trial.require_close(f"{kind.__name__}, {dtype}, result {part}", got, wanted)
    return trial.finding()


def _step(
    layer: RGCNConv | RGATConv, x: torch.Tensor, graph: RelationalGraph
) -> list[torch.Tensor]:
    out = layer(x, graph)
    out.square().sum().backward()
    return [out, *(each.grad for each in layer.parameters() if each.grad is not None)]


def try_convolutions() -> Finding:
    """Forward and both gradients in every dtype, grouped and not, against float64."""
    from shorthaul.conv.triton import launch

    device, trial = find_device(), Trial("convolutions")
    draw = torch.Generator().manual_seed(0)
    # Triton's interpreter multiplies the bits of bfloat16, not its values.
    dtypes = DEVICE_DTYPES[:2] if is_interpreted() else DEVICE_DTYPES
    for dtype, groups in itertools.product(dtypes, (1, 2)):
        problem = ConvProblem(
            4, 6, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)), groups=groups, dtype=dtype
        )
        sizes = ((2, 4, 1, 9, 7), problem.weight_shape, (2, 6, 1, 9, 7))
        x, weight, gradient = (
            torch.randn(size, generator=draw, dtype=torch.float64, device="cpu").to(dtype)
            for size in sizes
        )
        exact = [each.double().requires_grad_() for each in (x, weight)]
        out = torch.nn.functional.conv3d(exact[0], exact[1], padding=(0, 1, 1), groups=groups)
        torch.autograd.backward(out, gradient.double())
        moved = [each.to(device) for each in (x, weight, gradient)]
        name = f"{dtype}, {groups} groups"
        trial.require_close(name, launch.run_forward(problem, moved[0], moved[1]), out.detach())
        of_input = launch.run_grad_input(problem, moved[2], moved[1], (1, 9, 7))
        of_weight = launch.run_grad_weight(problem, moved[2], moved[0])
        for part, got, of in (("input", of_input, exact[0]), ("weight", of_weight, exact[1])):
            assert of.grad is not None
            trial.require_close(f"{name}, gradient of the {part}", got, of.grad)
    return trial.finding()
