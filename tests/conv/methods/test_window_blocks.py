"""Plans are pure: what they promise about sizes and memory."""

import pytest

from shorthaul.conv.methods.planar import plan_planes
from shorthaul.conv.methods.tall import plan_tall, tall_schedule
from shorthaul.conv.methods.window_blocks import plan_blocks
from shorthaul.conv.planning.choice import choose_schedule, schedule_pass
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import forward_task, grad_input_tasks

# The papers' twelve layers: input channels, size, output channels, kernel, stride.
LAYERS = (
    (3, 227, 96, 11, 4), (3, 231, 96, 11, 4), (3, 227, 64, 7, 2), (64, 224, 64, 7, 2),
    (96, 24, 256, 5, 1), (256, 12, 512, 3, 1), (3, 224, 64, 3, 1), (64, 112, 128, 3, 1),
    (64, 56, 64, 3, 1), (128, 28, 128, 3, 1), (256, 14, 256, 3, 1), (512, 7, 512, 3, 1),
)  # fmt: skip


def layer(index: int, layout: str) -> tuple[ConvProblem, tuple[int, int, int]]:
    in_channels, size, out_channels, kernel, stride = LAYERS[index]
    problem = ConvProblem(
        in_channels, out_channels, (1, kernel, kernel), (1, stride, stride), layout=layout
    )
    return problem, (1, size, size)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("batch", [1, 8, 128])
@pytest.mark.parametrize("index", range(12))
def test_the_twelve_layers_need_less_than_a_megabyte_per_thread(
    index: int, batch: int, threads: int, layout: str
) -> None:
    problem, sizes = layer(index, layout)
    task = forward_task(problem, batch, sizes)
    schedule = choose_schedule(problem, (batch, *sizes))
    plan = plan_planes if schedule.method == "planar" else plan_blocks
    assert plan(task, schedule, threads).thread_bytes < 1_000_000


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("index", range(12))
def test_threads_have_about_equal_work(index: int, threads: int) -> None:
    problem, sizes = layer(index, "channels_last")
    task = forward_task(problem, 1, sizes)
    plan = plan_blocks(task, choose_schedule(problem, (1, *sizes)), threads)
    _, rows, columns = task.out_sizes
    row_blocks, column_blocks = -(-rows // plan.block_rows), -(-columns // plan.block_columns)
    tasks = row_blocks * column_blocks * plan.panel_parts
    # What each thread computes: the same cut as in the kernels, a row of a block at a time.
    work = [0.0] * threads
    for thread in range(threads):
        for task_number in range(tasks * thread // threads, tasks * (thread + 1) // threads):
            block = task_number // plan.panel_parts // column_blocks
            size = rows * (block + 1) // row_blocks - rows * block // row_blocks
            work[thread] += size / column_blocks / plan.panel_parts
    assert max(work) <= 1.12 * rows / threads or max(work) - min(work) <= 1


def test_a_planar_block_is_never_larger_than_it_must_be() -> None:
    problem = ConvProblem(64, 3, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)))
    schedule = choose_schedule(problem, (1, 1, 256, 256))
    assert schedule.method == "planar"
    plan = plan_planes(forward_task(problem, 1, (1, 256, 256)), schedule, 1)
    # Several rows per block: with one, every image row would be packed three times.
    assert plan.block_rows >= 4
    assert plan.thread_bytes < 300_000


def test_planes_of_one_small_image_are_shared_by_all_threads() -> None:
    problem = ConvProblem(3, 16, (1, 5, 5))
    task, schedule = (
        forward_task(problem, 1, (1, 130, 130)),
        choose_schedule(problem, (1, 1, 130, 130)),
    )
    assert schedule.method == "planar"
    assert plan_planes(task, schedule, 1).block_rows == 126
    assert 126 / plan_planes(task, schedule, 2).block_rows >= 4


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("size", [14, 56, 300, 5000])
@pytest.mark.parametrize("kernel", [8, 31, 55])
def test_rows_under_high_kernels_need_less_than_a_megabyte_per_thread(
    kernel: int, size: int, threads: int
) -> None:
    padding = (kernel // 2, kernel // 2)
    problem = ConvProblem(
        40, 40, (1, kernel, kernel), padding=((0, 0), padding, padding), groups=40
    )
    task = forward_task(problem, 1, (1, size, size))
    plan = plan_tall(task, tall_schedule(), threads)
    assert plan.thread_bytes < 1_000_000
    assert 1 <= plan.block_rows <= task.out_sizes[1]
    assert 1 <= plan.block_columns <= task.out_sizes[2]


def test_an_image_whose_rows_fit_is_packed_once() -> None:
    problem = ConvProblem(128, 128, (1, 31, 31), padding=((0, 0), (15, 15), (15, 15)), groups=128)
    plan = plan_tall(forward_task(problem, 1, (1, 56, 56)), tall_schedule(), 2)
    # As high as half of the second-level cache allows, and as wide as the image.
    assert plan.block_rows >= 28
    assert plan.block_columns == 56


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("batch", [1, 8, 128])
@pytest.mark.parametrize("index", range(12))
def test_gradients_of_the_input_need_less_than_a_megabyte_per_thread(
    index: int, batch: int, threads: int, layout: str
) -> None:
    problem, sizes = layer(index, layout)
    for task, _ in grad_input_tasks(problem, batch, sizes):
        schedule = schedule_pass(task)
        plan = plan_planes if schedule.method == "planar" else plan_blocks
        assert plan(task, schedule, threads).thread_bytes < 1_000_000


@pytest.mark.parametrize(("batch", "threads"), [(8, 1), (8, 2), (6, 3), (64, 3)])
def test_blocks_that_skip_padding_hold_whole_images(batch: int, threads: int) -> None:
    problem, sizes = layer(11, "contiguous")
    ((task, _),) = grad_input_tasks(problem, batch, sizes)
    plan = plan_blocks(task, schedule_pass(task), threads)
    images, rest = divmod(plan.block_rows, task.out_sizes[1])
    assert rest == 0
    assert images > 1
    assert batch % images == 0
    assert batch // images % threads == 0 or batch // images >= 8 * threads
    assert (plan.block_columns, plan.panel_parts) == (task.out_sizes[2], 1)


def test_threads_that_cannot_share_images_evenly_share_panels() -> None:
    problem, sizes = layer(11, "contiguous")
    ((task, _),) = grad_input_tasks(problem, 3, sizes)
    assert plan_blocks(task, schedule_pass(task), 2).panel_parts == 2
