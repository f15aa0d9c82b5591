"""Relational layers of PyG and DGL: arms for the relational benchmarks, in the peers' environment.

An arm runs one layer with the parameters in a file, forward or forward and backward, and returns the
output and the gradient of the input. What does not fit in `MEMORY_BYTES` is refused by the kernel, so
that a peer that asks for too much fails, and not the machine; the failure says what was needed.
"""

from __future__ import annotations

import functools
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MEMORY_BYTES = 14 * 2**30
resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))

Run = Callable[[], Any]


@functools.lru_cache(maxsize=1)
def load(edges: str) -> dict[str, Any]:
    """The graph and the input of all arms."""
    graph: dict[str, Any] = torch.load(edges)
    return graph


def make_pyg(
    layer: str,
    edges: str,
    state: str,
    training: bool,
    threads: int,
    heads: int = 1,
    is_compiled: bool = False,
) -> Run:
    """PyG's `RGCNConv`, `FastRGCNConv` or `RGATConv`, eager or under `torch.compile`."""
    import torch_geometric.nn as pyg

    torch.set_num_threads(threads)
    graph, saved = load(edges), torch.load(state)
    options = {"heads": heads} if layer == "RGATConv" else {}
    width = 64 // heads
    module = getattr(pyg, layer)(64, width, graph["num_relations"], **options)
    module.load_state_dict(saved["parameters"])
    run = torch.compile(module) if is_compiled else module

    def call(x: torch.Tensor) -> torch.Tensor:
        return run(x, graph["edge_index"], graph["edge_type"])

    made = _run(call, module, graph["x"], training)
    if is_compiled:
        made()  # compiles, which is not the first call's time
    return made


def make_pyg_hgt(edges: str, state: str, training: bool, threads: int, heads: int) -> Run:
    """PyG's `HGTConv`, with the node types that the graph has."""
    import torch_geometric.nn as pyg

    torch.set_num_threads(threads)
    graph, saved = load(edges), torch.load(state)
    types, offsets = graph["node_types"], graph["node_offsets"]
    module = pyg.HGTConv(64, 64, (types, graph["relations"]), heads)
    module.load_state_dict(saved["parameters"])
    start = dict(zip(types, offsets))  # noqa: B905 - there is one offset more
    parts = {}
    for number, (source, name, target) in enumerate(graph["relations"]):
        pairs = graph["edge_index"][:, graph["edge_type"] == number]
        parts[source, name, target] = pairs - torch.tensor([[start[source]], [start[target]]])
    sizes = torch.tensor(offsets).diff().tolist()

    def call(x: torch.Tensor) -> torch.Tensor:
        made = module(dict(zip(types, x.split(sizes), strict=True)), parts)
        return torch.cat([made[each] for each in types])

    return _run(call, module, graph["x"], training)


def make_pyg_model(edges: str, state: str, training: bool, threads: int) -> Run:
    """Two of PyG's `RGCNConv` with a ReLU between, to 16 classes, trained by SGD."""
    import torch_geometric.nn as pyg

    torch.set_num_threads(threads)
    graph, saved = load(edges), torch.load(state)
    relations = graph["num_relations"]
    layers = torch.nn.ModuleList([pyg.RGCNConv(64, 64, relations), pyg.RGCNConv(64, 16, relations)])
    layers.load_state_dict(saved["parameters"])

    def call(x: torch.Tensor) -> torch.Tensor:
        hidden = layers[0](x, graph["edge_index"], graph["edge_type"]).relu()
        return layers[1](hidden, graph["edge_index"], graph["edge_type"])

    return _run_model(call, layers, graph["x"], training)


def make_dgl_rgcn(edges: str, state: str, training: bool, threads: int) -> Run:
    """DGL's `RelGraphConv` on edges sorted by relation, with the mean's norm given per edge."""
    torch.set_num_threads(threads)
    graph, saved = load(edges), torch.load(state)
    module = _make_dgl_rgcn(saved["parameters"], graph["num_relations"])
    made, norm = _make_dgl_graph(edges)

    def call(x: torch.Tensor) -> torch.Tensor:
        return module(made, x, graph["edge_type"], norm, presorted=True)

    return _run(call, module, graph["x"], training)


def make_dgl_model(edges: str, state: str, training: bool, threads: int) -> Run:
    """Two of DGL's `RelGraphConv` with a ReLU between, to 16 classes, trained by SGD."""
    torch.set_num_threads(threads)
    graph, saved = load(edges), torch.load(state)
    layers = torch.nn.ModuleList()
    for number in range(2):
        begin = f"{number}."
        own = {
            name.removeprefix(begin): value
            for name, value in saved["parameters"].items()
            if name.startswith(begin)
        }
        layers.append(_make_dgl_rgcn(own, graph["num_relations"]))
    made, norm = _make_dgl_graph(edges)

    def call(x: torch.Tensor) -> torch.Tensor:
        hidden = layers[0](made, x, graph["edge_type"], norm, presorted=True).relu()
        return layers[1](made, hidden, graph["edge_type"], norm, presorted=True)

    return _run_model(call, layers, graph["x"], training)


