"""The texts of the row kernels: what they say of themselves, and that every word is filled in."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import shorthaul
from shorthaul.tensors.kernels.emit_rows import emit_row_copies, emit_row_products, emit_row_sums
from shorthaul.tensors.tables.disk.row_cache import emit_row_cache

PAIRS = [
    (torch.float32, torch.float32, "float"),
    (torch.float64, torch.float64, "double"),
    (torch.bfloat16, torch.bfloat16, "float"),
    (torch.float16, torch.float32, "float"),
    (torch.int8, torch.float32, "float"),
]


@pytest.mark.parametrize("emit", [emit_row_sums, emit_row_products])
@pytest.mark.parametrize(("stored", "seen", "real"), PAIRS, ids=str)
def test_every_word_is_filled_in(emit, stored, seen, real):
    source = emit(stored, seen)
    assert not re.search(r"PARAMETERS|ARGUMENTS|_NAME|_KIND", source.text)
    assert f"#define SHORTHAUL_REAL {real}\n" in source.text
    names = (str(each).removeprefix("torch.") for each in (stored, seen))
    assert source.name.endswith("_".join(names))
    for function in source.functions:
        assert function.prototype() in source.text


def test_copies_know_no_dtype():
    source = emit_row_copies()
    assert not re.search(r"PARAMETERS|float|double", source.text)
    assert [each.name for each in source.functions] == ["gather_rows", "scatter_rows", "place_rows"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "flag"),
    [
        ("x86_64-linux-gnu-g++", "-march=x86-64"),
        ("x86_64-linux-gnu-g++", "-march=x86-64-v4"),
        ("aarch64-linux-gnu-g++", "-march=armv8.2-a"),
    ],
    ids=str,
)
def test_every_kernel_compiles_for_other_machines(compiler, flag, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    sums = [emit(*pair[:2]) for emit in (emit_row_sums, emit_row_products) for pair in PAIRS]
    text = tmp_path / "kernel.cpp"
    headers = Path(shorthaul.__file__).parents[1]
    for source in (emit_row_copies(), emit_row_cache(), *sums):
        text.write_text(source.complete_text())
        command = (
            compiler,
            "-std=c++17",
            flag,
            "-Wall",
            "-Wextra",
            f"-I{headers}",
            "-c",
            text,
            "-o",
            tmp_path / "o",
        )
        compiled = subprocess.run(command, capture_output=True, text=True, check=False)
        assert compiled.returncode == 0, f"{source.name} with {flag}: {compiled.stderr}"
