"""Real PyG and DGL models before and after `accelerate`; run by `test_accelerate_with_peers.py` in `.peers`.

    PYTHONPATH=src:benchmarks .peers/bin/python tests/relational/peer_checks.py .venv/lib/.../site-packages

The argument is where our own dependencies are; what the peers have themselves comes first.
The test takes plain PyTorch for kernels, because compiling them all takes minutes. Prints one line per
check; leaves with an error at the first that fails.
"""

from __future__ import annotations

import itertools
import sys

import dgl_without_graphbolt  # noqa: F401
import torch

# isort: split
import dgl
import torch_geometric.nn as pyg
from dgl.nn import HGTConv, RelGraphConv
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.typing import SparseTensor

sys.path.append(sys.argv[1])

from shorthaul import relational

torch.manual_seed(0)
NODES, EDGES, RELATIONS = 40, 300, 5
SOURCE, TARGET = torch.randint(NODES, (2, EDGES))
KIND = torch.randint(RELATIONS, (EDGES,))
GRAPH = dgl.graph((SOURCE, TARGET), num_nodes=NODES)
BLOCK = dgl.to_block(dgl.in_subgraph(GRAPH, torch.arange(10)), torch.arange(10))


def compare(name, module, *inputs, options=None, expected_swaps=1):
    """Outputs and gradients of parameters are the same before and after, and the module is itself."""
    module = module.double()
    leaves = [each for each in inputs if isinstance(each, torch.Tensor) and each.requires_grad]

    def run():
        out = module(*inputs, **(options or {}))
        out = torch.cat([each.flatten() for each in out.values()]) if isinstance(out, dict) else out
        wanted = [*leaves, *module.parameters()]
        loss = (out * torch.arange(out.numel()).view_as(out).cos()).sum()
        return out.detach(), torch.autograd.grad(loss, wanted, allow_unused=True)

    keys, kind = list(module.state_dict()), type(module)
    identities = [id(each) for each in module.parameters()]
    before, wanted = run()
    report = relational.accelerate(module)
    assert len(report.swapped) == expected_swaps, report
    after, got = run()
    torch.testing.assert_close(after, before)
    for one, other in zip(got, wanted, strict=True):
        if other is None or one is None:
            assert not any(each is not None and each.any() for each in (one, other))
        else:
            torch.testing.assert_close(one, other)
    assert list(module.state_dict()) == keys
    assert [id(each) for each in module.parameters()] == identities
    report.revert()
    assert type(module) is kind
    torch.testing.assert_close(run()[0], before)
    print(f"{name}: same outputs, same gradients")


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def check_dgl_rgcn():
    norm = torch.rand(EDGES, 1, dtype=torch.float64)
    for regularizer, more in itertools.product(
        (None, "basis", "bdd"),
        (
            {},
            {"self_loop": False, "bias": False},
            {"layer_norm": True, "activation": torch.relu, "dropout": 0.5},
        ),
    ):
        bases = None if regularizer is None else 4
        layer = RelGraphConv(16, 8, RELATIONS, regularizer, bases, **more).eval()
        compare(f"DGL RelGraphConv {regularizer} {more}", layer, GRAPH, draw(NODES, 16), KIND)
    layer = RelGraphConv(16, 8, RELATIONS)
    compare("DGL RelGraphConv with norm", layer, GRAPH, draw(NODES, 16), KIND, norm)
    kinds = KIND[BLOCK.edata[dgl.EID]]
    compare("DGL RelGraphConv on a block", layer, BLOCK, draw(BLOCK.num_src_nodes(), 16), kinds)
    ours = relational.RelGraphConv(16, 8, RELATIONS, dropout=0.5).double()
    theirs = RelGraphConv(16, 8, RELATIONS, dropout=0.5).double()
    relational.load_dgl_state_dict(ours, theirs.state_dict())
    x = draw(NODES, 16)
    torch.manual_seed(3)
    expected = theirs(GRAPH, x, KIND)
    torch.manual_seed(3)
    torch.testing.assert_close(ours(GRAPH, x, KIND), expected)
    print("DGL RelGraphConv training: the same dropout from the same seed")
    for regularizer, option in (
        (None, {}),
        ("basis", {"num_bases": 4}),
        ("bdd", {"num_blocks": 4}),
    ):
        bases = None if regularizer is None else 4
        theirs = RelGraphConv(16, 8, RELATIONS, regularizer, bases).double()
        ours = relational.RGCNConv(16, 8, RELATIONS, aggr="add", **option).double()
        relational.load_dgl_state_dict(ours, theirs.state_dict())
        torch.testing.assert_close(ours(x, GRAPH, KIND), theirs(GRAPH, x, KIND))
    print("DGL RelGraphConv's weights in RGCNConv: same outputs")


