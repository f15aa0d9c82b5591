"""Resident memory falls in any process that offloads, not only in those that `shorthaul run` starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import shorthaul.offload.freed_memory as freed_memory_module
from shorthaul.offload.freed_memory import FreedMemory
from shorthaul.settings import settings

TRAINING = """
import hashlib, sys
import torch
from torch import nn
import shorthaul as sh
from shorthaul.host_memory import resident_bytes

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)))
batch = torch.randn(4096, 512)
model(batch).sum().backward()  # frees blocks of 8 MiB: as large ones are kept from then on
offload = sh.offload.wrap(model, budget="24MiB", engine="thread")
for _ in range(3):
    model.zero_grad()
    model(batch).sum().backward()
bits = b"".join(each.grad.numpy().tobytes() for each in model.parameters())
print(hashlib.sha256(bits).hexdigest(), resident_bytes())
"""
VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
)


def train(scratch: os.PathLike[str], **variables: str) -> tuple[str, int]:
    plain = {name: each for name, each in os.environ.items() if name not in VARIABLES}
    told = {"SHORTHAUL_SCRATCH": os.fspath(scratch), **variables}
    words = (sys.executable, "-c", TRAINING)
    done = subprocess.run(words, env=plain | told, capture_output=True, text=True, check=True)
    bits, size = done.stdout.split()
    return bits, int(size)


def test_resident_memory_falls_and_gradients_are_the_same_bits(tmp_path) -> None:
    kept, kept_bytes = train(tmp_path, SHORTHAUL_FREED_MEMORY="keep")
    returned, returned_bytes = train(tmp_path)
    assert kept == returned
    assert returned_bytes < kept_bytes - 60 * 2**20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []

    def return_large_blocks() -> bool:
        calls.append("rule")
        return True

    monkeypatch.setattr(freed_memory_module, "return_large_blocks", return_large_blocks)
    monkeypatch.setattr(freed_memory_module, "give_memory_back", lambda: calls.append("give back"))
    return calls


def test_the_rule_is_set_once_so_that_a_later_one_of_the_users_stays(asked: list[str]) -> None:
    freed = FreedMemory()
    freed.return_it()
    freed.return_it()
    assert asked == ["rule", "give back"]


def test_the_setting_leaves_the_allocator_alone(asked: list[str]) -> None:
    freed = FreedMemory()
    with settings.override(freed_memory="keep"):
        freed.return_it()
    assert asked == []
    freed.return_it()
    assert asked
