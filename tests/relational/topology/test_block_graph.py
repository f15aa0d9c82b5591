"""Sampled blocks: whole neighborhoods give the whole graph's rows, and nothing is compiled twice."""

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import MiniBatchLoader, NeighborSampler, RelationalGraph
from shorthaul.relational import RGATConv, RGCNConv
from shorthaul.relational.topology import block_graph
from shorthaul.relational.topology.block_graph import graph_of_block, graph_of_columns
from tests.pretended_gpu import pretend_gpu
from tests.relational.programs import convolve, widths_of

RELATIONS = 3


def _graph(nodes=60, edges=400):
    generator = torch.Generator().manual_seed(1)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    kinds = torch.randint(RELATIONS, (edges,), generator=generator)
    graph = RelationalGraph.from_edge_index(ends, kinds, num_nodes=nodes, num_relations=RELATIONS)
    return graph, torch.randn(nodes, 5, generator=generator)


def _block(graph, seeds=(3, 7, 11)):
    return NeighborSampler(graph, [-1]).sample(torch.tensor(seeds)).blocks[0]


def test_a_block_is_a_graph_of_its_own():
    graph, _ = _graph()
    block = _block(graph)
    made = graph_of_block(block, RELATIONS)
    assert (made.num_nodes, made.num_edges) == (block.num_sources, block.num_edges)
    assert graph_of_block(block, RELATIONS) is made
    plain = RelationalGraph.from_edge_index(
        block.edge_index(), block.relations, num_nodes=block.num_sources, num_relations=RELATIONS
    )
    assert torch.equal(torch.stack([made.source, made.target]).long(), block.edge_index())
    for name in ("pointers", "sources", "relations", "edges"):
        one, other = getattr(made.by_target(), name), getattr(plain.by_target(), name)
        assert torch.equal(one, other), name


def test_a_block_of_all_neighbors_gives_the_targets_rows():
    graph, x = _graph()
    block = _block(graph)
    module = convolve(relations=RELATIONS, **widths_of(convolve))
    rows = x[block.source_nodes].requires_grad_()
    out = module(block, rows)
    torch.testing.assert_close(out, module(graph, x)[block.target_nodes])
    out.square().sum().backward()
    whole = x.clone().requires_grad_()
    module(graph, whole)[block.target_nodes].square().sum().backward()
    torch.testing.assert_close(rows.grad, whole.grad[block.source_nodes])


@pytest.mark.parametrize("make", [RGCNConv, RGATConv])
def test_ready_layers_take_blocks_and_tables(make, tmp_path):
    graph, x = _graph()
    block = _block(graph)
    module = make(5, 4, RELATIONS)
    expected = module(x, graph)[block.target_nodes]
    torch.testing.assert_close(module(x[block.source_nodes], block), expected)
    torch.testing.assert_close(module(sh.unified(x), block), expected)
    sh.save_features(tmp_path / "x.npy", x)
    torch.testing.assert_close(module(sh.open(tmp_path / "x.npy"), block), expected)


def test_a_block_reads_its_rows_of_a_table_and_no_others():
    graph, x = _graph()
    block = _block(graph)
    module = convolve(relations=RELATIONS, **widths_of(convolve))
    expected = module(block, x[block.source_nodes])
    with sh.meter() as counted:
        out = module(block, sh.unified(x))
    assert torch.equal(out, expected)
    assert counted.moved_bytes <= block.num_sources * 5 * 4


def test_one_compilation_serves_a_hundred_mini_batches():
    graph, x = _graph(nodes=400, edges=3000)
    module = convolve(relations=RELATIONS, **widths_of(convolve))
    loader = MiniBatchLoader(graph, x, batch_size=4, fan_outs=[5], prefetch=0)
    sizes = set()
    with sh.meter() as counted:
        for batch in loader:
            (block,) = batch.blocks
            module(block, batch.features).sum().backward()
            sizes.add((block.num_sources, block.num_edges))
    assert len(loader) == 100
    assert len(sizes) > 10
    assert len(module.function.compilations) == 1
    launched = [name for name in counted.launches if name.startswith("relational_")]
    assert launched == ["relational_convolve"]


def test_two_layers_learn_from_mini_batches():
    torch.manual_seed(0)
    graph, x = _graph(nodes=120, edges=900)
    # A node's label is the sign of what its neighbors by relation 0 have in column 0.
    weight = torch.zeros(RELATIONS, 5, 1)
    weight[0, 0] = 1
    teacher = convolve(relations=RELATIONS, width=5, out=1)
    with torch.no_grad():
        teacher.weight.copy_(weight)
        labels = (teacher(graph, x)[:, 0] > 0).long()
    model = nn.ModuleList([RGCNConv(5, 16, RELATIONS), RGCNConv(16, 2, RELATIONS)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = MiniBatchLoader(
        graph, x, labels, batch_size=30, fan_outs=[-1, -1], shuffle=True, prefetch=0
    )
    losses = []
    for _ in range(8):
        for batch in loader:
            hidden = model[0](batch.features, batch.blocks[0]).relu()
            loss = nn.functional.cross_entropy(model[1](hidden, batch.blocks[1]), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
    found = model[1](model[0](x, graph).relu(), graph).argmax(1)
    assert float((found == labels).float().mean()) > 0.85
    assert all(len(each.function.compilations) <= 2 for each in model)


def test_a_block_of_other_relations_is_refused():
    graph, x = _graph()
    block = _block(graph)
    module = convolve(relations=2, **widths_of(convolve))
    with pytest.raises(
        LayerArgumentError, match="edges of relation 2, but the layer was made for 2"
    ):
        module(block, x[block.source_nodes])


def test_compiled_models_take_blocks():
    torch._dynamo.reset()
    graph, x = _graph()
    module = RGCNConv(5, 4, RELATIONS)
    traced = torch.compile(module, fullgraph=True, backend="aot_eager")
    for seeds in ((3, 7, 11), (1, 2), (5, 6, 8, 9)):
        block = _block(graph, seeds)
        torch.testing.assert_close(
            traced(x[block.source_nodes], block), module(x[block.source_nodes], block)
        )


@pytest.mark.parametrize("make", [RGCNConv, RGATConv])
def test_layers_on_the_cpu_read_tables_there_where_a_gpu_is_too(make, tmp_path):
    graph, x = _graph()
    block = _block(graph)
    layer = make(5, 4, RELATIONS)
    expected = layer(x[block.source_nodes], block)
    sh.save_features(tmp_path / "x.npy", x)
    with pretend_gpu():
        assert torch.equal(layer(sh.unified(x), block), expected)
        assert torch.equal(layer(sh.open(tmp_path / "x.npy"), block), expected)


def test_a_block_on_a_device_becomes_a_graph_there(monkeypatch):
    monkeypatch.setattr(block_graph, "_require_relations", lambda *_: None)  # reads a value
    pointers, sources, relations = (
        torch.zeros(count, dtype=torch.int64, device="meta") for count in (4, 9, 9)
    )
    made = graph_of_columns(pointers, sources, relations, num_nodes=6, num_relations=2)
    index = made.by_target()
    columns = (made.source, made.target, made.relation, index.pointers, index.edges)
    assert {each.device.type for each in columns} == {"meta"}
    assert index.pointers.shape == (7,)
