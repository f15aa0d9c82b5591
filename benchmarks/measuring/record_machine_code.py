"""Compiles every launch for every architecture and records what is in the machine code.

`python -m benchmarks.measuring.record_machine_code`, after a change of kernels or of Triton; takes minutes,
and no GPU. The record is rendered into docs/results/gpu.md, and a slow test holds it to what is compiled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("machine_code.json")


def find_rows(capability: int) -> list[dict[str, Any]]:
    """A row for each launch: the most that any of its kernels takes, and the least occupancy."""
    from benchmarks.arms.gpu_launches import list_launches
    from benchmarks.measuring.machine_code import compile_launches

    rows = []
    for name, launch in list_launches().items():
        made = compile_launches(launch, capability)
        rows.append(
            {
                "launch": name,
                "capability": capability,
                "kernels": len(made),
                "registers": max(each.registers for each in made),
                "spills": sum(each.spills for each in made),
                "shared_bytes": max(each.shared_bytes for each in made),
                "tensor_core": sum(each.tensor_core for each in made),
                "wide_loads": sum(each.wide_loads for each in made),
                "loads": sum(each.loads for each in made),
                "occupancy": round(min(each.occupancy for each in made), 3),
            }
        )
    return rows


def read_record() -> dict[str, Any]:
    """What was recorded, and by which Triton."""
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


def render_machine_code() -> str:
    """The record as a table, a line for each launch."""
    record = read_record()
    lines = [
        "| launch | sm | kernels | registers, at most | spills | shared memory, at most "
        "| tensor-core instructions | 128-bit loads | occupancy, at least |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['launch']} | {row['capability']} | {row['kernels']} | {row['registers']} "
        f"| {row['spills']} | {row['shared_bytes']:,} B | {row['tensor_core']} "
        f"| {row['wide_loads']} of {row['loads']} | {row['occupancy']:.0%} |"
        for row in record["rows"]
    ]
    return "\n".join([*lines, "", f"Compiled by Triton {record['triton']}."])


def record() -> None:
    """Compile everything, and write the record."""
    import triton

    from benchmarks.measuring.machine_code import ARCHITECTURES

    rows = [row for each in ARCHITECTURES for row in find_rows(each.capability)]
    names = list(dict.fromkeys(row["launch"] for row in rows))
    rows.sort(key=lambda row: names.index(row["launch"]))
    text = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    RECORD.write_text(f'{{"triton": "{triton.__version__}", "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    record()
