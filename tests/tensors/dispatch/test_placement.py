"""The published table of placement rules, row by row."""

import pytest

from shorthaul.tensors.dispatch.placement import choose_placement

DEVICE, CPU, UNIFIED = ("device", "device"), ("cpu", "cpu"), ("cpu", "unified")


@pytest.mark.parametrize(
    ("others", "plain", "propagated", "without_device"),
    [
        ({}, DEVICE, UNIFIED, CPU),
        ({"device_tensors": 1}, DEVICE, DEVICE, DEVICE),
        ({"device_tensors": 2, "cpu_scalars": 1}, DEVICE, DEVICE, DEVICE),
        ({"device_tensors": 1, "cpu_scalars": 2}, DEVICE, DEVICE, DEVICE),
        ({"cpu_scalars": 1}, DEVICE, UNIFIED, CPU),
        ({"cpu_scalars": 2}, CPU, CPU, CPU),
        ({"cpu_tensors": 1}, CPU, CPU, CPU),
        ({"cpu_tensors": 2, "cpu_scalars": 1}, CPU, CPU, CPU),
        ({"cpu_tensors": 1, "device_tensors": 1}, None, None, None),
        ({"writes_unified": True}, UNIFIED, UNIFIED, UNIFIED),
        ({"writes_unified": True, "device_tensors": 1}, UNIFIED, UNIFIED, UNIFIED),
        ({"writes_unified": True, "cpu_tensors": 1}, UNIFIED, UNIFIED, UNIFIED),
        ({"only_creates": True}, CPU, UNIFIED, CPU),
    ],
)
def test_every_row_of_the_table(others, plain, propagated, without_device) -> None:
    assert choose_placement(**others, has_device=True) == plain
    assert choose_placement(**others, has_device=True, propagate=True) == propagated
    assert choose_placement(**others, has_device=False) == without_device


def test_without_a_device_results_still_propagate() -> None:
    assert choose_placement(has_device=False, propagate=True) == UNIFIED
    assert choose_placement(cpu_scalars=1, has_device=False, propagate=True) == UNIFIED
    assert choose_placement(cpu_tensors=1, has_device=False, propagate=True) == CPU
