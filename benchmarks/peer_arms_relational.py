"""Relational layers of PyG and DGL: arms for `bench_relational.py`, in the peers' environment.

An arm runs one layer with the parameters in a file, forward or forward and backward, and returns the
output and the gradient of the input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def make_pyg(layer: str, edges: str, state: str, training: bool, threads: int) -> Callable[[], Any]:
    """PyG's `RGCNConv`, `FastRGCNConv`, `RGATConv` or `HGTConv`, eager."""
    import torch_geometric.nn as pyg

    torch.set_num_threads(threads)
    graph, saved = torch.load(edges), torch.load(state)
    relations = graph["num_relations"]
    if layer == "HGTConv":
        types = [("node", str(number), "node") for number in range(relations)]
        module = pyg.HGTConv(64, 64, (["node"], types), saved["heads"])
        parts = {
            types[number]: graph["edge_index"][:, graph["edge_type"] == number]
            for number in range(relations)
        }
    else:
        options = {"heads": saved["heads"]} if layer == "RGATConv" else {}
        module = getattr(pyg, layer)(64, saved["out"], relations, **options)
    module.load_state_dict(saved["parameters"])

    def call(x: torch.Tensor) -> torch.Tensor:
        if layer == "HGTConv":
            return module({"node": x}, parts)["node"]
        return module(x, graph["edge_index"], graph["edge_type"])

    return _run(call, module, saved["x"], training)


def make_dgl_rgcn(edges: str, state: str, training: bool, threads: int) -> Callable[[], Any]:
    """DGL's `RelGraphConv` on edges sorted by relation, with the mean's norm given per edge."""
    import dgl_without_graphbolt  # noqa: F401

    # isort: split
    import dgl

    torch.set_num_threads(threads)
    graph, saved = torch.load(edges), torch.load(state)
    made = dgl.graph(tuple(graph["edge_index"]), num_nodes=graph["num_nodes"])
    parameters = saved["parameters"]
    relations = graph["num_relations"]
    module = dgl.nn.RelGraphConv(64, 64, relations, self_loop=True)
    module.load_state_dict(
        {
            "linear_r.W": parameters["weight"],
            "loop_weight": parameters["root"],
            "h_bias": parameters["bias"],
        }
    )
    pair = graph["edge_index"][1] * relations + graph["edge_type"]
    _, place, counts = pair.unique(return_inverse=True, return_counts=True)
    norm = (1.0 / counts[place]).float().unsqueeze(1)

    def call(x: torch.Tensor) -> torch.Tensor:
        return module(made, x, graph["edge_type"], norm, presorted=True)

    return _run(call, module, saved["x"], training)


def make_dgl_hgt(edges: str, state: str, training: bool, threads: int) -> Callable[[], Any]:
    """DGL's `HGTConv` on edges sorted by relation."""
    import dgl_without_graphbolt  # noqa: F401

    # isort: split
    import dgl

    torch.set_num_threads(threads)
    graph, saved = torch.load(edges), torch.load(state)
    made = dgl.graph(tuple(graph["edge_index"]), num_nodes=graph["num_nodes"])
    heads = saved["heads"]
    module = dgl.nn.HGTConv(64, 64 // heads, heads, 1, graph["num_relations"], dropout=0.0)
    parameters = saved["parameters"]
    for name in ("k", "q", "v", "a"):
        getattr(module, f"linear_{name}").W.data.copy_(parameters[name])
    for head in range(heads):
        module.relation_att[head].W.data.copy_(parameters["agree"][:, head])
        module.relation_msg[head].W.data.copy_(parameters["tell"][:, head])
        module.relation_pri[head].data.copy_(parameters["prior"][:, head, 0])
    module.skip.data.copy_(parameters["skip"][:, 0])
    kinds = torch.zeros(graph["num_nodes"], dtype=torch.int64)

    def call(x: torch.Tensor) -> torch.Tensor:
        return module(made, x, kinds, graph["edge_type"], presorted=True)

    return _run(call, module, saved["x"], training)


def _run(call: Any, module: torch.nn.Module, x: torch.Tensor, training: bool) -> Callable[[], Any]:
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

    return step if training else infer


ARMS = {"pyg": make_pyg, "dgl_rgcn": make_dgl_rgcn, "dgl_hgt": make_dgl_hgt}
