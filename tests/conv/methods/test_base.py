"""A method is one object: whoever puts one into the list has it chosen, planned, estimated, tuned, run and explained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import shorthaul as sh
from shorthaul.conv import estimate
from shorthaul.conv.execution.plan import forget_plans, plan_forward
from shorthaul.conv.execution.tuning import tune_schedule
from shorthaul.conv.layout.function import convolve_function, number_names
from shorthaul.conv.layout.weights import WeightLayout
from shorthaul.conv.methods import METHODS
from shorthaul.conv.methods.base import ConvSchedule, KernelPlan, Method
from shorthaul.conv.methods.text import emit_preamble, emit_sizes_and_shape
from shorthaul.conv.planning.choice import (
    candidate_schedules,
    choose_schedule,
    find_schedule,
    remembered_schedule,
)
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import Taps, WindowTask
from shorthaul.conv.problem.machine import VectorMachine, this_machine
from shorthaul.jit import Candidate, Choice, CppSource
from tests.conv.tolerances import require_close

PROBLEM = ConvProblem(7, 5, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)), has_bias=True)
SIZES = (2, 1, 9, 11)

LOOPS = """\
  for (int64_t each = 0; each < sizes.rows() * shape.out_channels; ++each) {
    const int64_t channel = each % shape.out_channels;
    const OutputRow row(each / shape.out_channels, sizes);
    for (int64_t column = 0; column < out_w; ++column) {
      real sum = bias == nullptr ? 0 : bias[channel];
      const real* weight = weights + channel * shape.window_values();
      for (int64_t kernel_column = 0; kernel_column < shape.kernel_w; ++kernel_column) {
        const int64_t x = source_index(column * shape.stride_w + kernel_column * shape.dilation_w - padding_w, in_w, padding_mode);
        for (int64_t window_row = 0; window_row < shape.window_rows(); ++window_row) {
          const int64_t y = source_row(row, window_row, shape, sizes);
          for (int64_t from = 0; from < shape.in_channels; ++from, ++weight) {
            if (x < 0 || y < 0) continue;
            sum += *weight * input[(row.image * shape.in_channels + from) * sizes.in_plane() + y * in_w + x];
          }
        }
      }
      output[(row.image * shape.out_channels + channel) * sizes.out_plane() + row.position(column, sizes)] = sum;
    }
  }
"""


class ToyNumbers(NamedTuple):
    thread_bytes: int


@dataclass(frozen=True)
class ToyKernel:
    machine: VectorMachine


class Toy(Method):
    """Plain loops over contiguous float32 images without groups."""

    name = "toy"

    def applies(self, task: WindowTask) -> bool:
        is_plain = task.dtype == torch.float32 and task.activation is None
        return is_plain and not task.channels_last and task.shape.groups == 1

    def prefers(self, task: WindowTask) -> bool:
        return True

    def schedule(self, task: WindowTask) -> ConvSchedule:
        return ConvSchedule(self.name, 1, 1, is_specialised=False, strip_bytes=0)

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        weights = WeightLayout(task.shape, torch.float32, 1, 1, taps)
        return KernelPlan(task, ToyKernel(this_machine()), ToyNumbers(192), weights, False)

    def emit(self, kernel: object) -> CppSource:
        assert isinstance(kernel, ToyKernel)
        names = number_names(ToyNumbers._fields, None)
        function = convolve_function(torch.float32, names)
        headers = ("conv/methods/output", "conv/methods/packing")
        preamble = emit_preamble(torch.float32, kernel.machine, False, None, headers)
        text = f"{preamble}\n{function.prototype()} {{\n{emit_sizes_and_shape(names, None)}\n{LOOPS}}}\n"
        return CppSource("conv_toy", text, (function,))


@pytest.fixture(autouse=True)
def toy() -> Iterator[Toy]:
    forget_plans()
    METHODS.insert(0, method := Toy())
    yield method
    METHODS.remove(method)
    forget_plans()


def test_it_is_chosen_and_estimated() -> None:
    assert choose_schedule(PROBLEM, SIZES) == Toy().schedule(None)  # type: ignore[arg-type]
    assert estimate(PROBLEM, 2, (1, 9, 11), threads=3).ours_bytes == 3 * 192


def test_it_is_tuned_and_remembered(tmp_path: Path) -> None:
    def measure(key: str, candidates: list[Candidate], **_: object) -> Choice:
        (mine,) = (each for each in candidates if each.name.startswith("toy"))
        mine.run()
        return sh.jit.autotune(key, [mine])

    methods = [each.method for each in candidate_schedules(PROBLEM, SIZES)]
    assert methods[0] == "toy"
    assert "window" in methods
    with sh.settings.override(cache_directory=tmp_path, autotune="on"):
        tune_schedule(PROBLEM, SIZES, measure=measure, is_quiet=True)
        found = remembered_schedule(PROBLEM, SIZES, torch.get_num_threads())
        assert found is not None
        assert found.method == "toy"
        assert find_schedule(PROBLEM, SIZES, torch.get_num_threads()) == found


def test_it_runs_whoever_calls_it() -> None:
    image, weight, bias = torch.randn(2, 7, 9, 11), torch.randn(5, 7, 3, 3), torch.randn(5)
    with sh.meter() as meter, torch.no_grad():
        expected = torch.conv2d(image, weight, bias, padding=1)
        for _ in range(2):  # by the operator, then as a known call
            require_close(sh.conv2d(image, weight, bias, padding=1), expected)
        added = sh.conv2d(image, weight, padding=1)
        back = sh.conv_transpose2d(added, weight, padding=1)
        require_close(back, torch.conv_transpose2d(added, weight, padding=1))
    assert meter.launches["conv_toy"] == 4
    leaves = [each.requires_grad_() for each in (image, weight, bias)]
    wanted = torch.autograd.grad(torch.conv2d(*leaves, padding=1).square().sum(), leaves)
    for _ in range(2):  # by operators, then as a step of training
        got = torch.autograd.grad(sh.conv2d(*leaves, padding=1).square().sum(), leaves)
        for one, other in zip(got, wanted, strict=True):
            require_close(one, other)


def test_it_is_explained() -> None:
    plan = plan_forward(PROBLEM, SIZES, None, 1)
    text = sh.explain(plan)
    assert PROBLEM.describe() in text
    assert "by toy 1x1" in text
    assert "192 B per thread" in text
    assert LOOPS in text
