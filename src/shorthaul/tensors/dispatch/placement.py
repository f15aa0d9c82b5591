"""Where an operation with a unified operand runs, and where its result lies: one pure table.

The rules are those that PyTorch-Direct published and released, with its propagation flag. `device`
stands for the accelerator: CUDA, where there is one.

| other operands                      | runs on | result, propagate off | propagate on |
| none                                | device  | device                | unified      |
| a tensor on the device              | device  | device                | device       |
| one CPU scalar (0-dim)              | device  | device                | unified      |
| a CPU tensor                        | CPU     | CPU                   | CPU          |
| two CPU scalars or more             | CPU     | CPU                   | CPU          |
| a CPU tensor and one on the device  | nowhere | an error              | an error     |
| any, and it writes to a unified one | CPU     | unified               | unified      |
| none, and it reads no value         | CPU     | CPU                   | unified      |

The last row is that of `zeros_like` and its kin: an optimizer's state lies where the gradients do.
Without a device, `device` reads CPU everywhere. What propagates is computed by the CPU, which alone
can write to host memory through every operator. Indexes are not counted as operands: they follow.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Place = Literal["cpu", "device", "unified"]


class Placement(NamedTuple):
    """Where an operation runs, and where its result lies."""

    compute: Literal["cpu", "device"]
    output: Place


def choose_placement(
    *,
    device_tensors: int = 0,
    cpu_tensors: int = 0,
    cpu_scalars: int = 0,
    has_device: bool,
    propagate: bool = False,
    writes_unified: bool = False,
    only_creates: bool = False,
) -> Placement | None:
    """The rule for an operation with at least one unified operand; `None` where there is none.

    >>> choose_placement(device_tensors=1, has_device=True)
    Placement(compute='device', output='device')
    >>> choose_placement(cpu_tensors=1, has_device=True)
    Placement(compute='cpu', output='cpu')
    """
    if writes_unified:
        return Placement("cpu", "unified")
    if only_creates:
        return Placement("cpu", "unified" if propagate else "cpu")
    if device_tensors:
        return None if cpu_tensors else Placement("device", "device")
    if cpu_tensors or cpu_scalars > 1:
        return Placement("cpu", "cpu")
    if propagate:
        return Placement("cpu", "unified")
    return Placement("device", "device") if has_device else Placement("cpu", "cpu")
