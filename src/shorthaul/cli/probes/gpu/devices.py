"""Which device is tried: the current CUDA device, or the CPU in Triton's interpreter."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from shorthaul.cli.findings import Finding
from shorthaul.errors import CudaUnavailableError
from shorthaul.jit.launching.triton_at_hand import why_no_triton
from shorthaul.units import format_bytes

DRIVER_FILE = Path("/proc/driver/nvidia/version")
ADVICE = "TRITON_INTERPRET=1 shorthaul doctor --gpu tries the kernels' numbers on the CPU, slowly."


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def find_device() -> torch.device:
    """Where kernels are tried; `CudaUnavailableError` where there is no place."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if is_interpreted():
        return torch.device("cpu")
    raise CudaUnavailableError(f"PyTorch finds no CUDA device that it can use.\n  {ADVICE}")


def look_at_devices() -> list[Finding]:
    """What PyTorch knows of each device."""
    if find_device().type == "cpu":
        return [Finding("device", "warning", "none: the CPU, in Triton's interpreter")]
    found, driver = [], find_driver()
    for number in range(torch.cuda.device_count()):
        known = torch.cuda.get_device_properties(number)
        facts = {
            "name": known.name,
            "capability": f"{known.major}.{known.minor}",
            "memory_bytes": known.total_memory,
            "multiprocessors": known.multi_processor_count,
            "driver": driver,
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
        }
        told = (
            f"{known.name}, sm_{known.major}{known.minor}, {format_bytes(known.total_memory)}, "
            f"driver {driver or 'unknown'}, CUDA {torch.version.cuda}, torch {torch.__version__}"
        )
        found.append(Finding(f"cuda:{number}", "ok", told, facts=facts))
    return found


def find_driver(path: Path = DRIVER_FILE) -> str | None:
    """The version of NVIDIA's driver, as the kernel's module tells it; `None` where it does not."""
    try:
        text = path.read_text()
    except OSError:
        return None
    version = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return version[1] if version else None


def look_at_triton() -> Finding:
    """Whether Triton can run kernels; without it GPUs compute by PyTorch."""
    reason = why_no_triton()
    if reason is not None:
        return Finding("Triton", "broken", reason, "pip install 'shorthaul[gpu]'; install gcc")
    import triton

    return Finding("Triton", "ok", triton.__version__, facts={"version": triton.__version__})
