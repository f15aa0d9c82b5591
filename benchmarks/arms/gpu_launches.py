"""Launches of every Triton kernel that ships, as users' calls make them: to be compiled, not run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial

import torch

from shorthaul.conv.problem import DEVICE_DTYPES, ConvProblem
from shorthaul.conv.triton import launch as conv_launch
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.sampling.device.hops import DeviceHop, launch_draw
from shorthaul.relational import RGATConv, RGCNConv
from shorthaul.relational.compiled_layer import CompiledFunction
from shorthaul.relational.passes.differentiate import GRADIENT
from shorthaul.relational.topology.topology import Topology
from shorthaul.tensors.cuda.row_cache import DeviceRowCache
from shorthaul.tensors.cuda.triton_launch import RangeFlag, gather_rows, reduce_rows
from shorthaul.tensors.kernels.plain_rows import REDUCTIONS
from shorthaul.tensors.kernels.stored_rows import StoredRows

META = torch.device("meta")  # tensors with shapes and no content, at the beginning of a page
Launch = Callable[[], object]
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int8: "int8"}


def _rows(width: int, dtype: torch.dtype, seen: torch.dtype, *, is_scaled: bool) -> StoredRows:
    values = torch.empty(1001, width, dtype=dtype, device=META)
    scales = torch.empty(1001, dtype=torch.float32, device=META) if is_scaled else None
    return StoredRows(values, seen, scales)


def _gather(rows: StoredRows, *, is_sorted: bool = False, has_cache: bool = False) -> None:
    ids = torch.empty(77, dtype=torch.int64, device=META)
    cache = None
    if has_cache:
        slots = torch.empty(1001, dtype=torch.int32, device=META)
        cache = DeviceRowCache(rows.values[:9], slots)
    gather_rows(rows, ids, RangeFlag(META), is_sorted=is_sorted, cache=cache)


def _reduce(rows: StoredRows, op: str) -> None:
    ids = torch.empty(77, dtype=torch.int64, device=META)
    reduce_rows(rows, ids[:12], ids, op, RangeFlag(META))  # type: ignore[arg-type]


def list_gathers() -> dict[str, Launch]:
    """Rows of a whole number of lines and of others, narrow ones, widened ones, with a cache."""
    float32, half, int8 = torch.float32, torch.float16, torch.int8
    found: dict[str, Launch] = {}
    for width in (8, 100, 128, 1024):
        rows = _rows(width, float32, float32, is_scaled=False)
        found[f"gather fp32 x {width}"] = partial(_gather, rows)
    rows = _rows(100, float32, float32, is_scaled=False)
    found["gather fp32 x 100, sorted, cache"] = partial(
        _gather, rows, is_sorted=True, has_cache=True
    )
    found["gather fp16 x 128 as fp32"] = partial(
        _gather, _rows(128, half, float32, is_scaled=False)
    )
    found["gather int8 x 128 as fp32"] = partial(_gather, _rows(128, int8, float32, is_scaled=True))
    for op, (width, dtype) in itertools.product(REDUCTIONS, ((128, float32), (256, half))):
        rows = _rows(width, dtype, dtype, is_scaled=False)
        found[f"{op} of rows {NAMES[dtype]} x {width}"] = partial(_reduce, rows, op)
    return found


def _draw(index_dtype: torch.dtype, fan_out: int, *, replace: bool) -> None:
    targets, sources = (torch.empty(each, dtype=index_dtype, device=META) for each in (777, 5003))
    counts = torch.empty(777, dtype=torch.int64, device=META)
    hop = DeviceHop(torch.empty(778, dtype=torch.int64, device=META), sources, sources)
    launch_draw(sources, targets, (counts, counts), hop, fan_out, counts, 0, replace=replace)


def list_draws() -> dict[str, Launch]:
    """Neighbors with and without replacement; sets of few members, and of as many as are held."""
    found: dict[str, Launch] = {}
    for dtype, bits in ((torch.int32, 32), (torch.int64, 64)):
        for fan_out in (5, 15, 1024):
            name = f"draw {fan_out:,} neighbors, {bits}-bit ids"
            found[name] = partial(_draw, dtype, fan_out, replace=False)
        found[f"draw with replacement, {bits}-bit ids"] = partial(_draw, dtype, 15, replace=True)
    return found


def _convolve(problem: ConvProblem, tile: conv_launch.Tile, image_size: int) -> None:
    shape = (9, problem.in_channels, 1, image_size, image_size)
    image = torch.empty(shape, dtype=problem.dtype, device=META)
    image = image.contiguous(memory_format=torch.channels_last_3d)
    weight = torch.empty(problem.weight_shape, dtype=problem.dtype, device=META)
    out = conv_launch.run_forward(problem, image, weight, tile=tile)
    conv_launch.run_grad_input(problem, out, weight, (1, image_size, image_size), tile=tile)
    conv_launch.run_grad_weight(problem, out, image, tile=tile)


def list_convolutions() -> dict[str, Launch]:
    """Every tile that is chosen for a dtype, with all gradients; TF32 where it is allowed."""
    found: dict[str, Launch] = {}
    for tile, dtype, exact in itertools.product(conv_launch.TILES, DEVICE_DTYPES, (True, False)):
        problem = ConvProblem(
            64,
            128,
            (1, 3, 3),
            padding=((0, 0), (1, 1), (1, 1)),
            dtype=dtype,
            layout="channels_last",
            exact=exact,
        )
        if dtype is not torch.float32 and not exact:
            continue  # the same kernel
        is_large = tile.rows * tile.columns > conv_launch.MOST_EXACT_PRODUCTS
        if is_large and not conv_launch.uses_tensor_cores(problem):
            continue  # never chosen
        name = NAMES[dtype] if exact else "tf32"
        found[f"conv {name}, {tile.rows} x {tile.columns}"] = partial(_convolve, problem, tile, 57)
    return found


def _run_layer(function: CompiledFunction, graph: RelationalGraph, dtype: torch.dtype) -> None:
    topology = Topology.of(graph)
    values = {
        step.name: torch.empty((topology.rows(step.space), *step.shape), dtype=dtype, device="cpu")
        for step in function.program.inputs
    }
    compiled = function.compile(function.program, topology, dtype, tuple(values), "triton")
    run = compiled.start_run(topology, dict(values), 0)
    run.forward()
    saved = {name: run.values[name] for name in compiled.plan.saved}
    outputs = compiled.stages[0][1].outputs
    arrived = {GRADIENT + name: run.value(value) for name, value in outputs}
    compiled.start_run(topology, {**values, **saved, **arrived}, 0).backward()


def list_layers() -> dict[str, Launch]:
    """The ready layers of the paper, forward and backward."""
    draw = torch.Generator().manual_seed(0)
    source, target, relation = torch.randint(331, (3, 5003), generator=draw)
    graph = RelationalGraph.from_edges(source, target, relation=relation % 7, num_nodes=333)
    layers = {
        "RGCN 64": RGCNConv(64, 64, 7),
        "RGAT 64, 4 heads": RGATConv(64, 16, 7, heads=4),
    }
    found: dict[str, Launch] = {}
    for (name, layer), dtype in itertools.product(layers.items(), (torch.float32, torch.bfloat16)):
        found[f"{name}, {NAMES[dtype]}"] = partial(_run_layer, layer.function, graph, dtype)
    return found


def list_launches() -> Mapping[str, Launch]:
    """All of them, by what they are."""
    return {**list_gathers(), **list_draws(), **list_convolutions(), **list_layers()}
