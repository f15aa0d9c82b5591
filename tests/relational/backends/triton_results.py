"""What the compiled layers computed in Triton's interpreter, and how far off it may be."""

from __future__ import annotations

import functools
from typing import Any

from tests.triton_programs import run_interpreted

# Sums of a few hundred terms of about one; the 16-bit types are rounded between kernels.
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-2, "bfloat16": 2.5e-1}
KERNELS, PROGRAMS, READY_LAYERS, MANY = range(4)  # groups of cases


@functools.lru_cache(maxsize=4)
def interpreted(group: int) -> tuple[dict[str, Any], ...]:
    """The errors of every case of a group, by the interpreter's own process, once."""
    return tuple(run_interpreted("tests.relational.backends.interpreted_triton", group, seed=0))


def require_small_errors(results: tuple[dict[str, Any], ...], at_least: int) -> None:
    """Every error within the tolerance of its case's dtype."""
    assert len(results) >= at_least
    for each in results:
        dtype = each["case"].rpartition(", ")[2]
        tolerance = TOLERANCES.get(dtype, TOLERANCES["float32"])
        for name, error in each["errors"].items():
            assert error <= tolerance, f"{each['case']}: {name} is off by {error:.3g}"
