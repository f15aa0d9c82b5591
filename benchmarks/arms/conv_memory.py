"""How much memory one convolution takes beyond its input, its weight and its output, in a process of its own.

Run as `python -m benchmarks.arms.conv_memory <layer> <arm>`; prints the bytes. The peak of resident memory is
reset before the call that counts. Before it, another Python thread makes the same call, so that code
and packed weights, which later calls share, are there already; the workspace of that thread goes
with it.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from shorthaul.conv import TWELVE_LAYERS, conv2d
from shorthaul.conv.execution.execute import run_forward
from shorthaul.conv.planning.choice import choose_schedule
from shorthaul.conv.problem import ConvProblem

Convolve = Callable[[ConvProblem, Tensor, Tensor], Tensor]


def eager(problem: ConvProblem, image: Tensor, weight: Tensor) -> Tensor:
    """What PyTorch does by itself."""
    return torch.conv2d(image, weight, None, problem.stride[1:])


def lowered(problem: ConvProblem, image: Tensor, weight: Tensor) -> Tensor:
    """im2col: the whole lowered image, then a matrix product."""
    columns = torch.nn.functional.unfold(image, weight.shape[2:], stride=problem.stride[1:])
    sizes = problem.output_sizes((1, image.shape[2], image.shape[3]))
    return (weight.flatten(1) @ columns).view(len(image), -1, *sizes[1:])


def whole_windows(problem: ConvProblem, image: Tensor, weight: Tensor) -> Tensor:
    """The papers' im2win: the whole window tensor of an image."""
    sizes = (image.shape[0], 1, image.shape[2], image.shape[3])
    schedule = replace(choose_schedule(problem, sizes), strip_bytes=None)
    return run_forward(problem, image.unsqueeze(2), weight, schedule=schedule).squeeze(2)


def ours(problem: ConvProblem, image: Tensor, weight: Tensor) -> Tensor:
    """What shorthaul does by itself."""
    return conv2d(image, weight, None, problem.stride[1:])


ARMS: dict[str, Convolve] = {
    "PyTorch eager": eager,
    "im2col: unfold and mm": lowered,
    "im2win: whole window tensor": whole_windows,
    "shorthaul": ours,
}


def measure_in_process(layer: str, arm: str) -> int:
    """The bytes of one arm, measured by a new process."""
    command = [sys.executable, "-m", "benchmarks.arms.conv_memory", layer, arm]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    return int(done.stdout)


def measure_here(layer_name: str, arm: str) -> int:
    """The growth of resident memory during one call, without its output. Linux only."""
    torch.set_num_threads(1)
    layer = next(each for each in TWELVE_LAYERS if each.name == layer_name)
    problem, convolve = replace(layer.problem, layout="channels_last"), ARMS[arm]
    image = make_image(problem, *layer.sizes[1:])
    weight = torch.randn(problem.weight_shape).squeeze(2)

    def run() -> Tensor:
        with torch.no_grad():
            return convolve(problem, image, weight)

    before_it = threading.Thread(target=run)
    before_it.start()
    before_it.join()
    ctypes.CDLL(None).malloc_trim(0)  # or the call would be given pages that are resident already
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    resident_bytes = _status_bytes("VmRSS")
    output = run()
    return max(0, _status_bytes("VmHWM") - resident_bytes - output.nbytes)


def make_image(problem: ConvProblem, height: int, width: int) -> Tensor:
    """A random image, channels last."""
    image = torch.randn(1, problem.in_channels, height, width)
    return image.to(memory_format=torch.channels_last)


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the system does not say `{name}` in /proc/self/status")


if __name__ == "__main__":
    print(measure_here(*sys.argv[1:]))
