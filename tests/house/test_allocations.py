"""Every new tensor names its dtype and device: the defaults belong to the user's program.

`torch.set_default_dtype` and `torch.set_default_device` change what `torch.empty(n)` is. Kernels are given
addresses, so that a scale of another width, or memory of another device, is a wrong number or a crash.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._device import _device_constructors

SOURCE = Path(__file__).parents[2] / "src" / "shorthaul"
# What the default device moves. `frombuffer` and `from_numpy` are none of these: their memory exists.
CONSTRUCTORS = {function.__name__ for function in _device_constructors()}
# What the default dtype does not change, because they take that of their content.
OF_THEIR_CONTENT = {"as_tensor", "asarray"}


def find_unnamed(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, call, what it leaves open) of each new tensor in `text`."""
    tree = ast.parse(text)
    of_parameters = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "nn.Parameter"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        # Parameters follow the defaults on purpose, as those of torch's own modules do.
        if not isinstance(node, ast.Call) or id(node) in of_parameters:
            continue
        name = ast.unparse(node.func)
        if not name.startswith("torch.") or name[6:] not in CONSTRUCTORS:
            continue
        given = {keyword.arg for keyword in node.keywords}
        wanted = ("device",) if name[6:] in OF_THEIR_CONTENT else ("dtype", "device")
        missing = [each for each in wanted if each not in given]
        if missing and not given & {None, "out"}:
            yield node.lineno, ast.unparse(node), " and ".join(missing)


def test_every_new_tensor_names_its_dtype_and_device() -> None:
    problems = [
        f"{path.relative_to(SOURCE)}:{line}: {call} names no {missing}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, call, missing in find_unnamed(path.read_text())
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("call", "missing"),
    [
        ("torch.empty(3)", "dtype and device"),
        ("torch.arange(3, dtype=torch.int64)", "device"),
        ("torch.tensor([1.0], device='cpu')", "dtype"),
        ("torch.as_tensor(given)", "device"),
        ("torch.sparse_coo_tensor(ids, values)", "dtype and device"),
        ("nn.Parameter(torch.empty(3))", None),
        ("torch.as_tensor(given, device='cpu')", None),
        ("torch.zeros(3, dtype=torch.int64, device='cpu')", None),
        ("torch.empty_like(other)", None),
        ("np.empty(3)", None),
    ],
)
def test_the_rule_finds_what_is_left_open(call: str, missing: str | None) -> None:
    assert [found for _, _, found in find_unnamed(call)] == ([missing] if missing else [])


def test_the_constructors_are_those_that_the_default_device_moves() -> None:
    assert {"empty", "arange", "tensor", "as_tensor", "sparse_coo_tensor"} <= CONSTRUCTORS
    assert "frombuffer" not in CONSTRUCTORS
    with torch.device("meta"):
        assert torch.frombuffer(bytearray(4), dtype=torch.uint8).device.type == "cpu"
