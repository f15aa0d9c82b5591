"""Writing the kernel for small groups on channels-last images: whole groups side by side in a vector.

Two groups of four channels fill a vector of eight: the image's channels are spread within the
vector, so that every lane multiplies a channel of its own group. Nothing is packed.

"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch

from shorthaul.conv.layout.function import convolve_function, number_names, sum_dtype
from shorthaul.conv.layout.weights import WeightLayout, WeightView, forward_view
from shorthaul.conv.layout.workspace import Carved, Workspace
from shorthaul.conv.methods.base import ConvSchedule, KernelPlan, Method
from shorthaul.conv.methods.sliding import SLIDING_FLOPS
from shorthaul.conv.methods.sweep import prefers_sweep
from shorthaul.conv.methods.text import emit_preamble, emit_sizes_and_shape
from shorthaul.conv.problem.geometry import KernelShape, Taps, WindowTask
from shorthaul.conv.problem.machine import VectorMachine, this_machine
from shorthaul.jit import CppSource

# Outputs of the grouped kernel's register tile; with the weights of a tap they fill the registers.
GROUPED_PIXELS = 8


WORKSPACE = Workspace(lines="const value*", taps="int64_t", columns="int64_t")


class GroupedNumbers(NamedTuple):
    """The kernel's own numbers."""

    thread_bytes: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class GroupedKernel:
    """Everything that decides the text of a grouped kernel."""

    dtype: torch.dtype
    activation: str | None
    machine: VectorMachine
    pixels: int  # of the register tile: neighboring outputs
    shape: KernelShape


def emit_grouped_kernel(kernel: GroupedKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, numbers)`."""
    names = number_names(GroupedNumbers._fields[:-1], kernel.shape)
    function = convolve_function(kernel.dtype)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        True,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/grouped_row"),
        workspace=WORKSPACE,
    )
    shape, dtype = kernel.shape, str(kernel.dtype).removeprefix("torch.")
    text = f"""\
// Convolution in groups of {shape.in_channels} channels on channels-last images: {shape.describe()}, {dtype}.
// Register tile: {kernel.pixels} outputs x 1 vector of channels for {kernel.machine.name}.
// Every sum runs over (kernel column, kernel row, channel) in this order, whatever the threads.
{preamble}
constexpr int tile_pixels = {kernel.pixels}, per_group = {shape.in_channels};
constexpr int64_t channels = {shape.in_channels * shape.groups}, row_stride = {shape.stride[2]};

{function.prototype()} {{
{emit_sizes_and_shape(names, shape)}
{_LOOPS}}}
"""
    return CppSource(f"conv_grouped_{shape.describe()}", text, (function,))


_LOOPS = """\
  const bool is_plain = residual == nullptr && std::is_same_v<Activation, NoActivation>;
  const Span inside = inner_outputs(in_w, (shape.kernel_w - 1) * shape.dilation_w + 1, row_stride, padding_w);
  // Threads own output rows.
  on_each_thread(threads < sizes.rows() ? threads : sizes.rows(), [&](int64_t thread, int64_t team) {
    GroupedRow<Value, Activation, per_group, channels, row_stride> windows(Workspace(workspace + thread * thread_bytes, places), shape, sizes);
    for (int64_t each = sizes.rows() * thread / team; each < sizes.rows() * (thread + 1) / team; ++each) {
      const OutputRow row(each, sizes);
      windows.find_rows(input, row);

      // Tiles of neighboring outputs, then vectors of channels.
      tiles_by_edges(out_w, inside, tile_pixels, [&](int64_t column, int64_t size) {
        const int64_t at = (row.image * sizes.out_plane() + row.position(column, sizes)) * channels;
        const bool is_inner = column >= inside.begin && column < inside.end;
        for (int64_t channel = 0; channel < channels; channel += lanes) {
          const vec begin = bias == nullptr ? vec{} : load(bias + channel);
          const real* of_vector = weights + channel * shape.window_values();
          if (is_inner) {
            with_constant<tile_pixels>(size, [&](auto pixels) {
              if (is_plain) windows.template run_tile<pixels, true, true>(of_vector, &begin, residual, output, column, channel, at);
              else windows.template run_tile<pixels, true, false>(of_vector, &begin, residual, output, column, channel, at);
            });
          } else {
            for (int64_t pixel = 0; pixel < size; ++pixel) {
              windows.template run_tile<1, false, false>(of_vector, &begin, residual, output, column + pixel, channel, at + pixel * step_w * channels);
            }
          }
        }
      });
    }
  });
"""


def plan_groups(task: WindowTask) -> Carved:
    """One thread's workspace for the grouped kernel: lines, taps and a column map."""
    columns = (task.out_sizes[2] - 1) * task.shape.stride[2]
    columns += (task.shape.kernel[2] - 1) * task.shape.dilation[2] + 1
    rows = task.shape.window_rows
    return WORKSPACE.carve(task.sum_bytes, lines=rows, taps=rows, columns=columns)


def can_group(task: WindowTask) -> bool:
    """Whether whole groups lie side by side in vectors: channels last, as many outputs as inputs."""
    shape = task.shape
    lanes = this_machine().lanes(task.sum_bytes)
    return (
        task.channels_last
        and shape.in_channels == shape.out_channels
        and 1 < shape.in_channels <= lanes
        and lanes % shape.in_channels == 0
        and shape.groups * shape.in_channels % lanes == 0
        and shape.groups > 1
    )


@dataclass(frozen=True, eq=False)
class GroupVectors(WeightLayout):
    """A vector of output channels is whole groups, in the order of the channels."""

    def view(self, weight: torch.Tensor) -> WeightView:
        """Where the kernel's weights lie in a 5-D tensor."""
        return forward_view(weight, weight.shape[0] // self.panel)

    @functools.cached_property
    def bias_view(self) -> WeightView | None:
        """Vectors are full: a bias is read as it lies."""
        return None


class Grouped(Method):
    """Whole small groups side by side in a vector."""

    name = "grouped"
    emit = staticmethod(emit_grouped_kernel)

    def applies(self, task: WindowTask) -> bool:
        """Channels last, as many outputs as inputs; weights are read in their own order."""
        return task.is_forward and can_group(task)

    def prefers(self, task: WindowTask) -> bool:
        """Groups narrower than a vector: others measured slower than packed planes."""
        is_narrow = task.shape.in_channels < this_machine().lanes(task.sum_bytes)
        return is_narrow and not prefers_sweep(task) and task.flops >= SLIDING_FLOPS

    def schedule(self, task: WindowTask) -> ConvSchedule:
        """The outputs and the weights of a tap fill the registers."""
        return ConvSchedule(self.name, GROUPED_PIXELS, 1, strip_bytes=0)

    def candidates(self, task: WindowTask) -> tuple[ConvSchedule, ...]:
        """Tiles of other lengths."""
        return tuple(ConvSchedule(self.name, pixels, 1, strip_bytes=0) for pixels in (8, 12))

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        """Panels of one vector, which holds whole groups."""
        machine = this_machine()
        kernel = GroupedKernel(task.dtype, task.activation, machine, schedule.rows, task.shape)
        lanes = machine.lanes(task.sum_bytes)
        weights = GroupVectors(task.shape, sum_dtype(task.dtype), lanes, lanes)
        return KernelPlan(task, kernel, GroupedNumbers(*plan_groups(task)), weights, kernel.shape)
