"""The gradient of the weights: what threads never change, and how much memory it takes."""

from dataclasses import replace

import pytest

from shorthaul.conv import TWELVE_LAYERS
from shorthaul.conv.methods.gradients.weight import plan_depthwise_gradient, plan_gradient
from shorthaul.conv.planning.choice import schedule_gradient
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import forward_task


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("batch", [1, 8, 128])
@pytest.mark.parametrize("layer", TWELVE_LAYERS, ids=lambda layer: layer.name)
def test_the_twelve_layers_need_less_than_a_megabyte_per_thread(
    layer, batch: int, threads: int, layout: str
) -> None:
    task = forward_task(replace(layer.problem, layout=layout), batch, layer.sizes)
    assert plan_gradient(task, schedule_gradient(task), threads).thread_bytes < 1_000_000


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("layer", TWELVE_LAYERS, ids=lambda layer: layer.name)
def test_every_thread_has_a_part(layer, threads: int) -> None:
    task = forward_task(layer.problem, 8, layer.sizes)
    plan = plan_gradient(task, schedule_gradient(task), threads)
    chunks = -(-task.shape.in_channels // plan.channel_chunk)
    most = plan.stretches * task.shape.in_channels * task.shape.out_channels
    assert chunks * plan.panel_parts * plan.stretches >= min(threads, most // 1024)


def test_blocks_of_the_weight_gradient_do_not_depend_on_threads() -> None:
    # Each block is summed by itself, so its cut decides bits.
    for layer in TWELVE_LAYERS:
        task = forward_task(layer.problem, 8, layer.sizes)
        plans = [plan_gradient(task, schedule_gradient(task), threads) for threads in (1, 2, 7, 64)]
        cuts = {(plan.block_rows, plan.block_columns, plan.stretches) for plan in plans}
        assert len(cuts) == 1


@pytest.mark.parametrize(("batch", "height", "stretches"), [(1, 5, 1), (2, 20, 5), (8, 112, 8)])
def test_rows_of_depthwise_gradients_are_shared_alike_by_any_number_of_threads(
    batch: int, height: int, stretches: int
) -> None:
    problem = ConvProblem(
        100, 100, (1, 3, 3), groups=100, padding=((0, 0), (1, 1), (1, 1)), layout="channels_last"
    )
    task = forward_task(problem, batch, (1, height, 9))
    for threads in (1, 2, 7, 64):
        parts, found = plan_depthwise_gradient(task, threads)
        assert found == stretches
        assert 1 <= parts <= max(1, -(-threads // stretches))
