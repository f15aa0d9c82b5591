"""What does each step of the kernel's design bring, one switched on after another?

Plain loops; vectors of output channels with one sum each; the register tile, on the papers' whole
window tensor; strips that fit the second-level cache; rows packed once for all output rows, or none
where the image can be read as it lies; and output lines asked for ahead. Each step is a schedule whose
kernel is generated and compiled. Double-buffered packing is no step: where packing is left, it takes
a few percent of one thread's time, and the thread has nobody to do it meanwhile. One thread,
float32, channels last, the twelve layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.arms.conv_arms import Case, add_rates, measure_peak, with_layout
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, same_within
from shorthaul.conv import TWELVE_LAYERS
from shorthaul.conv.execution.execute import run_forward
from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.planning.choice import choose_schedule
from shorthaul.conv.problem import ConvProblem
from shorthaul.jit import CppSource, Function, NumberArgument, TensorArgument, load_kernel

LOOPS = """\
// output[n][y][x][o] = sum over v, u, c of image[n][y * s + u][x * s + v][c] * weight[o][c][u][v]
void convolve(const float* image, const float* weight, float* output, int64_t batch, int64_t height,
              int64_t width, int64_t channels, int64_t outputs, int64_t kernel, int64_t stride) {
  const int64_t rows = (height - kernel) / stride + 1, columns = (width - kernel) / stride + 1;
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t y = 0; y < rows; ++y)
      for (int64_t x = 0; x < columns; ++x)
        for (int64_t o = 0; o < outputs; ++o) {
          float sum = 0;
          for (int64_t u = 0; u < kernel; ++u)
            for (int64_t v = 0; v < kernel; ++v)
              for (int64_t c = 0; c < channels; ++c)
                sum += image[((n * height + y * stride + u) * width + x * stride + v) * channels + c] *
                       weight[((o * channels + c) * kernel + u) * kernel + v];
          output[((n * rows + y) * columns + x) * outputs + o] = sum;
        }
}
"""
NUMBERS = ("batch", "height", "width", "channels", "outputs", "kernel", "stride")


def loops_source() -> CppSource:
    arguments = (
        TensorArgument("image", torch.float32, ("image_values",)),
        TensorArgument("weight", torch.float32, ("weight_values",)),
        TensorArgument("output", torch.float32, ("output_values",), is_written=True),
        *(NumberArgument(name, "int64") for name in NUMBERS),
    )
    return CppSource("plain_convolution", LOOPS, (Function("convolve", arguments),))


def plain_loops(case: Case) -> Callable[[], Tensor]:
    image, weight = case.tensors()
    problem, (_, height, width) = case.problem, case.sizes
    values = image.permute(0, 2, 3, 1).flatten()
    convolve = load_kernel(loops_source()).convolve

    def run() -> Tensor:
        _, rows, columns = problem.output_sizes(case.sizes)
        output = torch.empty(case.batch * rows * columns * problem.out_channels)
        convolve(
            values, weight.flatten(), output, case.batch, height, width, problem.in_channels,
            problem.out_channels, problem.kernel[1], problem.stride[1],
        )  # fmt: skip
        return output.view(case.batch, rows, columns, -1).permute(0, 3, 1, 2)

    return run


def with_schedule(case: Case, schedule: ConvSchedule) -> Callable[[], Tensor]:
    image, weight = case.tensors()
    canonical = image.unsqueeze(2)

    def run() -> Tensor:
        return run_forward(case.problem, canonical, weight, schedule=schedule).squeeze(2)

    return run


def steps(problem: ConvProblem, case: Case) -> dict[str, ConvSchedule]:
    chosen = choose_schedule(problem, (case.batch, *case.sizes))
    plain = replace(chosen, windows="strips", has_prefetch=False)
    return {
        "vectors of output channels": replace(plain, rows=1, vectors=1, strip_bytes=None),
        "register tile": replace(plain, strip_bytes=None),
        "strips in cache": plain,
        "rows packed once or not at all": replace(chosen, has_prefetch=False),
        "outputs prefetched": chosen,
    }


def measure(answer: Answer) -> None:
    torch.set_num_threads(1)
    peak = measure_peak((1,))[1]
    for layer in TWELVE_LAYERS[8:9] if answer.is_quick else TWELVE_LAYERS:
        problem = with_layout(layer.problem, "channels_last")
        case = Case(layer.name, problem, 1, layer.sizes)
        arms = [Arm("plain loops", plain_loops(case))]
        arms += [
            Arm(name, with_schedule(case, schedule))
            for name, schedule in steps(problem, case).items()
        ]
        measured = answer.compare(
            layer.name,
            arms,
            baseline="plain loops",
            same=same_within(1e-3, 1e-3),  # plain loops sum in another order
            sample_seconds=0.02,
        )
        add_rates(answer, measured, case.flops, peak)
    answer.state(threads="1", layout="channels_last", batch="1")


if __name__ == "__main__":
    answer_question(measure, allocator="reuse", rounds=3)
