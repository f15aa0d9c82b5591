"""What users do on a GPU: mapped tables, two streams, mini-batches, an offloaded step, each device."""

from __future__ import annotations

import tempfile

import torch

from shorthaul.cli.findings import Finding
from shorthaul.cli.probes.gpu.devices import find_device, is_interpreted
from shorthaul.cli.probes.gpu.kernels import Trial
from shorthaul.errors import KernelMismatchError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.graphs import MiniBatchLoader, RelationalGraph
from shorthaul.offload.api import offload_activations
from shorthaul.tensors.constructors import unified
from shorthaul.tensors.cuda.gather import WHAT
from shorthaul.units import format_bytes

ROUNDS = 50
MEASURED_BYTES = 2**28
NOT_INTERPRETED = "needs a GPU: the interpreter maps nothing and has no streams"


def _rows(rows: int = 2000, width: int = 100) -> torch.Tensor:
    return torch.arange(rows * width, dtype=torch.float32, device="cpu").view(rows, width)


def try_mapping() -> Finding:
    """A table and its slices, read by the device where they lie."""
    device, trial = find_device(), Trial("mapped memory")
    if device.type == "cpu":
        return Finding(trial.name, "missing", NOT_INTERPRETED)
    plain = _rows()
    table = unified(plain)
    ids = torch.tensor([7, -1, 0, 1999], dtype=torch.int64, device="cpu")
    for first in (0, 3, 64):
        part = table[first:]
        got = part.gather(ids.clamp(max=1000), device=device)
        trial.require_equal(f"rows from {first} on", got, plain[first:][ids.clamp(max=1000)])
    on_device = ids[:3].to(device)
    trial.require_equal("ids on the device", table[on_device], plain[ids[:3]])
    trial.require_equal("an operator", (table * 2), plain * 2)
    reasons = [each.reason for each in taken_fallbacks() if each.what == WHAT]
    if reasons:
        return Finding(trial.name, "warning", f"right, but not mapped: {'; '.join(reasons)}")
    return trial.finding()


def try_streams() -> Finding:
    """Gathers on two streams while the host writes other rows between them, many times over."""
    device, trial = find_device(), Trial("two streams")
    if device.type == "cpu":
        return Finding(trial.name, "missing", NOT_INTERPRETED)
    plain = _rows()
    table = unified(plain.clone())
    streams = [torch.cuda.Stream(device) for _ in range(2)]  # type: ignore[no-untyped-call]
    draw = torch.Generator().manual_seed(0)
    for number in range(2 if is_interpreted() else ROUNDS):
        ids = torch.randint(2000, (512,), generator=draw, dtype=torch.int64, device="cpu")
        found = []
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(table.gather(ids, device=device))
        expected = table.plain()[ids].clone()
        table.scatter_(
            ids[:64], torch.full((64, 100), float(number), dtype=torch.float32, device="cpu")
        )  # waits for both
        for got in found:
            trial.require_equal(f"round {number}", got, expected)
    return trial.finding()


def try_loader() -> Finding:
    """Mini-batches on the device are those of the CPU."""
    device, trial = find_device(), Trial("mini-batches")
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randint(200, (2, 900), generator=draw, dtype=torch.int64, device="cpu")
    graph = RelationalGraph.from_edges(source, target, num_nodes=200)
    features = unified(_rows(200))
    loaders = [
        MiniBatchLoader(graph, features, batch_size=64, fan_outs=[3, 3], device=each)
        for each in ("cpu", device)
    ]
    for expected, got in zip(*loaders, strict=True):
        assert isinstance(got.features, torch.Tensor)
        assert isinstance(expected.features, torch.Tensor)
        trial.require_equal(f"batch {got.number}", got.features, expected.features)
        for one, other in zip(got.blocks, expected.blocks, strict=True):
            trial.require_equal(f"blocks of batch {got.number}", one.sources, other.sources)
    return trial.finding()


def try_offloading() -> Finding:
    """Gradients with activations on disk are those without, bit by bit."""
    device, trial = find_device(), Trial("offloaded step")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).to(device)
    x = torch.ones(256, 64, dtype=torch.float32, device=device)
    model(x).square().sum().backward()
    expected = [each.grad.cpu() for each in model.parameters() if each.grad is not None]
    with tempfile.TemporaryDirectory() as directory:
        offload = offload_activations(directory, minimum_bytes=1024, policy="all")
        for number in range(3):
            model.zero_grad()
            with offload:
                model(x).square().sum().backward()
            for parameter, wanted in zip(model.parameters(), expected, strict=True):
                assert parameter.grad is not None
                trial.require_equal(f"step {number}", parameter.grad, wanted)
        if offload.report().counts.offloaded == 0:
            raise KernelMismatchError(trial.name, "counts", "activations on disk", "none")
        offload.close()
    return trial.finding()


def try_every_device() -> Finding:
    """Each further device reads the same table."""
    trial = Trial("every device")
    if find_device().type == "cpu" or torch.cuda.device_count() < 2:
        return Finding(trial.name, "missing", "there are not two GPUs")
    plain = _rows()
    table = unified(plain)
    ids = torch.tensor([3, 1999, 0], dtype=torch.int64, device="cpu")
    for number in range(torch.cuda.device_count()):
        got = table.gather(ids, device=f"cuda:{number}")
        trial.require_equal(f"cuda:{number}", got, plain[ids])
    return trial.finding()


def measure_gathers() -> Finding:
    """Bytes per second of random rows of 512 bytes, between two events on the device."""
    device = find_device()
    if is_interpreted():
        return Finding("rows from host memory", "missing", NOT_INTERPRETED)
    rows = MEASURED_BYTES // 512
    table = unified(torch.zeros(rows, 128, dtype=torch.float32, device="cpu"))
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(rows, (rows // 8,), generator=draw, dtype=torch.int64, device="cpu")
    table.gather(ids, device=device)  # maps and compiles
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    moved = table.gather(ids, device=device)
    end.record()
    end.synchronize()
    seconds = begin.elapsed_time(end) / 1000
    facts = {"bytes_per_second": moved.nbytes / seconds, "moved_bytes": moved.nbytes}
    told = f"{format_bytes(int(moved.nbytes / seconds))}/s, random rows of 512 bytes"
    return Finding("rows from host memory", "ok", told, facts=facts)
