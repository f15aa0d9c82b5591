"""The machine's description is complete, and the same machine is known again."""

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks.ledger.machine import describe_machine, find_family, machine_key


def test_the_description_is_plain_and_names_what_matters() -> None:
    machine = describe_machine()
    assert json.loads(json.dumps(machine)) == machine
    assert {
        "cpu",
        "family",
        "vectors",
        "cores",
        "memory_bytes",
        "kernel",
        "governor",
        "python",
        "torch",
        "torch_threads",
        "compiler",
        "allocator",
    } <= machine.keys()
    assert machine["torch"] == torch.__version__
    assert machine["torch_threads"] == torch.get_num_threads()
    assert int(machine["memory_bytes"]) > 2**28


def test_no_name_of_the_machine_is_told() -> None:
    import platform

    node = platform.node()
    assert not node or node not in json.dumps(describe_machine()).split()


def test_software_may_change_on_the_same_machine_but_not_its_parts() -> None:
    machine = describe_machine()
    memory_bytes = int(machine["memory_bytes"])
    assert machine_key(machine | {"torch": "9.9", "load_before": 3.0}) == machine_key(machine)
    assert machine_key(machine | {"memory_bytes": memory_bytes + 4096}) == machine_key(machine)
    assert machine_key(machine | {"cores": 1024}) != machine_key(machine)
    assert machine_key(machine | {"vectors": "other"}) != machine_key(machine)
    assert machine_key(machine | {"family": "family 6 model 1"}) != machine_key(machine)
    assert machine_key(machine | {"memory_bytes": 3 * memory_bytes}) != machine_key(machine)


def test_generations_that_bear_one_name_are_told_apart() -> None:
    text = "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n"
    assert find_family(text) == "family 26 model 2"
    assert find_family("unknown") == ""


def test_a_gpu_is_part_of_the_machine_and_its_driver_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    without = describe_machine()
    assert not [each for each in without if each.startswith(("gpu", "cu"))]
    known = SimpleNamespace(name="one", major=9, minor=0, total_memory=2**36)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: known)
    machine = describe_machine()
    assert (machine["gpu"], machine["gpu_capability"], machine["gpus"]) == ("one", "9.0", 4)
    assert {"gpu_driver", "cuda", "cudnn", "triton"} <= machine.keys()
    assert machine_key(machine) != machine_key(without)
    assert machine_key(machine | {"gpu_driver": "another"}) == machine_key(machine)