def check_dgl_hgt():
    for sizes, more in itertools.product(
        ((16, 4, 4), (12, 8, 2)), ({}, {"use_norm": True}, {"num_ntypes": 3})
    ):
        types = more.get("num_ntypes", 1)
        named = {name: value for name, value in more.items() if name != "num_ntypes"}
        layer = HGTConv(*sizes, types, RELATIONS, **named).eval()
        kinds = torch.randint(types, (NODES,))
        for order, chosen in (("mixed", kinds), ("sorted", kinds.sort().values)):
            name = f"DGL HGTConv {sizes} {more} {order}"
            compare(name, layer, GRAPH, draw(NODES, sizes[0]), chosen, KIND)
        edge_kinds = KIND[BLOCK.edata[dgl.EID]]
        inputs = BLOCK, draw(BLOCK.num_src_nodes(), sizes[0]), kinds[BLOCK.srcdata[dgl.NID]]
        compare(f"DGL HGTConv {sizes} {more} on a block", layer, *inputs, edge_kinds)


def check_pyg():
    edge_index = torch.stack([SOURCE, TARGET])
    for kind, options in (
        (pyg.RGCNConv, {}),
        (pyg.FastRGCNConv, {"num_bases": 3}),
        (pyg.RGATConv, {"heads": 2}),
    ):
        layer = kind(16, 8, RELATIONS, **options)
        compare(f"PyG {kind.__name__}", layer, draw(NODES, 16), edge_index, KIND)
    adjacency = SparseTensor(row=TARGET, col=SOURCE, sparse_sizes=(NODES, NODES))
    compare("PyG SAGEConv on a SparseTensor", pyg.SAGEConv(16, 8), draw(NODES, 16), adjacency)


def check_loaders():
    """Mini-batches as PyG's and DGL's own loaders hand them out."""
    edge_index = torch.stack([SOURCE, TARGET])
    data = Data(x=draw(NODES, 16).detach(), edge_index=edge_index, edge_type=KIND)
    layer = pyg.RGCNConv(16, 8, RELATIONS)
    for batch in itertools.islice(NeighborLoader(data, num_neighbors=[4], batch_size=8), 2):
        assert batch.num_nodes < NODES
        inputs = batch.x, batch.edge_index, batch.edge_type
        compare("PyG RGCNConv on a NeighborLoader's batch", layer, *inputs)
    typed = HeteroData()
    typed["a"].x, typed["b"].x = draw(NODES, 16).detach(), draw(NODES, 12).detach()
    typed["a", "to", "b"].edge_index = edge_index
    typed["b", "back", "a"].edge_index = edge_index.flip(0)
    hgt = pyg.HGTConv({"a": 16, "b": 12}, 8, typed.metadata(), heads=2).double()
    loader = NeighborLoader(typed, num_neighbors=[4], batch_size=8, input_nodes="a")
    for batch in itertools.islice(loader, 2):
        assert batch["b"].num_nodes < NODES
        compare("PyG HGTConv on a NeighborLoader's batch", hgt, batch.x_dict, batch.edge_index_dict)
    layer = RelGraphConv(16, 8, RELATIONS)
    sampler = dgl.dataloading.NeighborSampler([4])
    loader = dgl.dataloading.DataLoader(GRAPH, torch.arange(NODES), sampler, batch_size=8)
    for _, _, (block,) in itertools.islice(loader, 2):
        kinds = KIND[block.edata[dgl.EID]]
        compare(
            "DGL RelGraphConv on a DataLoader's block",
            layer,
            block,
            draw(block.num_src_nodes(), 16),
            kinds,
        )


class Hops(torch.nn.Module):
    """Two layers, as a user has them."""

    def __init__(self):
        super().__init__()
        self.first = RelGraphConv(16, 8, RELATIONS, "basis", 3, activation=torch.relu)
        self.second = RelGraphConv(8, 4, RELATIONS)

    def forward(self, graph, x, kinds):
        return self.second(graph, self.first(graph, x, kinds), kinds)


if __name__ == "__main__":
    check_dgl_rgcn()
    check_dgl_hgt()
    check_pyg()
    check_loaders()
    compare("a DGL model", Hops(), GRAPH, draw(NODES, 16), KIND, expected_swaps=2)
    print("all agree")