def make_dgl_hgt(edges: str, state: str, training: bool, threads: int, heads: int) -> Run:
    """DGL's `HGTConv` on edges sorted by relation and nodes sorted by type."""
    import dgl_without_graphbolt  # noqa: F401

    # isort: split
    import dgl

    torch.set_num_threads(threads)
    graph, saved = load(edges), torch.load(state)
    made, _ = _make_dgl_graph(edges)
    offsets = graph["node_offsets"]
    types = len(offsets) - 1
    module = dgl.nn.HGTConv(64, 64 // heads, heads, types, graph["num_relations"], dropout=0.0)
    parameters = saved["parameters"]
    for name in ("k", "q", "v", "a"):
        getattr(module, f"linear_{name}").W.data.copy_(parameters[name])
    for head in range(heads):
        module.relation_att[head].W.data.copy_(parameters["agree"][:, head])
        module.relation_msg[head].W.data.copy_(parameters["tell"][:, head])
        module.relation_pri[head].data.copy_(parameters["prior"][:, head, 0])
    module.skip.data.copy_(parameters["skip"][:, 0])
    kinds = torch.repeat_interleave(torch.arange(types), torch.tensor(offsets).diff())

    def call(x: torch.Tensor) -> torch.Tensor:
        return module(made, x, kinds, graph["edge_type"], presorted=True)

    return _run(call, module, graph["x"], training)


def _make_dgl_rgcn(parameters: dict[str, torch.Tensor], relations: int) -> torch.nn.Module:
    import dgl_without_graphbolt  # noqa: F401

    # isort: split
    import dgl

    _, width, out = parameters["weight"].shape
    module: torch.nn.Module = dgl.nn.RelGraphConv(width, out, relations, self_loop=True)
    module.load_state_dict(
        {
            "linear_r.W": parameters["weight"],
            "loop_weight": parameters["root"],
            "h_bias": parameters["bias"],
        }
    )
    return module


@functools.lru_cache(maxsize=1)
def _make_dgl_graph(edges: str) -> tuple[Any, torch.Tensor]:
    """The graph, and what makes a sum over each target and relation a mean."""
    import dgl_without_graphbolt  # noqa: F401

    # isort: split
    import dgl

    graph = load(edges)
    made = dgl.graph(tuple(graph["edge_index"]), num_nodes=graph["num_nodes"])
    pair = graph["edge_index"][1] * graph["num_relations"] + graph["edge_type"]
    _, place, counts = pair.unique(return_inverse=True, return_counts=True)
    return made, (1.0 / counts[place]).float().unsqueeze(1)


def _run(call: Any, module: torch.nn.Module, x: torch.Tensor, training: bool) -> Run:
    def infer() -> list[torch.Tensor]:
        with torch.no_grad():
            return [call(x)]

    def step() -> list[torch.Tensor]:
        source = x.clone().requires_grad_()
        module.zero_grad()
        out = call(source)
        out.backward(torch.ones_like(out))
        assert source.grad is not None
        return [out.detach(), source.grad]

    return _within_memory(step if training else infer)


def _run_model(call: Any, layers: torch.nn.Module, x: torch.Tensor, training: bool) -> Run:
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    labels = torch.arange(len(x)) % 16

    def infer() -> list[torch.Tensor]:
        with torch.no_grad():
            return [call(x)]

    def step() -> list[torch.Tensor]:
        optimizer.zero_grad()
        out = call(x)
        torch.nn.functional.cross_entropy(out, labels).backward()
        optimizer.step()
        return [out.detach()]

    return _within_memory(step if training else infer)


def _within_memory(run: Run) -> Run:
    """`run`, whose failure by memory says how many bytes the process would have had."""

    def guarded() -> Any:
        try:
            return run()
        except (RuntimeError, MemoryError) as error:
            asked = re.search(r"tried to allocate (\d+) bytes", str(error))
            if asked is None and not isinstance(error, MemoryError):
                raise
            held = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
            needed = int(asked[1]) if asked else 0
            needed += 1024 * int(held[1]) if held else 0
            raise MemoryError(f"needs {needed} bytes") from error

    return guarded


ARMS = {
    "pyg": make_pyg,
    "pyg_hgt": make_pyg_hgt,
    "pyg_model": make_pyg_model,
    "dgl_rgcn": make_dgl_rgcn,
    "dgl_model": make_dgl_model,
    "dgl_hgt": make_dgl_hgt,
}
