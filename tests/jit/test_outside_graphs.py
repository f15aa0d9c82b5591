"""What is marked runs as it is: compilers neither trace it nor what it calls."""

import pytest
import torch

from shorthaul.jit.outside_graphs import REASON, outside_graphs


def inner(x: torch.Tensor) -> torch.Tensor:
    seen.append(torch.compiler.is_compiling())
    return x * 2


@outside_graphs
def outer(x: torch.Tensor) -> torch.Tensor:
    return inner(x)


seen: list[bool] = []


def test_graphs_break_there() -> None:
    torch._dynamo.reset()
    graphs: list[object] = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: outer(x + 1) + 1, backend=keep)
    assert compiled(torch.ones(1)).item() == 5
    assert seen == [False]
    assert len(graphs) == 2
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=REASON):
        torch.compile(lambda x: outer(x), backend="eager", fullgraph=True)(torch.ones(1))
    torch._dynamo.reset()
