"""What users do on a GPU, from their call to the launch: on pretended devices, with the CPU's numbers as oracle.

Run as a program, it prints one line of JSON for each route: its name, and what went wrong.
"""

# ruff: noqa: E402
from tests.pretended_cuda.start import start

start()

import copy
import functools
import gc
import json
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import shorthaul as sh
from shorthaul.errors import (
    CapturedDropoutError,
    DeviceRoomError,
    GradientPlaceError,
    LateRowIndexError,
    PlacementError,
    UnifiedSourceError,
)
from shorthaul.graphs import MiniBatchLoader, NeighborSampler, RelationalGraph
from shorthaul.graphs.sampling.block_sums import reduce_block
from shorthaul.settings import settings
from shorthaul.tensors.cuda.gather import (
    copy_ahead,
    gather_for_device,
    gather_reduce_for_device,
    require_ids_in_range,
)
from tests.gpu.suites import Body, load_bodies
from tests.pretended_cuda.torch_cuda import capturing, events, launches

OTHER = torch.device("cuda", 1)  # the current device is 0
HOST = torch.device("cpu")
LARGEST_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)
ROUTES: list[Callable[[], None]] = []


def route(function: Callable[[], None]) -> Callable[[], None]:
    ROUTES.append(function)
    return function


def _graph() -> RelationalGraph:
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randint(40, (2, 200), generator=draw)
    return RelationalGraph.from_edges(
        source, target, relation=torch.randint(3, (200,), generator=draw), num_nodes=40
    )


def _require_launched_on(
    device: int, stream: torch.cuda.Stream | None = None, *, elsewhere: str = ""
) -> None:
    """On the caller's stream of the device, but for the kernel that has a stream of its own."""
    stream = stream or torch.cuda.current_stream(device)
    assert launches, "no kernel was launched"
    assert {each.device for each in launches} == {device}
    streams = {each.stream for each in launches if each.kernel != elsewhere}
    assert streams == {stream.number}, streams
    for each in launches:
        assert all(size <= most for size, most in zip(each.grid, LARGEST_GRID, strict=False))


@route
def a_layer_runs_where_its_tensors_are() -> None:
    graph, layer, x = _graph(), sh.relational.RGCNConv(8, 4, 3), torch.randn(40, 8)
    expected = layer(x, graph)
    expected.square().sum().backward()
    gradients = [each.grad.clone() for each in layer.parameters()]
    layer.zero_grad()
    got = layer.to(OTHER)(x.to(OTHER), graph)
    got.square().sum().backward()
    torch.testing.assert_close(got.cpu(), expected)
    for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient)
    _require_launched_on(1)


@route
def batches_come_to_the_current_device_and_layers_take_them() -> None:
    graph, x, layer = _graph(), torch.randn(40, 8), sh.relational.RGCNConv(8, 4, 3)

    def batches(device: str | None) -> MiniBatchLoader:
        return MiniBatchLoader(
            graph, sh.unified(x), batch_size=7, fan_outs=[3], device=device, prefetch=2
        )

    expected = [layer(each.features.cpu(), each.blocks[0]) for each in batches("cpu")]
    layer = layer.to(OTHER)
    torch.cuda.set_device(1)  # as every rank of DDP does; the loader's threads begin with 0
    for batch, wanted in zip(batches("cuda"), expected, strict=True):
        assert batch.features.device == batch.blocks[0].sources.device == OTHER
        got = layer(batch.features, batch.blocks[0])
        torch.testing.assert_close(got.cpu(), wanted)
        got.sum().backward()
    _require_launched_on(1, elsewhere="gather_kernel")


