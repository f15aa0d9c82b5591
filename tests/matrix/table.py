"""The table of operations."""

from __future__ import annotations

from tests.matrix import (
    conv_operations,
    drawing_operations,
    graph_operations,
    layer_operations,
    offload_operations,
    tensor_operations,
)

OPERATIONS = {
    each.name: each
    for module in (
        tensor_operations,
        graph_operations,
        drawing_operations,
        layer_operations,
        conv_operations,
        offload_operations,
    )
    for each in module.OPERATIONS
}
