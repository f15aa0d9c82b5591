"""Resident memory falls in any process that offloads, not only in those that `shorthaul run` starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import shorthaul.allocator.freed_memory as freed_memory_module
from shorthaul.allocator.freed_memory import FreedMemory
from shorthaul.allocator.tensor_pool import PoolUnavailableError
from shorthaul.fallbacks import taken_fallbacks
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
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)


def train(scratch: os.PathLike[str], **variables: str) -> tuple[str, int]:
    plain = {name: each for name, each in os.environ.items() if name not in VARIABLES}
    told = {"SHORTHAUL_SCRATCH": os.fspath(scratch), **variables}
    words = (sys.executable, "-c", TRAINING)
    done = subprocess.run(words, env=plain | told, capture_output=True, text=True, check=True)
    bits, size = done.stdout.split()
    return bits, int(size)


@pytest.mark.parametrize("rule", ["reuse", "return"])
def test_resident_memory_falls_and_gradients_are_the_same_bits(tmp_path, rule: str) -> None:
    kept, kept_bytes = train(tmp_path, SHORTHAUL_FREED_MEMORY="keep")
    freed, freed_bytes = train(tmp_path, SHORTHAUL_FREED_MEMORY=rule)
    assert kept == freed
    assert freed_bytes < kept_bytes - 60 * 2**20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done to the process, of which nothing is done."""
    calls: list[str] = []
    for each in VARIABLES:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.delenv("LD_PRELOAD", raising=False)

    def note(name: str) -> Callable[[], Any]:
        def called() -> str:
            calls.append(name)
            return name

        return called

    monkeypatch.setattr(freed_memory_module.TensorPool, "open", note("pool"))
    monkeypatch.setattr(freed_memory_module, "return_large_blocks", note("return"))
    monkeypatch.setattr(freed_memory_module, "give_memory_back", note("give back"))
    return calls


@pytest.mark.parametrize(("rule", "done"), [("reuse", "pool"), ("return", "return")])
def test_the_rule_is_set_once_so_that_a_later_one_of_the_users_stays(
    asked: list[str], rule: str, done: str
) -> None:
    freed = FreedMemory()
    with settings.override(freed_memory=rule):
        freed.settle()
        freed.settle()
    assert asked == [done, "give back"]


def test_the_setting_leaves_the_allocator_alone(asked: list[str]) -> None:
    freed = FreedMemory()
    with settings.override(freed_memory="keep"):
        freed.settle()
    assert asked == []
    with settings.override(freed_memory="reuse"):
        freed.settle()
    assert asked == ["pool", "give back"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLIBC_TUNABLES", "glibc.malloc.check=0"),
        ("MALLOC_MMAP_THRESHOLD_", "262144"),
        ("MALLOC_MMAP_MAX_", "0"),
        ("MALLOC_TRIM_THRESHOLD_", "262144"),
        ("MALLOC_TOP_PAD_", "0"),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
    ],
)
def test_what_the_user_has_chosen_stays(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    for rule in ("reuse", "return"):
        with settings.override(freed_memory=rule):
            FreedMemory().settle()
    assert asked == []


def test_a_pool_that_is_not_to_be_had_is_said_and_large_blocks_go_back(
    monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    def refuse() -> None:
        raise PoolUnavailableError("a test wants none")

    monkeypatch.setattr(freed_memory_module.TensorPool, "open", refuse)
    freed = FreedMemory()
    with settings.override(freed_memory="reuse"):
        freed.settle()
    assert freed.pool is None
    assert asked == ["return", "give back"]
    assert any("a test wants none" in each.reason for each in taken_fallbacks())
