"""What Triton makes of the launches that ship: no spills, tensor cores and wide loads where they belong."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from benchmarks.arms.gpu_launches import list_launches
from benchmarks.measuring.machine_code import ARCHITECTURES, MachineCode, compile_launches
from benchmarks.measuring.record_machine_code import find_rows, read_record

QUICK = {
    "gather fp32 x 100": 80,
    "sum of rows fp32 x 128": 89,
    "conv fp16, 64 x 64": 90,
    "draw 15 neighbors, 32-bit ids": 80,
    "draw with replacement, 64-bit ids": 89,
}
LAUNCHES = list_launches()


@pytest.mark.parametrize(("name", "capability"), QUICK.items())
def test_registers_are_enough(name: str, capability: int) -> None:
    for made in compile_launches(LAUNCHES[name], capability):
        assert made.spills == 0, made
        assert made.stack_bytes == 0, made
        assert made.occupancy > 0


def test_products_of_16_bits_use_tensor_cores_and_rows_are_read_16_bytes_at_a_time() -> None:
    (gather,) = compile_launches(LAUNCHES["gather fp32 x 128"], 90)
    assert gather.wide_loads > 0
    for made in compile_launches(LAUNCHES["conv fp16, 64 x 64"], 80):
        assert made.kernel == "sum_parts_kernel" or made.tensor_core > 0
        assert made.kernel == "sum_parts_kernel" or made.wide_loads > 0


def test_occupancy_is_what_the_scarcest_thing_allows() -> None:
    def made(**takes: Any) -> MachineCode:
        given = {"warps": 4, "registers": 32, "shared_bytes": 0, "capability": 80} | takes
        rest = dict.fromkeys(("stack_bytes", "spills", "tensor_core", "wide_loads", "loads"), 0)
        return MachineCode(kernel="any", **given, **rest)

    assert made().occupancy == 1.0
    assert made(registers=128).occupancy == 0.25
    assert made(shared_bytes=80 * 1024).occupancy == 0.125
    assert made(capability=89).occupancy == 1.0


def test_the_record_has_every_launch_and_no_spills() -> None:
    rows = read_record()["rows"]
    assert {row["launch"] for row in rows} == set(LAUNCHES)
    assert {row["capability"] for row in rows} == {each.capability for each in ARCHITECTURES}
    for row in rows:
        assert row["spills"] == 0, row
        multiplies = any(f"{each}," in row["launch"] for each in ("fp16", "bf16", "tf32"))
        if row["launch"].startswith("conv") and multiplies:
            assert row["tensor_core"] > 0, row


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("capability", [each.capability for each in ARCHITECTURES])
def test_the_record_is_what_is_compiled(capability: int) -> None:
    import triton

    record = read_record()
    if record["triton"] != triton.__version__:
        pytest.skip(f"recorded with Triton {record['triton']}")
    recorded = [row for row in record["rows"] if row["capability"] == capability]
    assert find_rows(capability) == recorded