@route
def a_step_waits_for_its_batch_on_the_stream_that_it_uses() -> None:
    graph, x = _graph(), torch.randn(40, 8)
    stream, read = torch.cuda.Stream(1), []
    record_stream = torch.Tensor.record_stream

    def recorded(self: torch.Tensor, by: torch.cuda.Stream) -> None:
        read.append((self.data_ptr(), by.number))
        record_stream(self, by)

    torch.Tensor.record_stream = recorded  # type: ignore[method-assign]
    try:
        with torch.cuda.stream(stream):
            loader = MiniBatchLoader(
                graph, sh.unified(x), batch_size=7, fan_outs=[3], device=OTHER, prefetch=2
            )
            batches = [*loader]
        links = [*sh.graphs.LinkLoader(graph, batch_size=99, fan_outs=[2], device=OTHER)]
    finally:
        torch.Tensor.record_stream = record_stream  # type: ignore[method-assign]
    lanes = {each.stream for each in launches if each.kernel == "gather_kernel"}
    assert len(lanes) == 1, lanes
    (lane,) = lanes
    default = torch.cuda.current_stream(OTHER).number
    assert lane not in (stream.number, default)
    assert ("wait_stream", lane, stream.number) in events, "what was copied before is there"
    for number, batch in enumerate(batches):
        marks = [at for kind, by, at in _marks() if (kind, by) == ("record", lane)]
        assert ("wait", stream.number, marks[number]) in events
        for tensor in (batch.features, batch.seeds, batch.blocks[0].sources):
            assert (tensor.data_ptr(), stream.number) in read
    for batch in links:
        assert (batch.labels.data_ptr(), default) in read
        assert (batch.sources.data_ptr(), default) in read


def _marks() -> list[tuple[str, int, int]]:
    return [each for each in events if each[0] in ("record", "wait")]


@route
def what_shares_a_page_with_a_mapped_table_is_copied_before_it_can_be_freed() -> None:
    page = torch.empty(2 * 4096, dtype=torch.uint8)
    lead = -page.data_ptr() % 4096
    table = page[lead : lead + 2048].view(torch.float32).view(64, 8)
    beside = page[lead + 2048 : lead + 4096].view(torch.int64)
    apart = sh.unified_empty(256, dtype=torch.int64).cpu()
    asked: dict[int, bool] = {}
    to = torch.Tensor.to

    def watched(self: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        asked[self.data_ptr()] = bool(options.get("non_blocking"))
        return to(self, *args, **options)

    torch.Tensor.to = watched  # type: ignore[assignment,method-assign]
    try:
        copy_ahead(beside, OTHER)
        assert asked[beside.data_ptr()], "nothing is mapped there yet"
        sh.unified(table).gather(torch.tensor([1]), device=OTHER)
        for tensor in (beside, apart):
            copy_ahead(tensor, OTHER)
    finally:
        torch.Tensor.to = to  # type: ignore[method-assign]
    assert not asked[beside.data_ptr()]
    assert asked[apart.data_ptr()]


class _Waits(TorchDispatchMode):
    """What would make the host wait for a device: numbers that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_device = any(isinstance(each, torch.Tensor) and each.is_cuda for each in args)
        is_copy = function is torch.ops.aten._to_copy.default and kwargs.get("device") == HOST
        if is_device and (is_copy or function is torch.ops.aten._local_scalar_dense.default):
            self.found.append(str(function))
        return function(*args, **kwargs)


@route
def gathers_with_ids_on_the_device_wait_for_nothing() -> None:
    table, ids = sh.unified(torch.randn(50, 8)).table, torch.tensor([3, 1, 3], device=OTHER)
    pointers = torch.tensor([0, 2, 3], device=OTHER)
    for _ in range(3):  # the first maps the table
        events.clear()
        with _Waits() as waits:
            gather_for_device(table, ids, OTHER)
            gather_reduce_for_device(table, pointers, ids, OTHER)
    assert waits.found == []
    assert not [each for each in events if str(each[0]).startswith("synchronize")], events
    with settings.override(device_checks="at_once"), _Waits() as waits:
        gather_for_device(table, ids, OTHER)
        gather_reduce_for_device(table, pointers, ids, OTHER)
    assert waits.found, "asked to look at once, the host waits"


@route
def gathers_can_be_captured_in_a_graph() -> None:
    table, ids = sh.unified(torch.randn(50, 8)).table, torch.tensor([3, 50], device=OTHER)
    gather_for_device(table, ids[:1], OTHER)  # maps it, as a step before the capture does
    gather_for_device(table, ids[:1], OTHER)
    events.clear()
    with capturing(), _Waits() as waits:
        for _ in range(2):
            gather_for_device(table, ids, OTHER)
            gather_reduce_for_device(table, torch.tensor([0, 2], device=OTHER), ids, OTHER)
    assert waits.found == []
    assert events == []
    try:
        require_ids_in_range()
    except LateRowIndexError:
        return
    raise AssertionError("a replayed gather's wrong id was not found")


@route
def a_block_is_indexed_where_it_lies() -> None:
    graph, layer = _graph(), sh.relational.RGATConv(8, 4, 3, heads=2)
    (block,) = NeighborSampler(graph, [-1]).sample(torch.arange(9)).blocks
    x = torch.randn(block.num_sources, 8)
    expected = layer(x, block)
    got = layer.to(OTHER)(x.to(OTHER).requires_grad_(), block.to(OTHER))
    torch.testing.assert_close(got.cpu(), expected)
    got.sum().backward()
    _require_launched_on(1)


@route
def modes_and_compiled_models_find_kernels() -> None:
    graph, layer = _graph(), sh.relational.RGCNConv(8, 4, 3).to(OTHER)
    x = torch.randn(40, 8).to(OTHER)
    expected = layer(x, graph)
    with FlopCounterMode(display=False):
        got = layer(x, graph)
        got.sum().backward()
    torch.testing.assert_close(got, expected)
    compiled = torch.compile(layer, backend="aot_eager")(x, graph)
    compiled.sum().backward()
    torch.testing.assert_close(compiled, expected)


@route
def sums_over_blocks_have_a_kernel_with_a_gradient() -> None:
    (block,) = NeighborSampler(_graph(), [-1]).sample(torch.arange(5)).blocks
    x = torch.randn(block.num_sources, 6, requires_grad=True)
    on_device = x.detach().to(OTHER).requires_grad_()
    moved = block.to(OTHER)
    for is_mean in (False, True):
        expected = reduce_block(x, block.pointers, block.sources, is_mean)
        got = reduce_block(on_device, moved.pointers, moved.sources, is_mean)
        torch.testing.assert_close(got.cpu(), expected)
        expected.square().sum().backward()
        got.square().sum().backward()
    torch.testing.assert_close(on_device.grad.cpu(), x.grad)


@route
def layers_of_one_relation_take_graphs_edges_and_blocks() -> None:
    """With loops, edge features and attention handed out: all of them are where the features are."""
    draw, relational = torch.Generator().manual_seed(0), sh.relational
    edges = torch.randint(8, (2, 16), generator=draw)
    graph = RelationalGraph.from_edge_index(edges, num_nodes=8)
    (block,) = NeighborSampler(graph, [-1]).sample(torch.arange(3)).blocks
    x, features = torch.randn(8, 4), torch.randn(16, 2)
    for kind in (relational.GATConv, relational.GATv2Conv, relational.TransformerConv):
        layer = kind(4, 2, heads=2, edge_dim=2)
        near, far = layer, copy.deepcopy(layer).to(OTHER)
        for form in (graph, block):
            inputs = x[block.source_nodes.long()] if form is block else x
            of_edges = features[: block.num_edges] if form is block else features
            options = {"return_attention_weights": True}
            expected = near(inputs, form, edge_attr=of_edges, **options)
            moved = form if form is graph else form.to(OTHER)
            got = far(inputs.to(OTHER), moved, edge_attr=of_edges.to(OTHER), **options)
            for one, other in zip((got[0], *got[1]), (expected[0], *expected[1]), strict=True):
                assert one.device == OTHER
                torch.testing.assert_close(one.cpu(), other)
        got[0].sum().backward()
    _require_launched_on(1)


@route
def dropout_is_not_captured_in_a_graph() -> None:
    edges = torch.randint(8, (2, 16), generator=torch.Generator().manual_seed(0))
    graph = RelationalGraph.from_edge_index(edges, num_nodes=8)
    layer, x = sh.relational.GATConv(4, 2, heads=2, dropout=0.5).to(OTHER), torch.randn(8, 4)
    first = layer(x.to(OTHER), graph)
    assert not torch.equal(first, layer(x.to(OTHER), graph)), "each call draws anew"
    expected = layer.eval()(x.to(OTHER), graph)
    with capturing():
        assert torch.equal(layer(x.to(OTHER), graph), expected)
        try:
            layer.train()(x.to(OTHER), graph)
        except CapturedDropoutError:
            return
    raise AssertionError("a replayed graph would drop the same elements each time")


@route
def nodes_given_by_number_are_found_on_the_device() -> None:
    graph, layer = _graph(), sh.relational.RGCNConv(40, 4, 3)
    (block,) = NeighborSampler(graph, [-1]).sample(torch.arange(9)).blocks
    far = copy.deepcopy(layer).to(OTHER)
    for numbers, form, moved in (
        (torch.arange(40), graph, graph),
        (block.source_nodes, block, block.to(OTHER)),
    ):
        torch.testing.assert_close(far(numbers.to(OTHER), moved).cpu(), layer(numbers, form))


@route
def compiled_layers_take_blocks_and_typed_edges() -> None:
    layer = sh.relational.RGCNConv(8, 4, 3)
    (block,) = NeighborSampler(_graph(), [-1]).sample(torch.arange(9)).blocks
    x = torch.randn(block.num_sources, 8)
    expected = layer(x, block)
    compiled = torch.compile(copy.deepcopy(layer).to(OTHER), backend="aot_eager")
    torch.testing.assert_close(compiled(x.to(OTHER), block.to(OTHER)).cpu(), expected)
    edges = {("a", "w", "b"): torch.tensor([[0, 1, 2], [1, 1, 0]])}
    nodes = {"a": torch.randn(3, 8), "b": torch.randn(2, 8)}
    typed = sh.relational.HGTConv(8, 4, (["a", "b"], [*edges]), heads=2)
    wanted = typed(nodes, edges)["b"]
    compiled = torch.compile(copy.deepcopy(typed).to(OTHER), backend="aot_eager")
    got = compiled(
        {name: each.to(OTHER) for name, each in nodes.items()},
        {name: each.to(OTHER) for name, each in edges.items()},
    )["b"]
    torch.testing.assert_close(got.cpu(), wanted)


@route
def convolutions_run_where_their_tensors_are() -> None:
    x, weight = torch.randn(2, 4, 8, 8), torch.randn(6, 2, 3, 3)
    given = [each.clone().requires_grad_() for each in (x, weight)]
    expected = F.conv2d(*given, padding=1, groups=2)
    expected.square().sum().backward()
    with settings.override(kernels="generated"):
        moved = [each.to(OTHER).requires_grad_() for each in (x, weight)]
        got = sh.conv2d(*moved, padding=1, groups=2)
        got.square().sum().backward()
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
    for one, other in zip(moved, given, strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-3)
    _require_launched_on(1)


@route
def convolutions_are_computed_as_they_were_measured() -> None:
    from shorthaul.conv.triton import measured, tuning

    x, weight = torch.randn(2, 4, 6, 6), torch.randn(6, 4, 3, 3)
    given = [each.clone().requires_grad_() for each in (x, weight)]
    expected = F.conv2d(*given, padding=1)
    expected.square().sum().backward()
    timed: list[str] = []
    seconds_of = {"ours": 0.5, "PyTorch's": 1.0}

    def clock(device: torch.device, run: Callable[[], object]) -> float:
        before = len(launches)
        assert torch.cuda.current_device() == device.index == 1
        run()
        timed.append("ours" if len(launches) > before else "PyTorch's")
        return seconds_of[timed[-1]]

    def step(**options: object) -> int:
        """A training step; how many kernels of ours it launched."""
        moved = [each.to(OTHER).requires_grad_() for each in (x, weight)]
        out = sh.conv2d(*moved, padding=1, **options)
        launches.clear()
        sh.conv2d(*moved, padding=1).square().sum().backward()
        torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-4)
        for one, other in zip(moved, given, strict=True):
            torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-3)
        return len(launches)

    measure_time, tuning.time_on_device = tuning.time_on_device, clock
    try:
        for seconds, are_ours in ((0.5, True), (0.99, False)):  # the second is not clearly faster
            seconds_of["ours"] = seconds
            with tempfile.TemporaryDirectory() as cache, settings.override(cache_directory=cache):
                timed.clear()
                assert step() == 0, "PyTorch computes what was not measured"
                assert timed == []
                assert (step(tune=True) > 0) == are_ours
                assert {*timed} == {"ours", "PyTorch's"}
                count = len(timed)
                measured.forget_measured()  # as a new process
                assert (step(tune=True) > 0) == are_ours
                assert len(timed) == count, "what is remembered is not measured again"
                torch.set_float32_matmul_precision("high")
                assert step() == 0, "other products were not measured"
                torch.set_float32_matmul_precision("highest")
                names = [path.read_text() for path in Path(cache, "tuning").glob("*.json")]
                assert len(names) == 3
                assert all("on pretended sm_80 edition" in each for each in names)
    finally:
        tuning.time_on_device = measure_time
    events.clear()
    seconds = tuning.time_on_device(OTHER, lambda: None)
    assert seconds == 0.001, "by the clock of pretended devices"
    assert [each[0] for each in events] == [
        "synchronize device",
        "record",
        "record",
        "synchronize event",
    ]


@route
def launches_follow_the_callers_stream_with_his_tensors() -> None:
    graph, layer = _graph(), sh.relational.RGCNConv(8, 4, 3).to(OTHER)
    u, x = sh.unified(torch.randn(40, 8)), torch.randn(40, 8).to(OTHER)
    ids, pointers = torch.tensor([3, 1, 39], device=OTHER), torch.tensor([0, 1, 3], device=OTHER)
    image, weight = torch.randn(2, 4, 6, 6).to(OTHER), torch.randn(6, 4, 3, 3).to(OTHER)
    stream = torch.cuda.Stream(1)
    with torch.cuda.stream(stream), settings.override(kernels="generated"):
        rows = u[ids]
        sums = u.gather_reduce(pointers, ids)
        layer(x, graph)
        sh.conv2d(image, weight)
    _require_launched_on(1, stream)
    of_kernel = {each.kernel: each.arguments for each in launches}
    gather, reduce = of_kernel["gather_kernel"], of_kernel["reduce_kernel"]
    for told in (gather, reduce):
        assert told["table"] == u.data_ptr(), "rows are read where they lie"
        assert (told["COUNT"], told["ROWS"], told["ids"]) == (3, 40, ids.data_ptr())
    assert gather["output"] == rows.data_ptr()
    assert (reduce["output"], reduce["pointers"]) == (sums.data_ptr(), pointers.data_ptr())
    product = next(each.arguments for each in launches if each.kernel == "product_kernel")
    assert (product["DEPTH"], product["WIDTH"], product["PRECISION"]) == (8, 4, "ieee")
    convolution = of_kernel["forward_kernel"]
    assert (convolution["CHANNELS"], convolution["OUTPUTS"]) == (4, 6)
    assert (convolution["KH"], convolution["KW"], convolution["HAS_BIAS"]) == (3, 3, False)


@route
def a_replaced_model_runs_where_it_is() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),  # depthwise
        nn.Conv2d(8, 4, 1),
    )
    x = torch.randn(2, 4, 8, 8)
    expected = model(x)
    expected.square().sum().backward()
    replaced = copy.deepcopy(model)
    replaced.zero_grad()
    sh.replace_convs(replaced, policy="always")
    replaced = replaced.to(OTHER)
    with settings.override(kernels="generated"):
        got = replaced(x.to(OTHER))
        got.square().sum().backward()
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
    for one, other in zip(replaced.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-3)
    _require_launched_on(1)
    forward = [each.arguments for each in launches if each.kernel == "forward_kernel"]
    assert [(each["CHANNELS"], each["OUTPUTS"]) for each in forward] == [(4, 8), (1, 1), (8, 4)]


@route
def an_offloaded_step_is_bit_equal_however_it_is_packed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU()).to(OTHER)
    x = torch.randn(256, 64).to(OTHER)
    model(x).sum().backward()
    expected = [each.grad.clone() for each in model.parameters()]
    for compress in (None, "auto", "lz4"):
        with tempfile.TemporaryDirectory() as directory:
            offload = sh.offload_activations(
                directory, minimum_bytes=1024, policy="all", compress=compress
            )
            for _ in range(4):
                model.zero_grad()
                with offload:
                    model(x).sum().backward()
                for parameter, wanted in zip(model.parameters(), expected, strict=True):
                    assert torch.equal(parameter.grad, wanted)
            assert offload.report().counts.offloaded > 0
            offload.close()


@route
def operators_read_tables_where_they_lie() -> None:
    plain, ids, offsets = torch.randn(100, 8), [3, 99, 0], [0, 2]
    rows, starts = torch.tensor(ids, device=OTHER), torch.tensor(offsets, device=OTHER)
    u = sh.unified(plain)
    with sh.meter() as moved:
        found = {
            "embedding": (F.embedding(rows, u), plain[ids]),
            "index_select": (u.index_select(0, rows), plain[ids]),
            "part of rows": (u[rows, :4], plain[ids, :4]),
            "embedding_bag": (
                F.embedding_bag(rows, u, starts),
                F.embedding_bag(torch.tensor(ids), plain, torch.tensor(offsets)),
            ),
        }
    for name, (got, expected) in found.items():
        assert got.device == OTHER, name
        torch.testing.assert_close(got.cpu(), expected, msg=name)
    read_bytes = sum(each.bytes for (_, to, _), each in moved.moved.items() if to == "cuda")
    assert 0 < read_bytes < plain.nbytes, "rows were read, not the table"
    whole = u * 2
    assert whole.device.type == "cuda"
    torch.testing.assert_close(whole.cpu(), plain * 2)
    try:
        u + torch.ones(100, 8) + torch.ones(100, 8, device=OTHER)
    except (PlacementError, RuntimeError):
        return
    raise AssertionError("operands of two places were added")


@route
def optimizers_keep_their_state_beside_the_gradients() -> None:
    plain, ids = torch.randn(50, 8), torch.tensor([3, 1, 3], device=OTHER)
    kinds = torch.optim
    for make, is_sparse in (
        (kinds.Adam, False),
        (kinds.AdamW, False),
        (kinds.Adagrad, False),
        (kinds.RMSprop, False),
        (kinds.SparseAdam, True),
    ):
        table = sh.unified(plain.clone(), sparse_grad=is_sparse).requires_grad_()
        beside = plain.clone().requires_grad_()
        optimizers = make([table]), make([beside])
        for _ in range(2):
            for optimizer in optimizers:
                optimizer.zero_grad()
            table[ids].square().sum().backward()
            F.embedding(ids.cpu(), beside, sparse=is_sparse).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        torch.testing.assert_close(table.detach().cpu(), beside.detach(), msg=make.__name__)


@route
def a_moved_module_leaves_its_unified_table_in_host_memory() -> None:
    plain = torch.randn(50, 8)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(sh.unified(plain.clone()))
            self.head = nn.Linear(8, 2)

    for move in (
        lambda each: each.to(OTHER),
        lambda each: each.cuda(1),
        lambda each: each.to(OTHER, torch.float64),
        lambda each: each.to(OTHER).double(),
    ):
        model = Model()
        address = model.table.data_ptr()
        move(model)
        dtype = model.head.weight.dtype
        assert isinstance(model.table, sh.UnifiedTensor)
        assert model.table.dtype is dtype
        assert dtype is torch.float64 or model.table.data_ptr() == address
        assert model.table.detach().to(OTHER).device == OTHER, "asked for by name, it is copied"
        rows = model.table[torch.tensor([3, 4], device=OTHER)]
        torch.testing.assert_close(rows.detach().cpu(), plain[3:5].to(dtype))
        model.head(rows).sum().backward()
        assert model.table.grad.device.type == "cpu"
    try:
        Model().to_empty(device=OTHER)
    except UnifiedSourceError:
        return
    raise AssertionError("a table took the place of memory on a device")


@route
def gradients_that_cannot_come_back_are_refused_at_once() -> None:
    ids = torch.tensor([3, 1], device=OTHER)
    table = sh.unified(torch.randn(50, 8)).requires_grad_()
    for work in (
        lambda: table * 2,
        lambda: table @ torch.ones(8, 2, device=OTHER),
        lambda: F.embedding(ids, table),
        lambda: table[ids, :4],
        lambda: table.clone(),
    ):
        try:
            work()
        except GradientPlaceError:
            continue
        raise AssertionError("its backward pass would fail")
    with torch.no_grad():
        assert (table * 2).device.type == "cuda"
    assert (table > 0).device.type == "cuda"
    (
        table[ids].sum() + (table.cpu() * 2).sum().to(OTHER) + table.detach().to(OTHER).sum()
    ).backward()
    expected = torch.full((50, 8), 2.0)
    expected[[3, 1]] += 1
    assert torch.equal(table.grad, expected)


@route
def what_pytorch_keeps_for_later_is_room_for_a_table() -> None:
    odd = torch.arange(401, dtype=torch.uint8)[1:].view(torch.uint8)
    rows = sh.unified(odd.view(4, 100)[:, ::2])  # no rows in one piece: it cannot be mapped
    before = torch.cuda.mem_get_info
    torch.cuda.mem_get_info = lambda _=None: (0, 2**30)
    try:
        with settings.override(kernels="torch"):
            assert torch.equal((rows + rows.new_ones(1).to(OTHER)).cpu(), rows.cpu() + 1)
            torch.cuda.memory_reserved, kept = lambda _=None: 2**20, torch.cuda.memory_reserved
            try:
                rows * 2
            except DeviceRoomError:
                return
            finally:
                torch.cuda.memory_reserved = kept
    finally:
        torch.cuda.mem_get_info = before
    raise AssertionError("a table was copied where there is no room")


@route
def the_mapping_of_a_table_serves_its_slices() -> None:
    plain = torch.randn(3000, 8)
    u = sh.unified(plain)
    for first in range(0, 50, 10):
        part = u[first:]
        assert torch.equal(part[torch.tensor([1, -1])].cpu(), plain[first:][[1, -1]])
        del part
    registered = [each for each in events if each[0] == "register"]
    assert len(registered) == 1, registered
    assert not [each for each in events if each[0] == "synchronize device"]


@route
def writing_waits_for_those_who_read() -> None:
    u = sh.unified(torch.zeros(100, 8))
    u.scatter_(torch.tensor([1]), torch.ones(1, 8))
    assert not [each for each in events if each[0] == "synchronize device"], "nobody reads yet"
    for write in (
        lambda: u.scatter_(torch.tensor([1]), torch.ones(1, 8)),
        lambda: u[1:].add_(1),
        lambda: u[:2].scatter_(torch.tensor([1]), torch.ones(1, 8)),
        lambda: u.table.scatter_(torch.tensor([1]), torch.ones(1, 8)),  # as PyG's stores do
    ):
        u.gather(torch.tensor([1]), device=OTHER)
        events.clear()
        write()
        assert ("synchronize device", 1) in events


@route
def memory_that_is_read_only_is_registered_so() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.bin"
        path.write_bytes(bytes(range(256)) * 64)
        import numpy as np

        rows = np.memmap(path, np.uint8, "r", shape=(64, 256))
        u = sh.unified(rows)
        assert torch.equal(u[torch.tensor([5])].cpu(), torch.arange(256).to(torch.uint8)[None])
        flags = [each[3] for each in events if each[0] == "register"]
        assert flags == [1 | 2 | 8], flags


@route
def every_thread_has_its_own_current_device() -> None:
    u, found = sh.unified(torch.randn(100, 8)), []

    def gather() -> None:
        torch.cuda.set_device(1)
        found.append(u[torch.tensor([1])].device)

    thread = threading.Thread(target=gather)
    thread.start()
    thread.join()
    assert found == [OTHER]
    assert u[torch.tensor([1])].device == torch.device("cuda", 0)


@route
def batches_return_to_the_host_before_they_are_read() -> None:
    (block,) = NeighborSampler(_graph(), [2]).sample(torch.arange(5)).blocks
    asked: list[bool] = []
    to = torch.Tensor.to

    def watched(self: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        asked.append(bool(options.get("non_blocking")))
        return to(self, *args, **options)

    torch.Tensor.to = watched  # type: ignore[assignment,method-assign]
    try:
        block.to(OTHER).to("cpu")
    finally:
        torch.Tensor.to = to  # type: ignore[method-assign]
    assert asked == [True] * 4 + [False] * 4


@route
def the_doctor_finds_nothing_broken() -> None:
    from shorthaul.cli.doctor import examine

    findings = [
        each
        for section in examine(is_quick=False, is_gpu=True, say=lambda _: None)
        for each in section.findings
    ]
    assert len(findings) == 14  # two devices, and each of the other probes
    *tried, rate = findings
    assert {each.status for each in tried} == {"ok"}, tried
    assert rate.status == "missing", "the interpreter's rate is none"


def _run_body(each: Body) -> None:
    each(OTHER)


ROUTES += [functools.partial(_run_body, each) for each in load_bodies()]


def name_of(each: Callable[[], None]) -> str:
    """Of a route, or of what is run on a real device, too."""
    return each.args[0].__name__ if isinstance(each, functools.partial) else each.__name__


def _run(each: Callable[[], None]) -> str:
    gc.collect()  # tables of the route before are unmapped now
    launches.clear()
    events.clear()
    torch.cuda.set_device(0)
    torch.manual_seed(0)
    try:
        each()
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    gc.freeze()  # what was imported is not looked through before each route
    for function in ROUTES:
        print(json.dumps({"name": name_of(function), "problem": _run(function)}), flush=True)
